"""Which images are nearly the same to look at: saved again, resized, or a shade brighter."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

_SIDE = 16  # cells of a fingerprint, each way
_MEAN, _MOST = 4.0, 24.0  # of 255: how far all cells may differ on average, and one of them
_RATIO = 0.02  # how far width / height may differ, as a share
_KNOWN = 10_000  # fingerprints kept, of 3 KB each


@lru_cache(_KNOWN)
def fingerprint(thumbnail: Path) -> np.ndarray:
    """The width / height of an image and its colours in coarse cells: (1 + 16 * 16 * 3,) float32.

    Args:
        thumbnail: of the image; its name changes whenever the image does.
    """
    with Image.open(thumbnail) as image:
        ratio = image.width / image.height
        cells = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.concatenate([[ratio], np.asarray(cells, np.float32).ravel()]).astype(np.float32)


def first_alike(prints: Sequence[np.ndarray]) -> list[int]:
    """For each of n fingerprints, the place of the first that is nearly the same; often its own.

    Images are compared with those alone that are the first of their kind, so that none is led from
    one image to a very different one by steps.
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
