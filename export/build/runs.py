"""Reads the run folders that `training` writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from polyview import models
from polyview.export.build.pack import TOKENIZER, MethodParts
from polyview.export.encoders.sources import RUN_WEIGHTS, load_text_source
from polyview.export.pack.schema import Width
from polyview.export.pack.validation import OPEN, Count, Line, Name, check
from polyview.models.checkpoint import load_strict, load_tensors
from polyview.models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from polyview.models.encoders.encoder import ImageEncoder
from polyview.models.files import sha256_of


@dataclass(frozen=True, config=OPEN)
class EncoderSpec:
    """An encoder's description in a run's weights file."""

    arch: str  # key of `IMAGE_ENCODERS` or `TEXT_ENCODERS`
    arguments: dict[str, Any]  # arguments of its constructor
    source: str | None = None  # source of a published encoder, see `export/encoders/sources.py`
    sha256: str | None = None  # digest of a frozen text encoder, which several methods may share
    max_length: Annotated[int, Field(ge=1)] | None = None  # maximum number of tokens in training

    def build(self, registry: Mapping[str, type[Any]], where: str) -> Any:
        """Builds the encoder with random weights; raises ValueError if `arch` is unknown."""
        if self.arch not in registry:
            raise ValueError(f'{where}: unknown arch "{self.arch}"; known: {", ".join(registry)}')
        return registry[self.arch](**self.arguments)


@dataclass(frozen=True, config=OPEN)
class DataRecord:
    """The training data: "scenes" are rendered images, "features" are precomputed features."""

    kind: Literal["scenes", "photographs", "features"]
    name: Line  # display name, such as "Flickr8k and COCO"
    images: Count
    captions: Count  # may be 0 for an image encoder
    teacher: Line | None = None  # source of the encoder that an image encoder was distilled from


@dataclass(frozen=True, config=OPEN)
class RunRecord:
    """The description of a method's run."""

    kind: Literal["run"]  # the run of an image encoder has "image_backbone"
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
    frames: Annotated[int, Field(ge=1)] = 1  # number of frames of a clip


class TrainedRun(NamedTuple):
    """A method's run with its modules."""

    folder: Path
    record: RunRecord
    tokenizer: str  # the content of tokenizer.json
    parts: MethodParts


def read_run(folder: Path) -> tuple[RunRecord, dict[str, Tensor]]:
    """Reads the description and the weights of a method's run; raises as `load_run` does."""
    tensors, values = load_tensors(folder / RUN_WEIGHTS)
    if values.get("kind") == "image_backbone":
        raise ValueError(f"{folder} holds an image encoder; name the run of a method trained on it")
    return check(RunRecord, values, str(folder / RUN_WEIGHTS)), tensors


def load_run(
    folder: Path,
    encoder: ImageEncoder | None,
    encoder_spec: Mapping[str, Any],
    *,
    rounded: bool = False,
) -> TrainedRun:
    """Reads a method's run folder, and builds its modules in eval mode.

    `encoder` is the run's image encoder, and `encoder_spec` the result of `describe_image_source`;
    for precomputed features, pass None and {}. `rounded` rounds a published text encoder to half
    precision, as in training. Raises FileNotFoundError if weights or tokenizer are missing,
    ValueError if the folder is not a method's run, or the run used another encoder or tokenizer.
    """
    record, tensors = read_run(folder)
    if not record.backbone_sha256 and encoder_spec:
        raise ValueError(f"{folder} was trained on precomputed features; leave --backbone out")
    if record.backbone_sha256 != encoder_spec.get("sha256", ""):
        other = f"with a different image encoder, not {encoder_spec.get('source')}"
        reason = other if encoder_spec else "on images"
        advice = "pass the backbone of its config.toml as --backbone"
        raise ValueError(f"{folder} was trained {reason}; {advice}")
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        raise FileNotFoundError(f"there is no {TOKENIZER} in {folder}; copy the whole run folder")
    if sha256_of(tokenizer) != record.tokenizer_sha256:
        raise ValueError(f"{tokenizer} is not the tokenizer of the run; copy the whole folder")
    weights_path = str(folder / RUN_WEIGHTS)

    def load(module: nn.Module, prefix: str) -> Any:
        """Loads the weights whose names start with `prefix`; puts the module in eval mode."""
        weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        load_strict(module, weights, weights_path)
        return module.eval()

    if record.image_encoder is not None:  # trained together with the method
        encoder = load(record.image_encoder.build(IMAGE_ENCODERS, weights_path), "image_encoder.")
    text_info = record.text_encoder
    if text_info.sha256 is None or text_info.source is None:  # its weights are in the run
        text_encoder = load(text_info.build(TEXT_ENCODERS, weights_path), "text_encoder.")
    else:
        text_encoder, _, text_spec = load_text_source(text_info.source, rounded=rounded)
        if text_spec["sha256"] != text_info.sha256:
            message = f"the text encoder {text_info.source} has changed since {folder} was trained"
            raise ValueError(f"{message}; restore the original encoder, or train again")
    method = models.build(record.method, record.image_dim, record.text_dim, record.arguments)
    modules = encoder, text_encoder, load(method, "method.")
    parts = MethodParts(*modules, record.arguments, record.config, text_info.sha256, record.method)
    return TrainedRun(folder, record, tokenizer.read_text("utf-8"), parts)
