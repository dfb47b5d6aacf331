"""What training leaves behind, read for export: an image encoder and the methods' run folders."""

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

import models
from export.build.graph import round_to_half
from export.build.pack import TOKENIZER, MethodParts
from export.build.parity import TorchStack
from export.hub.packed import LOGS, is_pack
from export.hub.sources import load_image_source, load_text_source
from export.pack.schema import Count, Line, Width
from export.pack.validation import OPEN, Arguments, Name, Text, check
from models.checkpoint import load_strict, load_tensors
from models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.files import sha256_of
from models.preprocess import Preprocess

WEIGHTS = "best.safetensors"


@dataclass(frozen=True, config=OPEN)
class EncoderAbout:
    """What training wrote about an encoder.

    Attributes:
        arch: key of `IMAGE_ENCODERS` or `TEXT_ENCODERS`.
        arguments: its constructor's.
        source: of a published one, see `export/hub/sources.py`.
        sha256: of a text encoder that was not trained; methods with the same share it.
        max_length: how many tokens it was trained to read; None where there is no limit.
    """

    arch: Text
    arguments: Arguments
    source: Text | None = None
    sha256: Text | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None

    def build(self, registry: Mapping[str, type[Any]], where: str) -> Any:
        """The encoder, with random weights."""
        if self.arch not in registry:
            known = ", ".join(registry)
            raise ValueError(f'{where}: unknown arch "{self.arch}"; known: {known}')
        return registry[self.arch](**self.arguments)


@dataclass(frozen=True, config=OPEN)
class DataAbout:
    """What was learned from.

    Attributes:
        kind: "scenes" are rendered, "features" ready-made.
        name: for people, such as "Flickr8k and COCO".
        images: how many.
        captions: how many; an image encoder needs none.
        teacher: source of the published encoder that taught an image encoder.
    """

    kind: Literal["scenes", "photographs", "features"]
    name: Line
    images: Count
    captions: Count
    teacher: Line | None = None


@dataclass(frozen=True, config=OPEN)
class RunAbout:
    """What training wrote about a method's run; `kind` tells it from an image encoder's.

    Runs over the frames of clips say how many `frames` an image encoder gave them of each.
    Earlier runs do not say what `data` they learned from. `backbone_sha256` is empty where those
    were ready-made features.
    """

    kind: Literal["run"]
    method: Name
    arguments: Arguments
    image_dim: Width
    text_dim: Width
    text_encoder: EncoderAbout
    config: Arguments
    backbone_sha256: str
    tokenizer_sha256: Text
    image_encoder: EncoderAbout | None = None
    data: DataAbout | None = None
    frames: Annotated[int, Field(ge=1)] = 1


@plain_dataclass(frozen=True)
class TrainedBackbone:
    """An image encoder that methods were trained on.

    Attributes:
        source: where it is from, see `export/hub/sources.py`.
        about: what it is: `sha256`, its identity; what it learned from, where that is known.
        preprocess: how images are prepared.
        rounded: with weights rounded to half precision, as the pack holds them.
        original: with its weights as they are.
    """

    source: str
    about: Mapping[str, Any]
    preprocess: Preprocess
    rounded: ImageEncoder
    original: ImageEncoder

    @property
    def sha256(self) -> str:
        """Its identity."""
        return str(self.about["sha256"])

    @property
    def logs(self) -> Path:
        """The folder of its recipe and log, where it is one of our own."""
        folder = Path(self.source.partition("#")[0])
        return folder / LOGS if is_pack(folder) else folder


