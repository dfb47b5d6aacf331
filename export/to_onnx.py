"""Reads run folders, and builds packs of them: `python -m polyview export --help`."""

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from polyview import models
from polyview.export.build.command import labels_from, pack_name, pack_parser, run_command
from polyview.export.build.pack import TOKENIZER, MethodParts, PackParts, build_pack
from polyview.export.encoders.sources import (
    LOGS,
    RUN_WEIGHTS,
    is_pack,
    load_image_source,
    load_text_source,
)
from polyview.export.pack.schema import Labels, PackInfo, Width
from polyview.export.pack.validation import OPEN, Count, Line, Name, check
from polyview.models import METHODS
from polyview.models.checkpoint import load_strict, load_tensors
from polyview.models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from polyview.models.encoders.encoder import ImageEncoder
from polyview.models.files import sha256_of
from polyview.models.preprocess import Preprocess

CONFIG = "config.toml"
MAX_LENGTH = 64  # tokens of a text for encoders without a limit of their own
_LONGEST_HISTORY = 9  # maximum number of image encoders, each fine-tuned from the next
_OURS = "Apache-2.0"  # for weights trained on rendered scenes only
_GLYPHS = "Noto Color Emoji (OFL 1.1)"  # source of the scenes' images
_NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial|research", re.IGNORECASE)


@dataclass(frozen=True, config=OPEN)
class EncoderSpec:
    """An encoder's description, written by training."""

    arch: str  # key of `IMAGE_ENCODERS` or `TEXT_ENCODERS`
    arguments: dict[str, Any]  # arguments of its constructor
    source: str | None = None  # of a published encoder, see `export/encoders/sources.py`
    sha256: str | None = None  # of a frozen text encoder, which methods may share
    max_length: Annotated[int, Field(ge=1)] | None = None  # maximum number of tokens in training

    def build(self, registry: Mapping[str, type[Any]], where: str) -> Any:
        """Builds the encoder with random weights; raises ValueError if `arch` is unknown."""
        if self.arch not in registry:
            raise ValueError(f'{where}: unknown arch "{self.arch}"; known: {", ".join(registry)}')
        return registry[self.arch](**self.arguments)


@dataclass(frozen=True, config=OPEN)
class DataRecord:
    """The training data; "scenes" are rendered images, "features" precomputed features."""

    kind: Literal["scenes", "photographs", "features"]
    name: Line  # display name, such as "Flickr8k and COCO"
    images: Count
    captions: Count  # may be 0 for an image encoder
    teacher: Line | None = None  # source of the encoder that an image encoder was distilled from


@dataclass(frozen=True, config=OPEN)
class RunRecord:
    """The description of a method's run, written by training."""

    kind: Literal["run"]  # an image encoder's run has another kind
    method: Name
    arguments: dict[str, Any]
    image_dim: Width
    text_dim: Width
    text_encoder: EncoderSpec
    config: dict[str, Any]
    backbone_sha256: str  # empty for precomputed features
    tokenizer_sha256: str
    image_encoder: EncoderSpec | None = None
    data: DataRecord | None = None  # None in runs of early versions
    frames: Annotated[int, Field(ge=1)] = 1  # frames of a clip, read as one set


class TrainedRun(NamedTuple):
    """A method's run with its modules."""

    folder: Path
    record: RunRecord
    tokenizer: str  # JSON
    parts: MethodParts


def describe_run(folder: Path) -> RunRecord:
    """Reads the description of a method's run; raises as `load_run` does."""
    path = folder / RUN_WEIGHTS
    _, values = load_tensors(path)
    if values.get("kind") == "image_backbone":
        raise ValueError(f"{folder} holds an image encoder; name the run of a method over it")
    return check(RunRecord, values, str(path))


