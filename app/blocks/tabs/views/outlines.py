"""Outlines of what a rendered image is known to show."""

from dataclasses import dataclass

import numpy as np

from app.explain.heatmaps import outline, svg_path
from app.gallery.collection import CollectionImage
from app.gallery.images import open_mask
from models.preprocess import Box

_STEP = 2  # of a mask's pixels, every so many are enough to draw
_SIDE = 128  # samples of a mask's longer side at most
_LONGEST = 20_000  # characters of a path; around what is longer a box is drawn


@dataclass(frozen=True)
class Outline:
    """One object: its name, and an SVG path around it in a box of 100 x 100."""

    name: str
    path: str


def outlines(image: CollectionImage) -> list[Outline]:
    """The objects of an image, in the order its captions count them; none where unknown.

    Drawn around the pixels where there is a mask that can be read, otherwise around the boxes.
    """
    if image.truth is None:
        return []
    mask = _mask(image)
    drawn = []
    for place, thing in enumerate(image.truth.objects):
        around = ""
        if mask is not None:
            around = outline((mask == place + 1).astype(np.float32), 0.5)
        fits = 0 < len(around) <= _LONGEST
        drawn.append(Outline(thing.name, around if fits else _rectangle(thing.box)))
    return drawn


def _mask(image: CollectionImage) -> np.ndarray | None:
    """(H, W) uint8 with i + 1 where object i is seen, or None."""
    try:
        mask = None if image.mask is None else open_mask(image.mask)
    except (OSError, ValueError):
        return None
    if mask is None:
        return None
    step = max(_STEP, -(-max(mask.shape) // _SIDE))
    return mask[::step, ::step]


def _rectangle(box: Box) -> str:
    x0, y0, x1, y1 = box
    return svg_path([np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)])])
