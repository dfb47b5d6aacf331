"""Builds a pack from run folders: `python -m export.to_onnx --help`."""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from export.build.command import Labels, labels_from, pack_parser, refuse_freer, run_command
from export.build.pack import MethodParts, PackParts, build_pack
from export.build.trained import DataAbout, TrainedRun, load_run
from export.encoders.sources import LOGS, is_pack, load_image_source
from export.pack.schema import PackInfo
from export.pack.validation import check
from models import METHODS
from models.preprocess import Preprocess

CONFIG = "config.toml"
_LONGEST_HISTORY = 9  # image encoders, each of which went on from the next
MAX_LENGTH = 64  # tokens of a text for encoders without a limit of their own
_OURS = "Apache-2.0"  # of weights that learned from rendered scenes alone
_GLYPHS = "Noto Color Emoji (OFL 1.1)"  # what the scenes are made of


def export_runs(
    out: Path,
    backbone: str | Path | None,
    runs: Sequence[str | Path],
    labels: Labels | argparse.Namespace,
    gallery: Path | None = None,
) -> PackInfo:
    """Builds a pack from what training left behind; see `build_pack`.

    Args:
        out: the folder to make; one that exists is replaced.
        backbone: source of the image encoder, see `export/encoders/`; None where the runs were
            trained on ready-made features, which the pack then reads.
        runs: run folders of the methods, all trained on that backbone with one tokenizer; one that
            trained the backbone along brings its own. "NAME=FOLDER" gives a model a name of its
            own, so that a pack can hold several of one method.
        labels: what people read about it; or the command line's options, which win over what is
            known of the runs.
        gallery: a folder with `gallery.json` that is to come with the pack.

    Raises:
        FileNotFoundError: there is no such folder, or it lacks weights.
        ValueError: the run folders do not fit together, or a value makes no sense.
    """
    encoder, preprocess, about = None, Preprocess(), dict[str, Any]()
    if backbone is not None:
        encoder, preprocess, about = load_image_source(backbone, rounded=False)
    trained: dict[str, TrainedRun] = {}
    for spec in runs:
        name, equals, folder = str(spec).partition("=")
        named = bool(equals and re.fullmatch("[a-z0-9_]+", name))
        run = load_run(Path(folder if named else spec), encoder, about)
        run = replace(run, name=name) if named else run
        _refuse_unfit(run, trained)
        trained[run.name] = run
    first, *_ = trained.values()
    if not isinstance(labels, Labels):
        labels = _labels_for(labels, about, list(trained.values()))
    methods = {
        name: MethodParts(
            run.stack,
            run.about.arguments,
            run.about.config,
            run.about.text_encoder.sha256,
            run.about.method,
        )
        for name, run in trained.items()
    }
    logs = {} if backbone is None else _history(str(backbone))
    parts = PackParts(
        image_encoder=encoder,
        image_dim=first.about.image_dim,
        preprocess=preprocess,
        tokenizer=first.tokenizer,
        max_length=first.about.text_encoder.max_length or MAX_LENGTH,
        methods=methods,
        gallery=gallery,
        frames=first.about.frames,
        logs=logs | {name: run.folder for name, run in trained.items()},
    )
    return build_pack(out, labels, parts)


def _labels_for(
    options: argparse.Namespace, encoder: Mapping[str, Any], runs: Sequence[TrainedRun]
) -> Labels:
    """What people read about a pack: what the command line says, or else what training wrote.

    A licence is known only where everything was rendered here. `encoder` describes the image
    encoder; it is empty for runs on ready-made features.
    """
    known = _known_labels(encoder, runs)
    names = Labels.__dataclass_fields__
    missing = [name for name in names if not (getattr(options, name) or known.get(name))]
    if missing == ["licence"]:
        over = f" over {encoder['source']}" if encoder else ""
        raise ValueError(
            f"nobody knows the licence of weights that learned from {known['name']}{over}; say it "
            'with --licence, for example --licence CC-BY-NC-4.0, or --licence "research only"'
        )
    if missing:
        needed = " ".join(f"--{name} ..." for name in missing)
        raise ValueError(
            f"{runs[0].folder} does not say what it learned from: an earlier version trained it; "
            f"say what people are to read with {needed}"
        )
    if not options.title and options.name:
        known["title"] = options.name.replace("_", " ").capitalize()
    labels = labels_from(options, **known)
    if pack := encoder.get("pack"):
        refuse_freer(labels.licence, pack["licence"], f'the pack "{pack["title"]}"')
    return labels