@plain_dataclass(frozen=True)
class TrainedMethod:
    """A method's run folder.

    Attributes:
        folder: the run folder.
        name: what the pack calls it, usually the key of `models.METHODS`, which `about` has.
        about: what training wrote about it.
        tensors: weights named `method.*`, `text_encoder.*` and, where the image encoder was trained
            along, `image_encoder.*`; as trained.
    """

    folder: Path
    name: str
    about: RunAbout
    tensors: dict[str, Tensor]

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        return self.folder / TOKENIZER

    @property
    def _weights(self) -> str:
        return str(self.folder / WEIGHTS)

    def parts(self, backbone: TrainedBackbone | None) -> MethodParts:
        """What it brings into a pack of this backbone, or of ready-made features."""
        halves, about = round_to_half(self.tensors, str(self.folder)), self.about
        rounded, original = (
            (None, None) if backbone is None else (backbone.rounded, backbone.original)
        )
        return MethodParts(
            about.arguments,
            about.config,
            self._stack(halves, rounded, rounded=True),
            self._stack(self.tensors, original, rounded=False),
            about.image_encoder is not None,
            about.text_encoder.sha256,
            about.method,
        )

    def _stack(
        self, tensors: dict[str, Tensor], backbone: ImageEncoder | None, *, rounded: bool
    ) -> TorchStack:
        """The modules with the given weights; with the backbone where it was not trained along."""
        about, images = self.about, backbone
        if about.image_encoder is not None:
            images = about.image_encoder.build(IMAGE_ENCODERS, self._weights).eval()
            load_strict(images, _under("image_encoder.", tensors), self._weights)
        sizes = about.image_dim, about.text_dim
        method = models.build(about.method, *sizes, about.arguments)
        load_strict(method, _under("method.", tensors), self._weights)
        return TorchStack(images, self._text_encoder(tensors, rounded).eval(), method.eval())

    def _text_encoder(self, tensors: dict[str, Tensor], rounded: bool) -> TextEncoder:
        about = self.about.text_encoder
        if about.sha256 is None or about.source is None:
            encoder: TextEncoder = about.build(TEXT_ENCODERS, self._weights)
            load_strict(encoder, _under("text_encoder.", tensors), self._weights)
            return encoder
        frozen, _, found = load_text_source(about.source, rounded=rounded)
        if found["sha256"] != about.sha256:
            raise ValueError(
                f"{self.folder} was trained with another text encoder than what is at "
                f"{about.source} now; put the former one there, or train it again"
            )
        return frozen


def load_backbone(source: str | Path) -> TrainedBackbone:
    """Reads an image encoder, see `export/hub/sources.py`.

    Raises:
        FileNotFoundError: there are no weights in it.
        ValueError: it is not an image encoder's.
    """
    rounded, preprocess, about = load_image_source(source)
    original, _, _ = load_image_source(source, rounded=False)
    return TrainedBackbone(str(source), about, preprocess, rounded, original)


def load_method(folder: Path, backbone: TrainedBackbone | None) -> TrainedMethod:
    """Reads a method's run folder.

    Args:
        folder: the run.
        backbone: what it was trained on; None for ready-made features.

    Raises:
        FileNotFoundError: weights or tokenizer are missing.
        ValueError: it is not a method's, or was trained with another backbone or tokenizer.
    """
    tensors, values = load_tensors(folder / WEIGHTS)
    about = check(RunAbout, values, str(folder / WEIGHTS))
    run = TrainedMethod(folder, about.method, about, tensors)
    if backbone is None and about.backbone_sha256:
        raise ValueError(
            f"{folder} was trained on images; name the backbone of its config.toml with --backbone"
        )
    if backbone is not None and not about.backbone_sha256:
        raise ValueError(f"{folder} was trained on ready-made features; leave --backbone out")
    if backbone is not None and about.backbone_sha256 != backbone.sha256:
        raise ValueError(
            f"{folder} was trained on features of another backbone than {backbone.source}; "
            "pass the backbone of its config.toml, or train it again"
        )
    if not run.tokenizer.is_file():
        raise FileNotFoundError(f"there is no {TOKENIZER} in {folder}")
    if sha256_of(run.tokenizer) != about.tokenizer_sha256:
        raise ValueError(f"{run.tokenizer} is not the tokenizer that {folder} was trained with")
    return run


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
