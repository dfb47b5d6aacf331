"""Builds a pack from run folders: `python -m polyview export --help`."""

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyview.export.build.command import labels_from, pack_parser, run_command
from polyview.export.build.pack import PackParts, build_pack
from polyview.export.build.trained import DataRecord, TrainedRun, load_run
from polyview.export.encoders.sources import LOGS, is_pack, load_image_source
from polyview.export.pack.schema import Labels, PackInfo
from polyview.export.pack.validation import check
from polyview.models import METHODS
from polyview.models.preprocess import Preprocess

CONFIG = "config.toml"
MAX_LENGTH = 64  # tokens of a text for encoders without a limit of their own
_LONGEST_HISTORY = 9  # maximum number of image encoders, each fine-tuned from the next
_OURS = "Apache-2.0"  # for weights trained on rendered scenes only
_GLYPHS = "Noto Color Emoji (OFL 1.1)"  # source of the scenes' images
_NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial|research", re.IGNORECASE)


def export_runs(
    out: Path,
    backbone: str | Path | None,
    runs: Sequence[str | Path],
    labels: Labels | argparse.Namespace,
    gallery: Path | None = None,
) -> PackInfo:
    """Builds a pack from trained runs; see `build_pack`.

    Args:
        out: the folder of the pack; an existing folder is replaced.
        backbone: source of the image encoder, see `export/encoders/sources.py`; None for runs that
            were trained on precomputed features, which the pack then takes as input.
        runs: run folders of the methods, all trained on that backbone with the same tokenizer; a
            run that fine-tuned the backbone has its own image encoder. "NAME=FOLDER" names a model,
            so that a pack can hold several models of one method.
        labels: the pack's labels for people; or command-line options, which override the labels
            derived from the runs.
        gallery: a folder with `gallery.json` to copy into the pack.

    Raises:
        FileNotFoundError: a folder does not exist, or has no weights.
        ValueError: the run folders do not fit together, or a value is not valid.
    """
    encoder, preprocess, encoder_spec = None, Preprocess(), dict[str, Any]()
    logs = dict[str, Path]()
    if backbone is not None:
        encoder, preprocess, encoder_spec = load_image_source(backbone, rounded=False)
        logs = _history(str(backbone))
    trained: dict[str, TrainedRun] = {}
    for spec in runs:
        name, equals, folder = str(spec).partition("=")
        has_name = bool(equals and re.fullmatch("[a-z0-9_]+", name))
        run = load_run(Path(folder if has_name else spec), encoder, encoder_spec)
        _add_run(trained, name if has_name else run.record.method, run)
    first, *_ = trained.values()
    if not isinstance(labels, Labels):
        labels = _labels_for(labels, encoder_spec, list(trained.values()))
    parts = PackParts(
        image_encoder=encoder,
        image_dim=first.record.image_dim,
        preprocess=preprocess,
        tokenizer=first.tokenizer,
        max_length=first.record.text_encoder.max_length or MAX_LENGTH,
        methods={name: run.parts for name, run in trained.items()},
        gallery=gallery,
        frames=first.record.frames,
        logs=logs | {name: run.folder for name, run in trained.items()},
    )
    return build_pack(out, labels, parts)


def _add_run(trained: dict[str, TrainedRun], name: str, run: TrainedRun) -> None:
    """Adds a run under a name; raises ValueError if it cannot share a pack with the others."""
    if name in trained:
        raise ValueError(
            f"{run.folder} and {trained[name].folder} both hold {name}; give one of them another "
            f"name: --run {name}_2={run.folder}"
        )
    if name != run.record.method and name in METHODS:
        raise ValueError(f"{run.folder} holds {run.record.method}, which cannot be called {name}")
    first = next(iter(trained.values()), run)
    folders = f"{run.folder} and {first.folder}"
    if run.tokenizer != first.tokenizer:
        raise ValueError(
            f"{folders} have different tokenizers, but a pack holds one; train both with the same "
            "captions and text settings"
        )
    for key in ("image_dim", "frames"):
        value, first_value = getattr(run.record, key), getattr(first.record, key)
        if value != first_value:
            raise ValueError(
                f"{folders} read features of {key} {value} and {first_value}; make two packs"
            )
    trained[name] = run


