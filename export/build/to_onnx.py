"""Builds a pack from run folders: `python -m export.to_onnx --help`.

On drift the command ends with status 1, see `export/build/pack.py`.
"""

import argparse
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from export.build.pack import Labels, PackParts, build_pack, parser_of, refuse_existing, run_command
from export.build.provenance import labels_for
from export.build.trained import TrainedBackbone, TrainedMethod, load_backbone, load_method
from export.pack.schema import PackInfo
from models import METHODS
from models.preprocess import Preprocess

CONFIG = "config.toml"
_LONGEST_HISTORY = 9  # image encoders, each of which went on from the next
MAX_LENGTH = 64  # tokens of a text for encoders without a limit of their own


def export_runs(
    out: Path,
    backbone: str | Path | None,
    runs: Sequence[str | Path],
    labels: Labels | argparse.Namespace,
    gallery: Path | None = None,
    force: bool = False,
) -> PackInfo:
    """Builds a pack from what training left behind.

    Args:
        out: the folder to make.
        backbone: source of the image encoder, see `export/hub/sources.py`; None where the runs were
            trained on ready-made features, which the pack then reads.
        runs: run folders of the methods, all trained on that backbone with one tokenizer; one that
            trained the backbone along brings its own. "NAME=FOLDER" gives a model a name of its
            own, so that a pack can hold several of one method.
        labels: what people read about it; or the command line's options, which win over what is
            known of the runs.
        gallery: a folder with `gallery.json` that is to come with the pack.
        force: replace what is at `out`.

    Returns:
        The pack's description.

    Raises:
        FileExistsError: there is something at `out`, and `force` is off.
        ValueError: the run folders do not fit together, or a value makes no sense.
        DriftError: the result does not compute what torch computes.
    """
    refuse_existing(out, force)
    encoder, trained = _read(backbone, runs)
    if not isinstance(labels, Labels):
        labels = labels_for(labels, encoder, trained)
    first, logs = trained[0], {} if encoder is None else _history(encoder.logs)
    parts = PackParts(
        image_encoder=None if encoder is None else encoder.rounded,
        image_dim=first.about.image_dim,
        preprocess=Preprocess() if encoder is None else encoder.preprocess,
        tokenizer=first.tokenizer.read_text("utf-8"),
        max_length=first.about.text_encoder.max_length or MAX_LENGTH,
        methods={run.name: run.parts(encoder) for run in trained},
        gallery=gallery,
        frames=first.about.frames,
        logs=logs | {run.name: run.folder for run in trained},
    )
    return build_pack(out, labels, parts, force)


def _read(
    backbone: str | Path | None, runs: Sequence[str | Path]
) -> tuple[TrainedBackbone | None, list[TrainedMethod]]:
    """An image encoder and the methods over it, each once and all with one tokenizer."""
    encoder = None if backbone is None else load_backbone(backbone)
    trained: dict[str, TrainedMethod] = {}
    for given in runs:
        name, folder = _named(given)
        run = load_method(folder, encoder)
        run = replace(run, name=name or run.name)
        if run.name in trained:
            raise ValueError(
                f"{folder} and {trained[run.name].folder} both hold {run.name}; give one of them "
                f"another name: --run {run.name}_2={folder}"
            )
        if run.name != run.about.method and run.name in METHODS:
            raise ValueError(
                f"{folder} holds {run.about.method}, which cannot be called {run.name}"
            )
        trained[run.name] = run
    if not trained:
        raise ValueError("a pack needs at least one method; pass --run")
    first, *others = trained.values()
    for run in others:
        if run.tokenizer.read_bytes() != first.tokenizer.read_bytes():
            raise ValueError(
                f"{run.folder} and {first.folder} have different tokenizers, but a pack holds one; "
                "train both with the same captions and text settings"
            )
        if run.about.image_dim != first.about.image_dim:
            raise ValueError(
                f"{run.folder} reads features of {run.about.image_dim} numbers and {first.folder} "
                f"of {first.about.image_dim}; make a pack of each"
            )
        if run.about.frames != first.about.frames:
            raise ValueError(
                f"{run.folder} reads {run.about.frames} frames at a time and {first.folder} "
                f"{first.about.frames}; make a pack of each"
            )
    return encoder, list(trained.values())


def _named(given: str | Path) -> tuple[str | None, Path]:
    """A run's name in the pack, where it is given one, and its folder.

    >>> _named("vsepp_2=runs/other")
    ('vsepp_2', PosixPath('runs/other'))
    """
    name, found, folder = str(given).partition("=")
    if found and re.fullmatch("[a-z0-9_]+", name):
        return name, Path(folder)
    return None, Path(given)


def _history(folder: Path) -> dict[str, Path]:
    """The run folder of an image encoder, and those of the encoders that it went on from."""
    found = {"backbone": folder}
    while (config := folder / CONFIG).is_file() and len(found) < _LONGEST_HISTORY:
        folder = Path(str(tomllib.loads(config.read_text("utf-8")).get("init", "")))
        if not (folder / CONFIG).is_file():
            break
        found[f"backbone_{len(found) + 1}"] = folder
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = parser_of("to_onnx", "Build a pack from run folders.")
    add, what = parser.add_argument, "image encoder: run folder, Hugging Face folder or Hub id; "
    add("--backbone", help=what + "none for runs on ready-made features")
    what = "run folder of a method; repeat; NAME=FOLDER where two are of one method"
    add("--run", action="append", required=True, help=what)

    def build(given: argparse.Namespace) -> PackInfo:
        return export_runs(given.out, given.backbone, given.run, given, given.gallery, given.force)

    return run_command(build, parser, argv)
