"""Outlines of what a rendered picture is known to show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from app.collection import Picture
from app.contours import contours, path
from app.pictures import open_mask
from models.preprocess import Box

_STEP = 2  # of a mask's pixels, every so many are enough to draw


@dataclass(frozen=True)
class Outline:
    """One object: its name, and an SVG path around it in a box of 100 x 100."""

    name: str
    path: str


def outlines(picture: Picture) -> list[Outline]:
    """The objects of a picture, in the order its captions count them; none where unknown.

    Drawn around the pixels where there is a mask that can be read, otherwise around the boxes.
    """
    if picture.truth is None:
        return []
    mask = _mask(picture)
    drawn = []
    for place, thing in enumerate(picture.truth.objects):
        around = ""
        if mask is not None:
            around = path(contours((mask == place + 1).astype(np.float32), 0.5))
        drawn.append(Outline(thing.name, around or _rectangle(thing.box)))
    return drawn


def _mask(picture: Picture) -> np.ndarray | None:
    """(H, W) uint8 with i + 1 where object i is seen, or None."""
    if picture.truth is None or picture.truth.mask is None:
        return None
    depth = len(PurePosixPath(picture.truth.file).parts)
    folder: Path = picture.path.parents[depth - 1]
    try:
        return open_mask(folder / picture.truth.mask)[::_STEP, ::_STEP]
    except (OSError, ValueError):
        return None


def _rectangle(box: Box) -> str:
    x0, y0, x1, y1 = box
    return path([[(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)]])
