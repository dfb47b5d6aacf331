"""The image side of a training that trains the image encoder along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.encoder import ImageEncoder
from models.preprocess import Preprocess
from models.sources import load_image_source


@dataclass(frozen=True)
class ImageSide:
    """What a training needs to read pictures.

    Attributes:
        encoder: pixels (B, 3, S, S) to features (B, N, d).
        elements: N.
        preprocess: how pictures become pixels.
        sha256: identity of what the encoder was before training.
        about: what export needs to build it.
    """

    encoder: ImageEncoder
    elements: int
    preprocess: Preprocess
    sha256: str
    about: Mapping[str, Any]


def load_image_side(backbone: str | Path) -> ImageSide:
    """The image encoder of a source, with its weights as they are, to be trained.

    Args:
        backbone: see `models/sources.py`.

    Raises:
        FileNotFoundError, SourceError: see `load_image_source`.
    """
    encoder, preprocess, said = load_image_source(backbone, rounded=False)
    rows, columns = encoder.grid(preprocess.size)
    about = {key: said[key] for key in ("arch", "arguments", "preprocess")}
    elements = rows * columns + encoder.summary_token
    return ImageSide(encoder, elements, preprocess, said["sha256"], about)
