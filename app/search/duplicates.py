"""Finds images that look nearly the same: saved again, resized, or slightly brighter."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

_SIDE = 16  # rows and columns of a fingerprint
_MEAN, _MOST = 4.0, 24.0  # of 255: largest mean difference, and largest difference of a cell
_RATIO = 0.02  # largest relative difference of width / height
_KNOWN = 10_000  # cached fingerprints, of 3 KB each


@lru_cache(_KNOWN)
def fingerprint(thumbnail: Path) -> np.ndarray:
    """The aspect ratio of an image and its colours in coarse cells: (1 + 16 * 16 * 3,) float32.

    Args:
        thumbnail: the image's thumbnail, whose name changes with the image.
    """
    with Image.open(thumbnail) as image:
        ratio = image.width / image.height
        cells = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.concatenate([[ratio], np.asarray(cells, np.float32).ravel()]).astype(np.float32)


@lru_cache(50_000)
def image_size(thumbnail: Path) -> tuple[int, int]:
    """Width and height of a thumbnail in pixels.

    Raises:
        OSError: the file cannot be read.
    """
    with Image.open(thumbnail) as image:
        return image.size


def first_alike(prints: Sequence[np.ndarray]) -> list[int]:
    """For each of n fingerprints, the index of the first that is nearly the same, or its own.

    Images are compared only with the first of each group, so that groups cannot grow through chains
    of similar images.
    """
    firsts: list[int] = []
    alike: list[int] = []
    known = np.empty((len(prints), len(prints[0]) if prints else 0), np.float32)
    for place, cells in enumerate(prints):
        apart = np.abs(known[: len(firsts)] - cells)
        same = apart[:, 0] <= _RATIO * cells[0]
        same &= (apart[:, 1:].mean(axis=1) <= _MEAN) & (
            apart[:, 1:].max(axis=1, initial=0) <= _MOST
        )
        if same.any():
            alike.append(firsts[int(same.argmax())])
            continue
        known[len(firsts)] = cells
        firsts.append(place)
        alike.append(place)
    return alike