def _known_labels(encoder: Mapping[str, Any], runs: Sequence[TrainedRun]) -> dict[str, str]:
    """Those of the labels that follow from what was trained on what."""
    data = [run.about.data for run in runs if run.about.data is not None]
    if len(data) < len(runs):
        return {}
    names = " and ".join(dict.fromkeys(about.name for about in data))
    scenes = all(about.kind == "scenes" for about in data)
    texts = [f"text encoder {source}" for run in runs if (source := run.about.text_encoder.source)]
    own = _GLYPHS if scenes else f"{'Images' if encoder else 'Features'} and captions: {names}"
    credits = [own, _encoder_credits(encoder), *texts]
    methods = ", ".join(METHODS[run.about.method].title for run in runs)
    slug = re.sub(r"[^a-z0-9]+", "_", data[0].name.lower()).strip("_")[:64]
    known = {
        "name": "scenes" if scenes else slug,
        "title": "Scenes" if scenes else names[:200],
        "description": (
            f"{methods}, trained on {names} "
            f"({data[0].images:,} images with {data[0].captions:,} captions)."
        ),
        "credits": "; ".join(dict.fromkeys(filter(None, credits))),
    }
    return known | ({"licence": _OURS} if known["credits"] == _GLYPHS else {})


def _encoder_credits(about: Mapping[str, Any]) -> str:
    """Whose work an image encoder is; empty without one."""
    if not about:
        return ""
    if "pack" in about:
        return str(about["pack"]["credits"])
    if "data" not in about:
        return f"image encoder {about['source']}"
    data = check(DataAbout, about["data"], about["source"])
    teacher = f", with {Path(data.teacher).name} as the teacher" if data.teacher else ""
    return _GLYPHS if data.kind == "scenes" else f"image encoder: {data.name}{teacher}"


def _refuse_unfit(run: TrainedRun, others: dict[str, TrainedRun]) -> None:
    """Refuses a run that cannot be in one pack with others."""
    if run.name in others:
        raise ValueError(
            f"{run.folder} and {others[run.name].folder} both hold {run.name}; give one of them "
            f"another name: --run {run.name}_2={run.folder}"
        )
    if run.name != run.about.method and run.name in METHODS:
        raise ValueError(
            f"{run.folder} holds {run.about.method}, which cannot be called {run.name}"
        )
    for first in list(others.values())[:1]:
        both = f"{run.folder} and {first.folder}"
        if run.tokenizer != first.tokenizer:
            raise ValueError(
                f"{both} have different tokenizers, but a pack holds one; train both with the same "
                "captions and text settings"
            )
        for name in ("image_dim", "frames"):
            values = getattr(run.about, name), getattr(first.about, name)
            if len(set(values)) > 1:
                raise ValueError(
                    f"{both} read features of {name} {values[0]} and {values[1]}; make a pack of "
                    "each"
                )


def _history(source: str) -> dict[str, Path]:
    """The run folder of an image encoder, and those of the encoders that it went on from."""
    folder = Path(source.partition("#")[0])
    folder = folder / LOGS if is_pack(folder) else folder
    history = {"backbone": folder}
    while (config := folder / CONFIG).is_file() and len(history) < _LONGEST_HISTORY:
        folder = Path(str(tomllib.loads(config.read_text("utf-8")).get("init", "")))
        if not (folder / CONFIG).is_file():
            break
        history[f"backbone_{len(history) + 1}"] = folder
    return history


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = pack_parser("to_onnx", "Build a pack from run folders.")
    backbone = "image encoder: run folder, pack, Hugging Face folder or Hub id; none for runs on "
    parser.add_argument("--backbone", help=backbone + "ready-made features")
    run = "run folder of a method; repeat; NAME=FOLDER where two are of one method"
    parser.add_argument("--run", action="append", required=True, help=run)

    def build(options: argparse.Namespace) -> PackInfo:
        return export_runs(options.out, options.backbone, options.run, options, options.gallery)

    return run_command(parser, build, argv)
