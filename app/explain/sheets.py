"""Clips that are read as sets, as one picture: a sheet of frames, row by row in order of time.

What a frame brings to a score, or to a view, has its place there as a cell has in an image.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from app.gallery.sampling import Moment
from app.search.retriever import Retriever

_SIDE = 640  # pixels of a sheet's longer side, about
_LARGEST = 320  # of a frame's
_GAP = 2  # between frames


def shape(count: int) -> tuple[int, int]:
    """Rows and columns of a sheet of so many frames.

    >>> shape(1), shape(10), shape(16)
    ((1, 1), (3, 4), (4, 4))
    """
    columns = math.ceil(math.sqrt(count))
    return -(-count // columns), columns


def on_sheet(retriever: Retriever, values: Tensor) -> Tensor:
    """Values of the features of sets as maps over their sheets.

    Args:
        retriever: of the pack.
        values: (..., T * n) for T frames of n features; a frame's summary is left out, as it has
            no place.

    Returns:
        (..., rows, columns).
    """
    frames = retriever.runtime.on_grid(values.unflatten(-1, (-1, len(retriever.runtime.boxes))))
    count = frames.shape[-3]  # (..., T, r, c)
    rows, columns = shape(count)
    filled = torch.nn.functional.pad(frames, (0, 0, 0, 0, 0, rows * columns - count))
    tiles = filled.unflatten(-3, (rows, columns)).transpose(-3, -2)  # (..., rows, r, columns, c)
    return tiles.flatten(-4, -3).flatten(-2)


def by_frame(maps: np.ndarray, count: int) -> np.ndarray:
    """What each of so many frames has of maps (..., rows, columns) over a sheet: (..., T).

    >>> by_frame(np.array([[1.0, 2.0], [3.0, 0.0]]), 3).tolist()
    [1.0, 2.0, 3.0]
    """
    rows, columns = shape(count)
    *rest, high, wide = maps.shape
    tiles = maps.reshape(*rest, rows, high // rows, columns, wide // columns)
    return tiles.sum(axis=(-3, -1)).reshape(*rest, -1)[..., :count]


def where(frames: np.ndarray, seconds: Sequence[float]) -> str:
    """The frame that brings most of (T,), in words.

    >>> where(np.array([0.1, 0.4, 0.2]), (0.2, 0.6, 1.0))
    'the frame at 0.6 s'
    """
    best = int(frames.argmax())
    return f"the frame at {seconds[best]:.1f} s" if frames[best] > 0 else "nowhere"


def moments(retriever: Retriever, image_id: int) -> tuple[Moment, ...]:
    """When the frames are shown that are read with an image; none with a still one."""
    ids = retriever.index.clips.read_with(image_id)
    return tuple(when for one in ids if (when := retriever.image(one).moment) is not None)


def draw(retriever: Retriever, image_id: int) -> Image.Image:
    """The sheet of the frames that are read with an image, each as far as the encoder sees it.

    Raises:
        ValueError: none of them can be opened.
    """
    ids = retriever.index.clips.read_with(image_id)
    rows, columns = shape(len(ids))
    side = min(_LARGEST, _SIDE // columns)
    sheet = Image.new("RGB", (columns * side, rows * side))
    font = ImageFont.load_default(max(10, side // 11))
    small, trouble = retriever.thumbnails(list(dict.fromkeys(ids)))
    if not small:
        raise ValueError(trouble or f"{retriever.image(image_id).file} cannot be opened any more")
    for place, one in enumerate(ids):
        row, column = divmod(place, columns)
        if one not in small:
            continue
        with Image.open(small[one]) as image:
            left, top, right, bottom = retriever.info.preprocess.visible_box(*image.size)
            box = (
                left * image.width,
                top * image.height,
                right * image.width,
                bottom * image.height,
            )
            tile = image.convert("RGB").resize((side - _GAP, side - _GAP), box=box)
        if when := retriever.image(one).moment:
            pen, words = ImageDraw.Draw(tile), f"{when.seconds:.1f} s"
            pen.rectangle(pen.textbbox((4, 2), words, font), "black")
            pen.text((4, 2), words, "white", font)
        sheet.paste(tile, (column * side, row * side))
    return sheet
