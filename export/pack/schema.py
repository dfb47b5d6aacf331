"""The schema of `pack.json`, format 1.

The keys of pack.json are `format` and the fields of `PackInfo`. All paths are relative to the pack.
`files` lists every file that is read, except pack.json itself, README.md and the gallery's images,
which share one checksum.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from polyview.export.pack import validation
from polyview.export.pack.calibration import Calibration, Domain
from polyview.export.pack.validation import STRICT, Count, Line, Name, Note, PackError, PlainPath
from polyview.models.preprocess import Preprocess

FORMAT = 1
MANIFEST, CARD = "pack.json", "README.md"
FOLDER, INDEX = "gallery", "gallery.json"  # of a pack's gallery
REGIONS = "regions.safetensors"  # in the folder of INDEX, see `export/pack/gallery.py`
UNKNOWN_LICENCE = "unknown"  # for weights whose authors state no licence
MAX_MANIFEST = 2**20  # bytes of pack.json
MAX_FILE = 2**31 - 1  # bytes of any other file; no ONNX file can be larger
Width = Annotated[int, Field(ge=1, le=65_536)]  # width of features
Length = Annotated[int, Field(ge=1, le=1024)]  # rows or columns of a grid, tokens, or frames
Omitted = Field(exclude_if=lambda value: value is None)  # pack.json omits keys with the value None


@dataclass(frozen=True, config=STRICT)
class FileInfo:
    """A file's SHA-256 (64 lower-case hexadecimal digits) and its size in bytes."""

    sha256: validation.Sha256
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE)]


@dataclass(frozen=True, config=STRICT)
class ImageEncoderInfo:
    """The image encoder."""

    file: PlainPath | None  # the ONNX file; None if the methods read precomputed features
    dim: Width  # d of its features
    grid: tuple[Length, Length]  # rows and columns of its features; (1, 1) without a file
    summary_token: bool = False  # True if a feature of the whole image precedes the grid's cells
    # number of frames of a clip whose features form one set, in the order of the frames
    frames: Annotated[Length, Field(exclude_if=lambda count: count == 1)] = 1


@dataclass(frozen=True, config=STRICT)
class TokenizerInfo:
    """The tokenizer: its file, and the maximum number of tokens of a text."""

    file: PlainPath
    max_length: Length


@dataclass(frozen=True, config=STRICT)
class Metrics:
    """A method's metrics, and how to reproduce them."""

    split: Line  # the split of the data set
    command: validation.Command  # the command line that reproduces the values
    hardware: Note  # the machine on which the values were measured
    seed: Count | None  # of the training run; None if unknown
    # by name, such as `i2t_r1` in percent
    values: Annotated[dict[Annotated[str, Field(max_length=64)], float], Field(max_length=200)]


@dataclass(frozen=True, config=STRICT)
class Parity:
    """The differences between a method in the pack and in torch, see `export/build/pack.py`."""

    numbers: float  # largest difference between the pack and torch with the same rounded weights
    ranking: bool  # True if all rankings are the same
    fp16_numbers: float  # largest change of a score by rounding the weights
    fp16_ranking: float  # share of queries with the same first hit before and after rounding


@dataclass(frozen=True, config=STRICT)
class MethodInfo:
    """One method of a pack; several models of one method have different names.

    `image_encoder` is the pack's encoder fine-tuned with the method; only its weights differ.
    """

    arguments: dict[str, Any]  # for `models.build`
    image_dim: Width  # d of the image encoder
    text_dim: Width  # d of the text encoder
    text_encoder: PlainPath  # ONNX file of the text encoder
    head: PlainPath  # file with the weights of the heads
    config: dict[str, Any]  # the full training configuration
    parity: Parity | None  # None before `build_pack` has measured it
    metrics: Metrics | None = None  # None before `training.evaluate` has measured them
    image_encoder: Annotated[PlainPath | None, Omitted] = None  # None for the pack's encoder
    calibration: Annotated[Calibration | None, Omitted] = None  # maps scores to probabilities
    calibration_metrics: Annotated[Metrics | None, Omitted] = None  # measured on other data
    method: Annotated[Name | None, Omitted] = None  # key of `METHODS`; None if equal to the name
    title: Annotated[Line | None, Omitted] = None  # display name; None for the class's title


