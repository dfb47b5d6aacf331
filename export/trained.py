"""What training leaves behind, read for export: an image encoder and the methods' run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import models
from export.fields import Fields
from export.graph import round_to_half
from export.manifest_parser import check_name
from export.pack import describe_file
from models import Method
from models.backbones import IMAGE_ENCODERS, TEXT_ENCODERS
from models.checkpoint import load_strict, load_tensors
from models.encoder import ImageEncoder, TextEncoder
from models.preprocess import Preprocess
from models.sources import load_image_source, load_text_source

WEIGHTS = "best.safetensors"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class TorchStack:
    """The torch modules of one method, in eval mode.

    Without an image encoder, the method reads features that were computed elsewhere.
    """

    image_encoder: ImageEncoder | None
    text_encoder: TextEncoder
    method: Method


@dataclass(frozen=True)
class TrainedBackbone:
    """An image encoder that methods were trained on.

    Attributes:
        source: where it is from, see `models/sources.py`.
        sha256: its identity.
        preprocess: how pictures are prepared.
        rounded: with weights rounded to half precision, as the pack holds them.
        original: with its weights as they are.
    """

    source: str
    sha256: str
    preprocess: Preprocess
    rounded: ImageEncoder
    original: ImageEncoder


@dataclass(frozen=True)
class TrainedMethod:
    """A method's run folder.

    Attributes:
        folder: the run folder.
        name: key of `models.METHODS`.
        about: what training wrote about it.
        tensors: weights named `method.*`, `text_encoder.*` and, where the image encoder was trained
            along, `image_encoder.*`; as trained.
    """

    folder: Path
    name: str
    about: Fields
    tensors: dict[str, Tensor]

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        return self.folder / TOKENIZER

    @property
    def has_image_encoder(self) -> bool:
        """Whether the image encoder was trained along, so that the method has one of its own."""
        return self.about.has("image_encoder")

    @property
    def shared_text(self) -> str | None:
        """Identity of its text encoder where that was not trained; such ones can be shared."""
        return self.about.child("text_encoder").text_or_none("sha256")

    @property
    def max_length(self) -> int | None:
        """How many tokens its text encoder was trained to read; None where there is no limit."""
        about = self.about.child("text_encoder")
        return about.integer("max_length", least=1) if about.has("max_length") else None

    def build(self, tensors: dict[str, Tensor], *, rounded: bool) -> tuple[TextEncoder, Method]:
        """The text encoder and the method with the given weights."""
        dims = self.about.integer("image_dim", least=1), self.about.integer("text_dim", least=1)
        method = models.build(self.name, *dims, self.about.mapping("arguments"))
        load_strict(method, _under("method.", tensors), str(self.folder / WEIGHTS))
        return self._text_encoder(tensors, rounded).eval(), method.eval()

    def build_image_encoder(self, tensors: dict[str, Tensor]) -> ImageEncoder:
        """The image encoder that was trained along, with the given weights."""
        encoder: ImageEncoder = _build(IMAGE_ENCODERS, self.about.child("image_encoder"))
        load_strict(encoder, _under("image_encoder.", tensors), str(self.folder / WEIGHTS))
        return encoder.eval()

    def _text_encoder(self, tensors: dict[str, Tensor], rounded: bool) -> TextEncoder:
        about = self.about.child("text_encoder")
        if self.shared_text is None:
            encoder: TextEncoder = _build(TEXT_ENCODERS, about)
            load_strict(encoder, _under("text_encoder.", tensors), str(self.folder / WEIGHTS))
            return encoder
        source = about.text("source")
        frozen, _, found = load_text_source(source, rounded=rounded)
        if found["sha256"] != self.shared_text:
            raise ValueError(
                f"{self.folder} was trained with another text encoder than what is at {source} "
                "now; put the former one there, or train it again"
            )
        return frozen


def load_backbone(source: str | Path) -> TrainedBackbone:
    """Reads an image encoder, see `models/sources.py`.

    Raises:
        FileNotFoundError: there are no weights in it.
        ValueError: it is not an image encoder's.
    """
    rounded, preprocess, about = load_image_source(source)
    original, _, _ = load_image_source(source, rounded=False)
    return TrainedBackbone(str(source), about["sha256"], preprocess, rounded, original)


def load_method(folder: Path, backbone: TrainedBackbone) -> TrainedMethod:
    """Reads a method's run folder.

    Raises:
        FileNotFoundError: weights or tokenizer are missing.
        ValueError: it is not a method's, or was trained with another backbone or tokenizer.
    """
    tensors, about = _load(folder, "run")
    name = check_name(about.text("method"), about.where)
    run = TrainedMethod(folder, name, about, tensors)
    if about.text("backbone_sha256") != backbone.sha256:
        raise ValueError(
            f"{folder} was trained on features of another backbone than {backbone.source}; "
            "pass the backbone of its config.toml, or train it again"
        )
    if not run.tokenizer.is_file():
        raise FileNotFoundError(f"there is no {TOKENIZER} in {folder}")
    if describe_file(run.tokenizer).sha256 != about.text("tokenizer_sha256"):
        raise ValueError(f"{run.tokenizer} is not the tokenizer that {folder} was trained with")
    return run


def stacks(backbone: TrainedBackbone, run: TrainedMethod) -> tuple[TorchStack, TorchStack]:
    """The torch modules of a method: with weights rounded to half precision, and as trained."""
    halves = round_to_half(run.tensors, str(run.folder))
    images = backbone.rounded, backbone.original
    if run.has_image_encoder:
        images = run.build_image_encoder(halves), run.build_image_encoder(run.tensors)
    return (
        TorchStack(images[0], *run.build(halves, rounded=True)),
        TorchStack(images[1], *run.build(run.tensors, rounded=False)),
    )


def _load(folder: Path, kind: str) -> tuple[dict[str, Tensor], Fields]:
    path = folder / WEIGHTS
    tensors, values = load_tensors(path)
    about = Fields(values, str(path))
    if about.text("kind") != kind:
        raise ValueError(f'{path} is of kind "{about.text("kind")}", but "{kind}" is needed here')
    return tensors, about


def _build(registry: Mapping[str, type[Any]], about: Fields) -> Any:
    arch = about.text("arch")
    if arch not in registry:
        raise ValueError(f'{about.where}: unknown arch "{arch}"; known: {", ".join(registry)}')
    return registry[arch](**about.mapping("arguments"))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
