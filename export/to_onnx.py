"""Builds packs of training runs: `python -m polyview export --help`."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyview.export.build.command import labels_from, pack_name, pack_parser, run_command
from polyview.export.build.pack import MAX_LENGTH, PackParts, build_pack
from polyview.export.build.runs import DataRecord, TrainedRun, load_run
from polyview.export.encoders.sources import LOGS, load_image_source
from polyview.export.pack.schema import MANIFEST, Labels, PackInfo
from polyview.export.pack.validation import check
from polyview.models import METHODS
from polyview.models.preprocess import Preprocess

_SCENES_LICENCE = "Apache-2.0"  # of weights trained only on rendered scenes
_SCENES_CREDITS = "Noto Color Emoji (OFL 1.1)"  # source of the scenes' images
_NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial|research", re.IGNORECASE)


def export_runs(
    out: Path,
    backbone: str | Path | None,
    runs: Sequence[str | Path],
    labels: Labels | argparse.Namespace,
    gallery: Path | None = None,
) -> PackInfo:
    """Builds a pack of trained runs; an existing folder `out` is replaced, see `build_pack`.

    `backbone` is the source of the image encoder (`export/encoders/sources.py`), or None for runs
    on precomputed features. `runs` are the run folders of methods that were trained on this
    backbone with the same tokenizer; "NAME=FOLDER" names a method in the pack, so that a pack can
    have several models of one method. `labels` are the pack's labels, or command-line options that
    override labels derived from the runs. `gallery` is a folder with `gallery.json` to copy.

    Raises FileNotFoundError if a folder does not exist or has no weights, ValueError if the runs do
    not fit together, a label is missing or not valid, or `build_pack` fails.
    """
    encoder, preprocess, encoder_spec = None, Preprocess(), dict[str, Any]()
    logs = dict[str, Path]()
    if backbone is not None:
        encoder, preprocess, encoder_spec = load_image_source(backbone, rounded=False)
        folder = Path(str(backbone).partition("#")[0])
        logs["backbone"] = folder / LOGS if (folder / MANIFEST).is_file() else folder
    runs_by_name = dict[str, TrainedRun]()
    for run_spec in map(str, runs):
        match = re.fullmatch("([a-z0-9_]+)=(.*)", run_spec, re.DOTALL)
        run = load_run(Path(match[2] if match else run_spec), encoder, encoder_spec)
        _add_run(runs_by_name, match[1] if match else run.record.method, run)
    first, *_ = runs_by_name.values()
    if not isinstance(labels, Labels):
        labels = _labels_for(labels, encoder_spec, list(runs_by_name.values()))
    parts = PackParts(
        image_encoder=encoder,
        image_dim=first.record.image_dim,
        preprocess=preprocess,
        tokenizer=first.tokenizer,
        max_length=first.record.text_encoder.max_length or MAX_LENGTH,
        methods={name: run.parts for name, run in runs_by_name.items()},
        gallery=gallery,
        frames=first.record.frames,
        logs=logs | {name: run.folder for name, run in runs_by_name.items()},
    )
    return build_pack(out, labels, parts)


def _add_run(runs_by_name: dict[str, TrainedRun], name: str, run: TrainedRun) -> None:
    """Adds a run under a name; raises ValueError if the run does not fit the others."""
    if name in runs_by_name:
        advice = f"give one of them another name: --run {name}_2={run.folder}"
        raise ValueError(f"{run.folder} and {runs_by_name[name].folder} both hold {name}; {advice}")
    if name != run.record.method and name in METHODS:
        raise ValueError(f"{run.folder} holds {run.record.method}, not {name}; choose another name")
    first = next(iter(runs_by_name.values()), run)
    folders = f"{run.folder} and {first.folder}"
    if run.tokenizer != first.tokenizer:
        advice = "train both with the same captions and text settings"
        raise ValueError(f"{folders} have different tokenizers; {advice}")
    for key, noun in (("image_dim", "feature width"), ("frames", "frames per clip")):
        value, expected = getattr(run.record, key), getattr(first.record, key)
        if value != expected:
            raise ValueError(f"{folders} differ in {noun}, {value} and {expected}; make two packs")
    runs_by_name[name] = run


def _labels_for(
    options: argparse.Namespace, encoder_spec: Mapping[str, Any], runs: Sequence[TrainedRun]
) -> Labels:
    """Returns labels from the command line; missing labels are derived from the training data."""
    derived = dict[str, str]()
    records = [run.record.data for run in runs if run.record.data is not None]
    if len(records) == len(runs):
        data_names = list(dict.fromkeys(record.name for record in records))
        names = " and ".join(data_names)
        is_scenes = all(record.kind == "scenes" for record in records)
        content = "Images" if encoder_spec else "Features"
        credit_list = [_SCENES_CREDITS if is_scenes else f"{content} and captions: {names}"]
        credit_list.append(_encoder_credits(encoder_spec))
        sources = [run.record.text_encoder.source for run in runs]
        credit_list += [f"text encoder {source}" for source in sources if source]
        titles = ", ".join(METHODS[run.record.method].title for run in runs)
        counts = f"{records[0].images:,} images with {records[0].captions:,} captions"
        trained_on = f"{names} ({counts})" if len(data_names) == 1 else names
        derived = {
            "name": "scenes" if is_scenes else pack_name(records[0].name),
            "title": "Scenes" if is_scenes else names[:200],
            "description": f"{titles}, trained on {trained_on}.",
            "credits": "; ".join(dict.fromkeys(filter(None, credit_list))),
        }
        if derived["credits"] == _SCENES_CREDITS:
            derived["licence"] = _SCENES_LICENCE
        elif not options.licence:
            base = f" over {encoder_spec['source']}" if encoder_spec else ""
            advice = 'state it with --licence CC-BY-NC-4.0 or --licence "research only"'
            weights = f"weights trained on {derived['name']}{base}"
            raise ValueError(f"the licence of {weights} is not known; {advice}")
    if options.name:
        derived["title"] = options.name.replace("_", " ").capitalize()
    labels = labels_from(options, **derived)
    if "pack" in encoder_spec and not _NON_COMMERCIAL.search(labels.licence):
        licence, title = encoder_spec["pack"]["licence"], encoder_spec["pack"]["title"]
        if _NON_COMMERCIAL.search(licence):
            fault = f'"{labels.licence}" allows commercial use, but the pack "{title}" is under'
            raise ValueError(f"the licence {fault} {licence}; use --licence {licence}")
    return labels


def _encoder_credits(spec: Mapping[str, Any]) -> str:
    """Returns the credits of an image encoder; "" if `spec` is empty."""
    if "pack" in spec:
        return str(spec["pack"]["credits"])
    if "data" not in spec:
        return f"image encoder {spec['source']}" if spec else ""
    data = check(DataRecord, spec["data"], spec["source"])
    teacher = f", with {Path(data.teacher).name} as the teacher" if data.teacher else ""
    return _SCENES_CREDITS if data.kind == "scenes" else f"image encoder: {data.name}{teacher}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = pack_parser("export", "Build a pack from run folders.")
    add = parser.add_argument
    add("--backbone", help="image encoder: run, pack, folder, Hub id; not for precomputed features")
    help_text = "run folder of a method, repeatable; NAME=FOLDER names a second run of a method"
    add("--run", action="append", required=True, help=help_text)

    def build(options: argparse.Namespace) -> PackInfo:
        return export_runs(options.out, options.backbone, options.run, options, options.gallery)

    return run_command(parser, build, argv)
