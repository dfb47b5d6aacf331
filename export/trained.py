"""What training leaves behind, read for export: a backbone's run folder and the methods' ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

import models
from export.fields import Fields
from export.graph import round_to_half
from export.manifest import FileInfo
from export.manifest_parser import check_name
from export.pack import describe_file
from models import Method
from models.backbones import IMAGE_ENCODERS, TEXT_ENCODERS, BiGRUTextEncoder, SceneNet
from models.checkpoint import load_strict, load_tensors
from models.preprocess import Preprocess

WEIGHTS = "best.safetensors"
TOKENIZER = "tokenizer.json"

E = TypeVar("E", bound=nn.Module)


@dataclass(frozen=True)
class TorchStack:
    """The torch modules of one method, in eval mode."""

    image_encoder: SceneNet
    text_encoder: BiGRUTextEncoder
    method: Method


@dataclass(frozen=True)
class TrainedBackbone:
    """An image encoder's run folder.

    Attributes:
        folder: the run folder.
        file: checksum of its weights.
        preprocess: how pictures were prepared.
        about: what training wrote about it.
        tensors: its weights, as trained.
    """

    folder: Path
    file: FileInfo
    preprocess: Preprocess
    about: Fields
    tensors: dict[str, Tensor]

    def build(self, tensors: dict[str, Tensor]) -> SceneNet:
        """The encoder with the given weights."""
        encoder = _lookup(IMAGE_ENCODERS, self.about)(**self.about.mapping("arguments"))
        load_strict(encoder, tensors, str(self.folder / WEIGHTS))
        return encoder.eval()


@dataclass(frozen=True)
class TrainedMethod:
    """A method's run folder.

    Attributes:
        folder: the run folder.
        name: key of `models.METHODS`.
        about: what training wrote about it.
        tensors: weights named `method.*` and `text_encoder.*`, as trained.
    """

    folder: Path
    name: str
    about: Fields
    tensors: dict[str, Tensor]

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        return self.folder / TOKENIZER

    def build(self, tensors: dict[str, Tensor]) -> tuple[BiGRUTextEncoder, Method]:
        """The text encoder and the method with the given weights."""
        about = self.about.child("text_encoder")
        encoder = _lookup(TEXT_ENCODERS, about)(**about.mapping("arguments"))
        dims = self.about.integer("image_dim", least=1), self.about.integer("text_dim", least=1)
        method = models.build(self.name, *dims, self.about.mapping("arguments"))
        source = str(self.folder / WEIGHTS)
        load_strict(encoder, _under("text_encoder.", tensors), source)
        load_strict(method, _under("method.", tensors), source)
        return encoder.eval(), method.eval()


def load_backbone(folder: Path) -> TrainedBackbone:
    """Reads an image encoder's run folder.

    Raises:
        FileNotFoundError: there are no weights in it.
        ValueError: it is not an image encoder's.
    """
    tensors, about = _load(folder, "image_backbone")
    preprocess = Preprocess.from_json(about.mapping("preprocess"))
    return TrainedBackbone(folder, describe_file(folder / WEIGHTS), preprocess, about, tensors)


def load_method(folder: Path, backbone: TrainedBackbone) -> TrainedMethod:
    """Reads a method's run folder.

    Raises:
        FileNotFoundError: weights or tokenizer are missing.
        ValueError: it is not a method's, or was trained with another backbone or tokenizer.
    """
    tensors, about = _load(folder, "run")
    name = check_name(about.text("method"), about.where)
    run = TrainedMethod(folder, name, about, tensors)
    if about.text("backbone_sha256") != backbone.file.sha256:
        raise ValueError(
            f"{folder} was trained on features of another backbone than {backbone.folder}; "
            "pass the backbone of its config.toml, or train it again"
        )
    if not run.tokenizer.is_file():
        raise FileNotFoundError(f"there is no {TOKENIZER} in {folder}")
    if describe_file(run.tokenizer).sha256 != about.text("tokenizer_sha256"):
        raise ValueError(f"{run.tokenizer} is not the tokenizer that {folder} was trained with")
    return run


def stacks(backbone: TrainedBackbone, run: TrainedMethod) -> tuple[TorchStack, TorchStack]:
    """The torch modules of a method: with weights rounded to half precision, and as trained."""
    images = round_to_half(backbone.tensors, str(backbone.folder))
    texts = round_to_half(run.tensors, str(run.folder))
    return (
        TorchStack(backbone.build(images), *run.build(texts)),
        TorchStack(backbone.build(backbone.tensors), *run.build(run.tensors)),
    )


def _load(folder: Path, kind: str) -> tuple[dict[str, Tensor], Fields]:
    path = folder / WEIGHTS
    tensors, values = load_tensors(path)
    about = Fields(values, str(path))
    if about.text("kind") != kind:
        raise ValueError(f'{path} is of kind "{about.text("kind")}", but "{kind}" is needed here')
    return tensors, about


def _lookup(registry: dict[str, type[E]], about: Fields) -> type[E]:
    arch = about.text("arch")
    if arch not in registry:
        raise ValueError(f'{about.where}: unknown arch "{arch}"; known: {", ".join(registry)}')
    return registry[arch]


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
