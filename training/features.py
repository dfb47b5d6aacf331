"""Cached features: a frozen image encoder reads every picture of a split once.

What a file of features is named after: the encoder's checksum, which changes with its weights,
sizes and preprocessing; and, for photographs, the list of their files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from models.backbones import IMAGE_ENCODERS
from models.sources import describe_image_source, load_image_source
from training.extraction import Reader, extract, skipped_rows
from training.karpathy import Photographs
from training.pictures import Crops, PictureArrays, PictureFiles

CACHE = Path("data/cache")


@dataclass(frozen=True)
class Extraction:
    """How features are made where they are not cached yet.

    Attributes:
        cache: folder for the features of photographs; those of scenes lie beside the scenes.
        batch: pictures in a batch.
        workers: threads that decode; 0 takes one for each processor.
        device: "cuda", "cpu" or "auto".
        skip_damaged: leave photographs out that cannot be read, instead of refusing.
    """

    cache: Path = CACHE
    batch: int = 32
    workers: int = 0
    device: str = "auto"
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        """Refuses sizes that make no sense and a device that is not there."""
        if self.batch < 1 or self.workers < 0:
            raise ValueError(
                f"batch must be 1 or more and workers 0 or more, not {self.batch} and "
                f"{self.workers}"
            )
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError('device "cuda" needs a CUDA GPU; choose cpu or auto')

    def reader(self, backbone: str | Path) -> Reader:
        """The encoder of a source, ready to read."""
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        device = torch.device("cuda" if cuda else "cpu")
        encoder, preprocess, _ = load_image_source(backbone, device)
        return Reader(encoder, preprocess, device, self.batch, self.workers, self.skip_damaged)


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_summary(backbone: str | Path) -> bool:
    """Whether the features of an image encoder begin with a summary ([CLS])."""
    return IMAGE_ENCODERS[describe_image_source(backbone)["arch"]].summary_token


def cached_features(
    split: Path, backbone: str | Path, extraction: Extraction | None = None
) -> np.ndarray:
    """Features of a rendered split's pictures, computed once and kept beside them.

    Args:
        split: folder with `images.npy`, uint8 (N, S, S, 3).
        backbone: source of the image encoder, see `models/sources.py`.
        extraction: how they are made where they are not there.

    Returns:
        (N, n, d) float16, memory-mapped.
    """
    path = split / f"features-{describe_image_source(backbone)['sha256'][:12]}.npy"
    if not path.is_file():
        pictures = PictureArrays(np.load(split / "images.npy", mmap_mode="r"))
        reader = (extraction or Extraction()).reader(backbone)
        extract(reader, pictures, path, f"features of {split.name}")
    return _mapped(path)


def photograph_features(
    photographs: Photographs,
    name: str,
    backbone: str | Path,
    extraction: Extraction | None = None,
    copy: int = 0,
) -> tuple[np.ndarray, Photographs, Path]:
    """Features of photographs, computed once and kept in the cache.

    Args:
        photographs: a whole split.
        name: what the file is called, "flickr8k/train"; its key follows.
        backbone: source of the image encoder, see `models/sources.py`.
        extraction: how they are made where they are not there.
        copy: 0 for the photographs as they are, else the number of a `Crops`.

    Returns:
        (N, n, d) float16, memory-mapped; the N photographs they belong to, which are all but the
        damaged ones, if those were left out; and the file.

    Raises:
        ValueError: photographs are damaged; the sentence names them.
    """
    how = extraction or Extraction()
    listed = [describe_image_source(backbone)["sha256"], [str(p.name) for p in photographs.paths]]
    key = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]
    path = how.cache / f"{name}-{key}{f'-copy{copy}' if copy else ''}.npy"
    if not path.is_file():
        pictures: Sequence[Image.Image] = PictureFiles(photographs.paths)
        pictures = Crops(pictures, copy) if copy else pictures
        extract(how.reader(backbone), pictures, path, f"features of {name}")
    left_out = skipped_rows(path)
    return _mapped(path), photographs.without(left_out) if left_out else photographs, path


def _mapped(path: Path) -> np.ndarray:
    features: np.ndarray = np.load(path, mmap_mode="r")
    return features
