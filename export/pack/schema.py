"""`pack.json`: what a pack says about itself.

The classes below are format 1: `Manifest` is the whole, its attributes are the keys. `format` comes
first; `domain`, the last keys of a method and what of `preprocess` is as usual may be left out. All
paths are relative to the pack. `files` covers every file that is read, but for pack.json itself,
README.md and the gallery's images, which share one checksum.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from export.pack.calibration import Calibration
from export.pack.domain import Domain
from export.pack.validation import (
    MAX_WHOLE,
    OPEN,
    STRICT,
    Arguments,
    Name,
    PackError,
    PlainPath,
    Sha256,
    Text,
    check,
)
from models.preprocess import Preprocess

FORMAT = 1
MANIFEST, CARD = "pack.json", "README.md"
FOLDER, INDEX = "gallery", "gallery.json"
REGIONS = "regions.safetensors"  # beside INDEX, see `export/pack/regions.py`
UNKNOWN_LICENCE = "unknown"  # of weights whose authors do not say
MAX_MANIFEST = 2**20  # bytes of pack.json
MAX_FILE = 2**31 - 1  # bytes of any other file; no ONNX file can be larger

Width = Annotated[int, Field(ge=1, le=65_536)]  # of features
Side = Annotated[int, Field(ge=1, le=1024)]  # of a grid
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
# What people are shown is short: a pack may be a stranger's.
Line = Annotated[str, Field(max_length=200, pattern=r"\S")]
Note = Annotated[str, Field(max_length=1000, pattern=r"\S")]
Command = Annotated[str, Field(max_length=5000, pattern=r"\S")]
Page = Annotated[str, Field(max_length=10_000, pattern=r"\S")]
Measure = Annotated[str, Field(max_length=64)]  # the name of a number


@dataclass(frozen=True, config=STRICT)
class FileInfo:
    """A file's SHA-256 (64 lower-case hexadecimal digits) and its size in bytes."""

    sha256: Sha256
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE)]


@dataclass(frozen=True, config=STRICT)
class ImageEncoderInfo:
    """The image encoder.

    Attributes:
        file: its ONNX file; None in a pack whose methods read features that were computed
            elsewhere, such as a detector's regions. Such a pack searches those of its own gallery.
        dim: width d of its features.
        grid: rows and columns of its features; (1, 1) without a file.
        summary_token: whether a summary of the whole image comes before the grid's cells.
        frames: how many frames of a clip its methods were trained to read as one set, the features
            of one after those of the other; 1 for still images, which are sets of one frame.
    """

    file: PlainPath | None
    dim: Width
    grid: tuple[Side, Side]
    summary_token: bool = False
    frames: Annotated[int, Field(ge=1, le=1024)] = 1


@dataclass(frozen=True, config=STRICT)
class TokenizerInfo:
    """The tokenizer: its file, and after how many tokens a text is cut."""

    file: PlainPath
    max_length: Annotated[int, Field(ge=1, le=1024)]


@dataclass(frozen=True, config=STRICT)
class Metrics:
    """What a method reached, and how to measure it again.

    Attributes:
        split: the part of the data set it was measured on.
        command: the command line that reproduces the values.
        hardware: what it ran on.
        seed: of the training run; None where its authors do not say.
        values: named numbers, such as `i2t_r1` in percent.
    """

    split: Line
    command: Command
    hardware: Note
    seed: Count | None
    values: Annotated[dict[Measure, float], Field(max_length=200)]


@dataclass(frozen=True, config=STRICT)
class Parity:
    """How well a method survived its export, see `export/build/parity.py`.

    Attributes:
        numbers: the largest difference between the pack and torch with the same rounded weights.
        ranking: whether every ranking was the same.
        fp16_numbers: the largest difference that rounding the weights made to a score.
        fp16_ranking: the share of queries whose first hit is the same before and after rounding.
    """

    numbers: float
    ranking: bool
    fp16_numbers: float
    fp16_ranking: float


def _parity(values: dict[str, Any]) -> dict[str, float | bool]:
    return asdict(check(Parity, values)) if values else {}


@dataclass(frozen=True, config=STRICT)
class MethodInfo:
    """One method of a pack.

    Attributes:
        arguments: named arguments for `models.build`.
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        text_encoder: path of the ONNX file.
        head: path of the heads' weights.
        config: the full configuration it was trained with.
        parity: a `Parity`; empty if that was not measured.
        metrics: what it reached, once measured.
        image_encoder: path of its own ONNX file, the pack's encoder trained further with it: same
            preprocessing, width and grid, other weights; None where it reads the pack's.
        calibration: how sure its scores are; None where that was not fitted.
        calibration_metrics: how true that is.
        method: key of `models.METHODS`; None where the pack calls it so, too. A pack holds several
            models of one method under names of their own.
        title: what people call it; None for the method's own title.
    """

    arguments: Arguments
    image_dim: Width
    text_dim: Width
    text_encoder: PlainPath
    head: PlainPath
    config: Arguments
    parity: Annotated[dict[str, Any], AfterValidator(_parity)]
    metrics: Metrics | None = None
    image_encoder: PlainPath | None = None
    calibration: Calibration | None = None
    calibration_metrics: Metrics | None = None
    method: Name | None = None
    title: Line | None = None