def load_run(
    folder: Path,
    encoder: ImageEncoder | None,
    encoder_spec: Mapping[str, Any],
    *,
    rounded: bool = False,
) -> TrainedRun:
    """Reads a method's run folder.

    `encoder` is the run's image encoder and `encoder_spec` its `describe_image_source`, None and
    empty for precomputed features. `rounded` rounds a published text encoder to half precision, as
    in training. Raises FileNotFoundError if weights or tokenizer are missing, ValueError if the
    folder is not a method's run, or was trained with other encoders or another tokenizer.
    """
    weights_path, tokenizer = str(folder / RUN_WEIGHTS), folder / TOKENIZER
    record, (tensors, _) = describe_run(folder), load_tensors(folder / RUN_WEIGHTS)
    if not record.backbone_sha256 and encoder_spec:
        raise ValueError(f"{folder} was trained on ready-made features; leave --backbone out")
    if record.backbone_sha256 != encoder_spec.get("sha256", ""):
        data = f"another image encoder than {encoder_spec['source']}" if encoder_spec else "images"
        raise ValueError(
            f"{folder} was trained on {data}; name the backbone of its config.toml with --backbone"
        )
    if not tokenizer.is_file():
        raise FileNotFoundError(f"there is no {TOKENIZER} in {folder}; copy the whole run folder")
    if sha256_of(tokenizer) != record.tokenizer_sha256:
        raise ValueError(f"{tokenizer} is not the tokenizer that {folder} was trained with")

    def fill(module: nn.Module, prefix: str) -> Any:
        weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        load_strict(module, weights, weights_path)
        return module.eval()

    if record.image_encoder is not None:  # trained together with the method
        encoder = fill(record.image_encoder.build(IMAGE_ENCODERS, weights_path), "image_encoder.")
    text = record.text_encoder
    if text.sha256 is None or text.source is None:
        text_encoder = fill(text.build(TEXT_ENCODERS, weights_path), "text_encoder.")
    else:
        text_encoder, _, text_about = load_text_source(text.source, rounded=rounded)
        if text_about["sha256"] != text.sha256:
            raise ValueError(
                f"{folder} was trained with another text encoder than the present one at "
                f"{text.source}; restore the original encoder, or train again"
            )
    method = models.build(record.method, record.image_dim, record.text_dim, record.arguments)
    modules = encoder, text_encoder, fill(method, "method.")
    parts = MethodParts(*modules, record.arguments, record.config, text.sha256, record.method)
    return TrainedRun(folder, record, tokenizer.read_text("utf-8"), parts)


def export_runs(
    out: Path,
    backbone: str | Path | None,
    runs: Sequence[str | Path],
    labels: Labels | argparse.Namespace,
    gallery: Path | None = None,
) -> PackInfo:
    """Builds a pack from trained runs in the folder `out`, which is replaced; see `build_pack`.

    Args:
        out: the folder of the pack.
        backbone: source of the image encoder, see `export/encoders/sources.py`; None for runs on
            precomputed features, which the pack then takes as input.
        runs: run folders of the methods, all trained on that backbone with the same tokenizer.
            "NAME=FOLDER" names a model, so that a pack can hold several models of one method.
        labels: the pack's labels; or command-line options, which override labels derived from runs.
        gallery: a folder with `gallery.json` to copy into the pack.

    Raises FileNotFoundError if a folder does not exist or has no weights, ValueError if the runs do
    not fit together or a value is not valid.
    """
    encoder, preprocess, encoder_spec, logs = None, Preprocess(), dict[str, Any](), {}
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
            f"{folders} have different tokenizers; train both with the same captions and "
            "text settings"
        )
    for key in ("image_dim", "frames"):
        values = getattr(run.record, key), getattr(first.record, key)
        if values[0] != values[1]:
            raise ValueError(f"{folders} read features of {key} {values}; make two packs")
    trained[name] = run


def _labels_for(
    options: argparse.Namespace, encoder: Mapping[str, Any], runs: Sequence[TrainedRun]
) -> Labels:
    """Labels of the command line, else of the training data; a licence only for rendered scenes."""
    derived, pack = dict[str, str](), encoder.get("pack", {"licence": "", "title": ""})
    data = [run.record.data for run in runs if run.record.data is not None]
    if len(data) == len(runs):
        names = " and ".join(dict.fromkeys(record.name for record in data))
        scenes = all(record.kind == "scenes" for record in data)
        content = f"{'Images' if encoder else 'Features'} and captions: {names}"
        sources = [run.record.text_encoder.source for run in runs]
        texts = [f"text encoder {source}" for source in sources if source]
        credit_list = [_GLYPHS if scenes else content, _encoder_credits(encoder), *texts]
        titles = ", ".join(METHODS[run.record.method].title for run in runs)
        counts = f"{data[0].images:,} images with {data[0].captions:,} captions"
        derived = {
            "name": "scenes" if scenes else pack_name(data[0].name),
            "title": "Scenes" if scenes else names[:200],
            "description": f"{titles}, trained on {names} ({counts}).",
            "credits": "; ".join(dict.fromkeys(filter(None, credit_list))),
        }
        if derived["credits"] == _GLYPHS:
            derived["licence"] = _OURS
        elif not options.licence:
            base = f" over {encoder['source']}" if encoder else ""
            raise ValueError(
                f"the licence of weights trained on {derived['name']}{base} is not known; state "
                'it with --licence, such as --licence CC-BY-NC-4.0 or --licence "research only"'
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
    backbone = "image encoder: run, pack, Hugging Face folder or Hub id; none for features"
    parser.add_argument("--backbone", help=backbone)
    run = "run folder of a method; repeat; NAME=FOLDER if two are of one method"
    parser.add_argument("--run", action="append", required=True, help=run)

    def build(options: argparse.Namespace) -> PackInfo:
        return export_runs(options.out, options.backbone, options.run, options, options.gallery)

    return run_command(parser, build, argv)


if __name__ == "__main__":
    sys.exit(main())
