"""Attention over an image, drawn so that it can be read: overlay, contours, honest label."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from typing import Literal

import numpy as np
from PIL import Image

from models.preprocess import Box

_DIMMED, _SHOWN = 0.74, 0.34  # opacity of the map where attention is least and most
_DARK = np.array((10.0, 12.0, 20.0), np.float32)  # where there is no evidence
_AGAINST = np.array((213.0, 94.0, 0.0), np.float32)  # where it speaks against: orange
_SHADE = 0.66  # how much of the image they cover
_MIDDLE = 0.42  # how far from the edge, of 1, the middle begins
_CELL = 8  # pixels that a cell is enlarged to for the browser to scale further
LEVELS = (0.25, 0.5, 0.75)  # of contours, relative to a map's highest cell


def colour(values: np.ndarray) -> np.ndarray:
    """Colours of values in 0..1, of the cividis map.

    It looks nearly alike to readers with and without colour-vision deficiency (Nunez, Anderton &
    Renslow, PLOS ONE 2018).

    Args:
        values: any shape, float.

    Returns:
        The same shape with a last axis of 3, uint8 RGB; dark blue is 0, yellow is 1.

    >>> colour(np.array([0.0, 1.0])).tolist()
    [[0, 34, 77], [253, 231, 55]]
    """
    from matplotlib import colormaps  # only when there is something to draw: it takes a while

    return colormaps["cividis"](values, bytes=True)[..., :3]


def overlay(
    image: Image.Image, attention: np.ndarray, seen: Box = (0, 0, 1, 1), *, smooth: bool = True
) -> Image.Image:
    """Lays one view's attention over its image.

    Args:
        image: RGB, any size.
        attention: (rows, columns), drawn relative to its maximum; what is negative counts 0.
        seen: the part of the image that the cells cover, relative xyxy; the rest is greyed.
        smooth: between cells; those of a sheet of frames end where a frame does.

    Returns:
        RGB of the image's size.
    """
    left, above, right, below = _pixels(seen, *image.size)
    strength = _enlarged(relative(attention), right - left, below - above, smooth)  # (h, w)
    grey = np.asarray(image.convert("L").convert("RGB"), np.float32)
    out = grey * 0.5 + 64.0
    part = np.asarray(image, np.float32)[above:below, left:right]
    opacity = (_DIMMED + (_SHOWN - _DIMMED) * strength)[..., None]
    out[above:below, left:right] = part * (1 - opacity) + colour(strength) * opacity
    return Image.fromarray(np.rint(np.clip(out, 0, 255)).astype(np.uint8))


def spotlight(
    image: Image.Image,
    evidence: np.ndarray,
    top: float,
    seen: Box = (0, 0, 1, 1),
    *,
    smooth: bool = True,
) -> Image.Image:
    """Lays evidence over an image: what speaks for the text is lit and keeps its colours.

    Args:
        image: RGB, any size.
        evidence: (rows, columns); what is negative speaks against the text and is drawn orange.
        top: the value that is lit fully, above 0.
        seen: the part of the image that the cells cover, relative xyxy.
        smooth: see `overlay`.

    Returns:
        RGB of the image's size.
    """
    left, above, right, below = _pixels(seen, *image.size)
    strength = np.clip(evidence / top, -1, 1).astype(np.float32)
    size = right - left, below - above, smooth
    lit, against = (_enlarged(np.clip(part, 0, 1), *size) for part in (strength, -strength))
    out = np.asarray(image, np.float32) * (1 - _SHADE) + _DARK * _SHADE
    part = np.asarray(image, np.float32)[above:below, left:right]
    shade = _SHADE * (1 - lit)[..., None]
    colours = _DARK + (_AGAINST - _DARK) * against[..., None]
    out[above:below, left:right] = part * (1 - shade) + colours * shade
    return Image.fromarray(np.rint(np.clip(out, 0, 255)).astype(np.uint8))


def where(evidence: np.ndarray) -> str:
    """Where most of what is positive in a map (rows, columns) lies, in words.

    >>> where(np.array([[0.9, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, -0.5]]))
    'the upper left'
    >>> where(np.zeros((2, 2)))
    'nowhere'
    """
    weights = np.clip(evidence, 0, None)
    total = float(weights.sum())
    if total <= 0:
        return "nowhere"
    places = []
    for axis, names in ((0, ("upper", "lower")), (1, ("left", "right"))):
        spread = weights.sum(axis=1 - axis)
        at = float((spread * (np.arange(len(spread)) + 0.5)).sum() / total / len(spread))  # in 0..1
        places.append(names[0] if at < _MIDDLE else names[1] if at > 1 - _MIDDLE else "")
    words = " ".join(filter(None, places))
    if not words:
        return "the middle"
    return f"the {words}" if all(places) else f"the {words} part"


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
    return [outline(strength, level) for level in LEVELS]


def outline(values: np.ndarray, level: float) -> str:
    """The lines along which values pass a level, as an SVG path in a box of 100 x 100.

    Args:
        values: (H, W) samples, each at the middle of its pixel.
        level: what is above it lies inside. Lines that leave the samples stay open.

    >>> outline(np.array([[0.0, 0.0, 1.0, 1.0]] * 2), 0.5)
    'M50 75L50 25'
    """
    from contourpy import contour_generator

    height, width = values.shape
    lines = contour_generator(z=values).lines(level)
    return svg_path((np.asarray(line) + 0.5) / (width, height) for line in lines)


def svg_path(lines: Iterable[np.ndarray], size: float = 100.0) -> str:
    """Lines as the `d` of an SVG path in a box of `size` x `size`.

    Args:
        lines: each (n, 2) points x, y, relative to the box.
        size: of the box.

    >>> svg_path([np.array([(0.0, 0.5), (0.25, 1.0)])])
    'M0 50L25 100'
    """
    return "".join(
        "M" + "L".join(f"{x:g} {y:g}" for x, y in (line * size).round(1).tolist()) for line in lines
    )


def data_uri(image: Image.Image, kind: Literal["PNG", "WEBP"] = "PNG") -> str:
    """An image as an address that holds the image itself."""
    held = io.BytesIO()
    image.save(held, kind, **({"optimize": True} if kind == "PNG" else {"quality": 84}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(held.getvalue()).decode()}"


def _pixels(seen: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """A part of an image in whole pixels, left, above, right, below, at least one each way."""
    left, above = round(seen[0] * width), round(seen[1] * height)
    right, below = round(seen[2] * width), round(seen[3] * height)
    return left, above, max(right, left + 1), max(below, above + 1)


def _enlarged(strength: np.ndarray, width: int, height: int, smooth: bool = True) -> np.ndarray:
    """Values (rows, columns) in 0..1 over (height, width) pixels, smooth between cells or not."""
    cells = Image.fromarray(strength)
    between = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.clip(np.asarray(cells.resize((width, height), between)), 0.0, 1.0)


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