def _labels_for(
    options: argparse.Namespace, encoder: Mapping[str, Any], runs: Sequence[TrainedRun]
) -> Labels:
    """Completes the labels of the command line with labels derived from the training data.

    `encoder` describes the image encoder; it is empty for runs on precomputed features. A licence
    is derived only for rendered scenes.
    """
    derived, pack = dict[str, str](), encoder.get("pack", {"licence": "", "title": ""})
    data = [run.record.data for run in runs if run.record.data is not None]
    if len(data) == len(runs):
        names = " and ".join(dict.fromkeys(record.name for record in data))
        scenes = all(record.kind == "scenes" for record in data)
        data_credits = (
            _GLYPHS if scenes else f"{'Images' if encoder else 'Features'} and captions: {names}"
        )
        sources = [run.record.text_encoder.source for run in runs]
        texts = [f"text encoder {source}" for source in sources if source]
        credit_list = [data_credits, _encoder_credits(encoder), *texts]
        titles = ", ".join(METHODS[run.record.method].title for run in runs)
        counts = f"{data[0].images:,} images with {data[0].captions:,} captions"
        slug = re.sub(r"[^a-z0-9]+", "_", data[0].name.lower()).strip("_")[:64]
        derived = {
            "name": "scenes" if scenes else slug,
            "title": "Scenes" if scenes else names[:200],
            "description": f"{titles}, trained on {names} ({counts}).",
            "credits": "; ".join(dict.fromkeys(filter(None, credit_list))),
        }
        if derived["credits"] == _GLYPHS:
            derived["licence"] = _OURS
        elif not options.licence:
            base = f" over {encoder['source']}" if encoder else ""
            raise ValueError(
                f"the licence of weights trained on {derived['name']}{base} is not known; state it "
                'with --licence, for example --licence CC-BY-NC-4.0, or --licence "research only"'
            )
    if options.name:
        derived["title"] = options.name.replace("_", " ").capitalize()
    labels = labels_from(options, **derived)
    if _NON_COMMERCIAL.search(pack["licence"]) and not _NON_COMMERCIAL.search(labels.licence):
        raise ValueError(
            f'the licence "{labels.licence}" allows commercial use, but the pack '
            f'"{pack["title"]}" is under {pack["licence"]}; use --licence {pack["licence"]}'
        )
    return labels


def _encoder_credits(record: Mapping[str, Any]) -> str:
    """The credits of an image encoder; empty without one."""
    if "pack" in record:
        return str(record["pack"]["credits"])
    if "data" not in record:
        return f"image encoder {record['source']}" if record else ""
    data = check(DataRecord, record["data"], record["source"])
    teacher = f", with {Path(data.teacher).name} as the teacher" if data.teacher else ""
    return _GLYPHS if data.kind == "scenes" else f"image encoder: {data.name}{teacher}"


def _history(source: str) -> dict[str, Path]:
    """The run folders of an image encoder and of the encoders from which it was fine-tuned."""
    folder = Path(source.partition("#")[0])
    folder = folder / LOGS if is_pack(folder) else folder
    history = {"backbone": folder}
    while (config := folder / CONFIG).is_file() and len(history) < _LONGEST_HISTORY:
        folder = Path(str(tomllib.loads(config.read_text("utf-8")).get("init", "")))
        if (folder / CONFIG).is_file():
            history[f"backbone_{len(history) + 1}"] = folder
    return history


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = pack_parser("export", "Build a pack from run folders.")
    backbone = "image encoder: run folder, pack, Hugging Face folder or Hub id; none for runs on "
    parser.add_argument("--backbone", help=backbone + "ready-made features")
    run = "run folder of a method; repeat; NAME=FOLDER if two are of one method"
    parser.add_argument("--run", action="append", required=True, help=run)

    def build(options: argparse.Namespace) -> PackInfo:
        return export_runs(options.out, options.backbone, options.run, options, options.gallery)

    return run_command(parser, build, argv)


if __name__ == "__main__":
    sys.exit(main())