@dataclass(frozen=True, config=STRICT)
class GallerySummary:
    """Where the gallery is and how large; `images_sha256` covers its images and masks."""

    file: Literal["gallery/gallery.json"]
    split: Text
    images: Annotated[int, Field(ge=1, le=MAX_WHOLE)]
    captions: Count
    images_sha256: Sha256
    images_bytes: Count


@dataclass(frozen=True, config=STRICT)
class Manifest:
    """Everything that a pack.json of this format says; the attributes are named as the keys."""

    name: Name
    title: Line
    licence: Note
    credits: Page
    description: Page
    preprocess: Preprocess
    image_encoder: ImageEncoderInfo
    tokenizer: TokenizerInfo
    methods: dict[Name, MethodInfo]
    files: dict[PlainPath, FileInfo]
    gallery: GallerySummary | None = None
    domain: Domain | None = None

    def __post_init__(self) -> None:
        """Refuses entries that contradict each other."""
        if not self.methods:
            raise ValueError("it names no method; a pack needs at least one")
        for name, method in self.methods.items():
            if method.image_dim != self.image_encoder.dim:
                raise ValueError(
                    f"methods.{name}.image_dim is {method.image_dim}, but the image encoder's "
                    f"features have {self.image_encoder.dim} dimensions"
                )
            if method.image_encoder is not None and self.image_encoder.file is None:
                raise ValueError(
                    f"methods.{name} has an image encoder of its own, but the pack reads no "
                    "images; name a file in image_encoder, or export the pack again"
                )
        if self.domain is not None and len(self.domain.mean) != 2 * self.image_encoder.dim:
            raise ValueError(
                f"domain.mean has {len(self.domain.mean)} numbers, but features of "
                f"{self.image_encoder.dim} dimensions need {2 * self.image_encoder.dim}"
            )
        if self.has_regions and (self.gallery is None or self.image_encoder.file is not None):
            raise ValueError(
                f"{FOLDER}/{REGIONS} is for the gallery of a pack without an image encoder; "
                "leave it out, or export the pack again"
            )
        for file in self.named_files():
            if file not in self.files:
                raise ValueError(f"it names {file}, but its files table has no checksum of it")

    @property
    def checksum(self) -> str:
        """One SHA-256 over everything features and embeddings depend on; metrics do not enter."""
        values = self.to_json()
        parts = {key: values[key] for key in ("preprocess", "tokenizer", "files", "gallery")}
        parts["arguments"] = {name: m.arguments for name, m in self.methods.items()}
        own = {n: m.image_encoder for n, m in self.methods.items() if m.image_encoder is not None}
        parts |= {"image_encoders": own} if own else {}
        # only where they are not the usual ones, so that what was encoded with usual packs holds
        parts |= {"roles": roles} if (roles := self._unusual_roles()) else {}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def has_regions(self) -> bool:
        """Whether its gallery comes with ready-made features, see `export/pack/regions.py`."""
        return f"{FOLDER}/{REGIONS}" in self.files

    @property
    def identity(self) -> str:
        """One SHA-256 over all that pack.json says, and with it over every byte that is read."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def _unusual_roles(self) -> dict[str, list[str]]:
        """The files of methods, and of the pack (""), that are not where packs have them."""
        roles = {
            name: [method.text_encoder, method.head]
            for name, method in self.methods.items()
            if (method.text_encoder, method.head)
            != (f"{name}/text_encoder.onnx", f"{name}/head.safetensors")
        }
        file = self.image_encoder.file
        return roles if file in (None, "image_encoder.onnx") else {**roles, "": [file]}

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
        values = asdict(self)
        values.pop("folder", None)
        for method in values["methods"].values():
            rare = "image_encoder", "calibration", "calibration_metrics", "method", "title"
            _leave_out(method, *rare)
        _leave_out(values, "domain")
        values["preprocess"] = self.preprocess.to_json()
        values["image_encoder"]["grid"] = list(self.image_encoder.grid)
        if self.image_encoder.frames == 1:
            del values["image_encoder"]["frames"]
        values["files"] = dict(sorted(values["files"].items()))
        return {"format": FORMAT, **values}


def _leave_out(values: dict[str, Any], *keys: str) -> None:
    """Drops keys that hold None."""
    for key in keys:
        if values[key] is None:
            del values[key]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class PackInfo(Manifest):
    """What a pack's pack.json says, and the pack's folder."""

    folder: Path

    def path(self, name: str) -> Path:
        """Returns the path of one of the pack's files."""
        return self.folder / name


@dataclass(frozen=True, config=OPEN)
class _Format:
    format: Annotated[int, Field(ge=1)]


def parse_info(values: Any, folder: Path) -> PackInfo:
    """Validates what a pack.json holds, without looking at any other file.

    Args:
        values: the parsed JSON.
        folder: the pack's folder.

    Raises:
        PackError: names the first thing that is wrong.
    """
    version = check(_Format, values, MANIFEST).format
    if version != FORMAT:
        raise PackError(
            f"{MANIFEST} is of format {version}; this version of Polyview reads format {FORMAT}: "
            + ("update Polyview" if version > FORMAT else "export the pack again")
        )
    manifest = check(Manifest, {k: v for k, v in values.items() if k != "format"}, MANIFEST)
    return PackInfo(folder=folder, **vars(manifest))
