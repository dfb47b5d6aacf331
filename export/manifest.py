"""`pack.json` in Python: what a pack says about itself.

Format 1:

    {"format": 1, "name": "scenes", "title", "licence", "credits", "description",
     "preprocess": {"size", "mean", "std", "fit"},
     "image_encoder": {"file": path or null, "dim", "grid": [rows, columns],
                       "summary_token": false},
     "tokenizer": {"file", "max_length"},
     "methods": {name: {"arguments", "image_dim", "text_dim", "text_encoder", "head", "config",
                        "parity", "metrics": null or {"split", "command", "hardware", "seed",
                                                      "values": {name: number}},
                        "image_encoder": path, only where it is the method's own}},
     "files": {path: {"sha256", "bytes"}},
     "gallery": null or {"file", "split", "images", "captions", "images_sha256", "images_bytes"}}

All paths are relative to the pack. `files` covers every file that is read, but for pack.json
itself, README.md and the gallery's images, which share one checksum.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from export.fields import PackError
from models.preprocess import Preprocess

FORMAT = 1


@dataclass(frozen=True)
class FileInfo:
    """A file's SHA-256 (64 lower-case hexadecimal digits) and its size in bytes."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class ImageEncoderInfo:
    """The image encoder.

    Attributes:
        file: its ONNX file; None in a pack whose methods read features that were computed
            elsewhere, such as a detector's regions. Such a pack searches no pictures.
        dim: width d of its features.
        grid: rows and columns of its features; (1, 1) without a file.
        summary_token: whether a summary of the whole picture comes before the grid's cells.
    """

    file: str | None
    dim: int
    grid: tuple[int, int]
    summary_token: bool = False


@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer: its file, and after how many tokens a text is cut."""

    file: str
    max_length: int


@dataclass(frozen=True)
class Metrics:
    """What a method reached, and how to measure it again.

    Attributes:
        split: the part of the data set it was measured on.
        command: the command line that reproduces the values.
        hardware: what it ran on.
        seed: of the training run; None where its authors do not say.
        values: named numbers, such as `i2t_r1` in percent.
    """

    split: str
    command: str
    hardware: str
    seed: int | None
    values: dict[str, float]


@dataclass(frozen=True)
class MethodInfo:
    """One method of a pack.

    Attributes:
        arguments: named arguments for `models.build`.
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        text_encoder: path of the ONNX file.
        head: path of the heads' weights.
        config: the full configuration it was trained with.
        parity: how far the pack was from the torch modules at export, see `export/parity.py`;
            empty if that was not measured.
        metrics: what it reached, once measured.
        image_encoder: path of its own ONNX file, the pack's encoder trained further with it: same
            preprocessing, width and grid, other weights; None where it reads the pack's.
    """

    arguments: dict[str, Any]
    image_dim: int
    text_dim: int
    text_encoder: str
    head: str
    config: dict[str, Any]
    parity: dict[str, float | bool]
    metrics: Metrics | None = None
    image_encoder: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What pack.json holds; `image_encoder` is left out where there is none of its own."""
        said = asdict(self)
        if self.image_encoder is None:
            del said["image_encoder"]
        return said


@dataclass(frozen=True)
class GallerySummary:
    """Where the gallery is and how large; `images_sha256` covers its images and masks."""

    file: str
    split: str
    images: int
    captions: int
    images_sha256: str
    images_bytes: int


@dataclass(frozen=True)
class PackInfo:
    """A pack's folder and everything its pack.json says; the attributes are named as the keys."""

    folder: Path
    name: str
    title: str
    licence: str
    credits: str
    description: str
    preprocess: Preprocess
    image_encoder: ImageEncoderInfo
    tokenizer: TokenizerInfo
    methods: dict[str, MethodInfo]
    files: dict[str, FileInfo]
    gallery: GallerySummary | None = None

    def __post_init__(self) -> None:
        """Refuses entries that contradict each other."""
        if not self.methods:
            raise PackError("pack.json names no method; a pack needs at least one")
        for name, method in self.methods.items():
            if method.image_dim != self.image_encoder.dim:
                raise PackError(
                    f"pack.json: methods: {name}: image_dim is {method.image_dim}, but the image "
                    f"encoder's features have {self.image_encoder.dim} dimensions"
                )
            if method.image_encoder is not None and self.image_encoder.file is None:
                raise PackError(
                    f"pack.json: methods: {name}: it has an image encoder of its own, but the pack "
                    "reads no pictures; name a file in image_encoder, or export the pack again"
                )
        for file in self.named_files():
            if file not in self.files:
                raise PackError(
                    f"pack.json names {file}, but its files table has no checksum of it"
                )

    @property
    def checksum(self) -> str:
        """One SHA-256 over everything features and embeddings depend on; metrics do not enter."""
        said = self.to_json()
        parts = {key: said[key] for key in ("preprocess", "tokenizer", "files", "gallery")}
        parts["arguments"] = {name: m.arguments for name, m in self.methods.items()}
        own = {n: m.image_encoder for n, m in self.methods.items() if m.image_encoder is not None}
        parts |= {"image_encoders": own} if own else {}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def image_encoder_bytes(self) -> int:
        """Size of the image encoder's file; 0 where there is none."""
        file = self.image_encoder.file
        return 0 if file is None else self.files[file].bytes

    def named_files(self) -> list[str]:
        """The files that are read to load the pack and its gallery."""
        named = [self.tokenizer.file]
        if self.image_encoder.file is not None:
            named.append(self.image_encoder.file)
        for method in self.methods.values():
            named += [method.text_encoder, method.head]
            named += [] if method.image_encoder is None else [method.image_encoder]
        return named if self.gallery is None else [*named, self.gallery.file]

    def to_json(self) -> dict[str, Any]:
        """What pack.json holds."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        del said["folder"]
        return {
            "format": FORMAT,
            **said,
            "preprocess": self.preprocess.to_json(),
            "image_encoder": {**asdict(self.image_encoder), "grid": list(self.image_encoder.grid)},
            "tokenizer": asdict(self.tokenizer),
            "methods": {name: method.to_json() for name, method in self.methods.items()},
            "files": {path: asdict(file) for path, file in sorted(self.files.items())},
            "gallery": None if self.gallery is None else asdict(self.gallery),
        }