@dataclass(frozen=True, config=STRICT)
class GallerySummary:
    """The gallery's file and size; `images_sha256` covers its images and masks."""

    file: Literal["gallery/gallery.json"]
    split: Line
    images: Annotated[Count, Field(ge=1)]
    captions: Count
    images_sha256: validation.Sha256
    images_bytes: Count


@dataclass(frozen=True, config=STRICT)
class Labels:
    """A pack's name, title, licence, credits and description."""

    name: Name
    title: Line
    licence: Note
    credits: validation.Page
    description: validation.Page


@dataclass(frozen=True, config=STRICT)
class PackInfo(Labels):
    """The content of pack.json."""

    preprocess: Preprocess
    image_encoder: ImageEncoderInfo
    tokenizer: TokenizerInfo
    methods: Annotated[dict[Name, MethodInfo], Field(min_length=1)]
    files: dict[PlainPath, FileInfo]
    gallery: GallerySummary | None = None
    domain: Annotated[Domain | None, Omitted] = None
    folder: Annotated[Path, Field(exclude=True)] = Path()  # the pack's folder; not a key

    def __post_init__(self) -> None:
        dim, file = self.image_encoder.dim, self.image_encoder.file
        for name, method in self.methods.items():
            if (width := method.image_dim) != dim:
                raise ValueError(f"methods.{name}.image_dim is {width}, but the encoder's is {dim}")
            if method.image_encoder is not None and file is None:
                fault = f"methods.{name} has an image encoder, but the pack has none"
                raise ValueError(f"{fault}; export the pack again")
        if self.domain and {len(self.domain.mean), len(self.domain.deviation)} != {2 * dim}:
            raise ValueError(f"domain.mean and domain.deviation must have {2 * dim} numbers each")
        if self.has_regions and (self.gallery is None or file is not None):
            fault = f"{FOLDER}/{REGIONS} is for the gallery of a pack without an image encoder"
            raise ValueError(f"{fault}; leave it out, or export the pack again")
        paths = [self.tokenizer.file, file, self.gallery.file if self.gallery else None]
        for method in self.methods.values():
            paths += [method.text_encoder, method.head, method.image_encoder]
        for path in paths:
            if path is not None and path not in self.files:
                raise ValueError(f"{path} has no entry in `files`; export the pack again")

    @property
    def checksum(self) -> str:
        """The SHA-256 of everything that determines features and embeddings."""
        values = self.to_json()
        content = {key: values[key] for key in ("preprocess", "tokenizer", "files", "gallery")}
        content["arguments"] = {name: method.arguments for name, method in self.methods.items()}
        # omits default paths, so that cached embeddings of older packs stay valid
        paths = {name: [m.text_encoder, m.head] for name, m in self.methods.items()}
        default_paths = ("{}/text_encoder.onnx", "{}/head.safetensors")
        roles = {n: p for n, p in paths.items() if p != [path.format(n) for path in default_paths]}
        if self.image_encoder.file not in (None, "image_encoder.onnx"):
            roles[""] = [self.image_encoder.file]
        encoders = {n: m.image_encoder for n, m in self.methods.items() if m.image_encoder}
        optional = {"image_encoders": encoders, "roles": roles}
        content |= {key: value for key, value in optional.items() if value}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def identity(self) -> str:
        """The SHA-256 of pack.json, which includes the checksums of all files."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    @property
    def has_regions(self) -> bool:
        """True if the gallery has precomputed features, see `export/pack/gallery.py`."""
        return f"{FOLDER}/{REGIONS}" in self.files

    def to_json(self) -> dict[str, Any]:
        """Returns the content of pack.json; omits the defaults of keys that older packs lack."""
        values = TypeAdapter(PackInfo).dump_python(self, mode="json")
        values["preprocess"] = self.preprocess.to_json()
        values["files"] = dict(sorted(values["files"].items()))
        return {"format": FORMAT, **values}


def parse_info(values: Any, folder: Path) -> PackInfo:
    """Validates the content of a pack.json; raises PackError for the first invalid value."""
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        fault = f"is of format {version!r:.20}, but this version reads only format {FORMAT}"
        raise PackError(f"{MANIFEST} {fault}; update Polyview, or export the pack again")
    content = {key: value for key, value in values.items() if key != "format"}
    return replace(validation.check(PackInfo, content, MANIFEST), folder=folder)
