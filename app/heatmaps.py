"""Attention over a picture, drawn so that it can be read: overlay, scale and honest label."""

from __future__ import annotations

import base64
import io
from typing import Literal

import numpy as np
from PIL import Image

from app.contours import contours, path
from models.preprocess import Box

# Anchors of the cividis colour map (Nunez, Anderton & Renslow, PLOS ONE 2018), which looks nearly
# alike to readers with and without colour-vision deficiency; colours between are interpolated.
_CIVIDIS = np.array(
    [
        (0, 34, 78),
        (18, 53, 112),
        (59, 73, 108),
        (87, 93, 109),
        (112, 113, 115),
        (138, 134, 120),
        (165, 156, 116),
        (195, 179, 105),
        (225, 204, 85),
        (254, 232, 56),
    ],
    np.float32,
)
_DIMMED, _SHOWN = 0.74, 0.34  # opacity of the map where attention is least and most
_CELL = 8  # pixels that a cell is enlarged to for the browser to scale further
LEVELS = (0.25, 0.5, 0.75)  # of contours, relative to a map's highest cell


def colour(values: np.ndarray) -> np.ndarray:
    """Colours of values in 0..1.

    Args:
        values: any shape, float.

    Returns:
        The same shape with a last axis of 3, uint8 RGB; dark blue is 0, yellow is 1.

    >>> colour(np.array([0.0, 1.0])).tolist()
    [[0, 34, 78], [254, 232, 56]]
    """
    place = np.clip(values, 0.0, 1.0) * (len(_CIVIDIS) - 1)
    low = np.minimum(place.astype(np.int64), len(_CIVIDIS) - 2)
    share = (place - low)[..., None]
    return np.rint(_CIVIDIS[low] * (1 - share) + _CIVIDIS[low + 1] * share).astype(np.uint8)


def overlay(picture: Image.Image, attention: np.ndarray, seen: Box = (0, 0, 1, 1)) -> Image.Image:
    """Lays one view's attention over its picture.

    Args:
        picture: RGB, any size.
        attention: (rows, columns), drawn relative to its maximum; what is negative counts 0.
        seen: the part of the picture that the cells cover, relative xyxy; the rest is greyed.

    Returns:
        RGB of the picture's size.
    """
    width, height = picture.size
    left, top = round(seen[0] * width), round(seen[1] * height)
    right, bottom = max(round(seen[2] * width), left + 1), max(round(seen[3] * height), top + 1)
    strength = _enlarged(relative(attention), right - left, bottom - top)  # (h, w)
    grey = np.asarray(picture.convert("L").convert("RGB"), np.float32)
    out = grey * 0.5 + 64.0
    part = np.asarray(picture, np.float32)[top:bottom, left:right]
    opacity = (_DIMMED + (_SHOWN - _DIMMED) * strength)[..., None]
    out[top:bottom, left:right] = part * (1 - opacity) + colour(strength) * opacity
    return Image.fromarray(np.rint(np.clip(out, 0, 255)).astype(np.uint8))


def relative(attention: np.ndarray) -> np.ndarray:
    """A map (rows, columns) relative to its highest cell, in 0..1; what is negative becomes 0."""
    highest = float(attention.max(initial=0.0))
    if highest <= 0:
        return np.zeros(attention.shape, np.float32)
    return np.clip(attention / highest, 0.0, 1.0).astype(np.float32)


def tile(attention: np.ndarray, *, smooth: bool) -> Image.Image:
    """A map by itself, in colours.

    Args:
        attention: (rows, columns), drawn relative to its highest cell.
        smooth: enlarged, between cells as `overlay` draws it; otherwise one pixel is one cell.

    Returns:
        RGB.
    """
    strength = relative(attention)
    if smooth:
        strength = _enlarged(strength, attention.shape[1] * _CELL, attention.shape[0] * _CELL)
    return Image.fromarray(colour(strength))


def isolines(attention: np.ndarray) -> list[str]:
    """SVG paths in a box of 100 x 100 around what lies above each of `LEVELS`."""
    size = attention.shape[1] * _CELL, attention.shape[0] * _CELL
    strength = _enlarged(relative(attention), *size)
    return [path(contours(strength, level)) for level in LEVELS]


def data_uri(image: Image.Image, kind: Literal["PNG", "WEBP"] = "PNG") -> str:
    """A picture as an address that holds the picture itself."""
    held = io.BytesIO()
    image.save(held, kind, **({"optimize": True} if kind == "PNG" else {"quality": 84}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(held.getvalue()).decode()}"


def _enlarged(strength: np.ndarray, width: int, height: int) -> np.ndarray:
    """Values (rows, columns) in 0..1 over (height, width) pixels, smooth between cells."""
    cells = Image.fromarray(strength)
    smooth = cells.resize((width, height), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(smooth), 0.0, 1.0)


def label(title: str, attention_is: str, attention: np.ndarray, *, shares: bool = True) -> str:
    """What a map shows, in words.

    Args:
        title: the method's.
        attention_is: `Method.attention_is`.
        attention: (rows, columns) of the view shown.
        shares: `Method.attention_sums_to_one`; otherwise the map holds cosines.

    Returns:
        One sentence for the map's caption.

    >>> label("VSE++", "each cell's share", np.array([[0.25, 0.75]]))
    "VSE++: each cell's share. The brightest of 1 x 2 cells holds 75.0 %."
    """
    rows, columns = attention.shape
    if not shares:
        highest = float(attention.max(initial=-1.0))
        return f"{title}: {attention_is}. The brightest of {rows} x {columns} cells: {highest:.2f}."
    total = float(attention.sum())
    share = float(attention.max(initial=0.0)) / total if total > 0 else 0.0
    return (
        f"{title}: {attention_is}. "
        f"The brightest of {rows} x {columns} cells holds {share:.1%}.".replace("%", " %")
    )
