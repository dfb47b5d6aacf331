"""Matrices, curves and numbers as tables and SVG, each with what it means."""

from itertools import groupby

import numpy as np
import torch
from markupsafe import Markup

from app.blocks.tabs.html import render, scale
from app.explain.heatmaps import colour
from app.explain.look import Look
from models.panel import Panel

_MOST_NUMBERED = 8  # columns that leave room for numbers
_LUMINANCE, _DARK = np.array([0.2126, 0.7152, 0.0722]), 120  # of a colour; white letters below it
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 320, 150, 38, 18  # of a chart, and its axes
# colours of lines that readers with colour-vision deficiency tell apart (Okabe and Ito, 2008)
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_DASHES = ("none", "7 3", "2 3", "9 3 2 3")


def note(sentence: str) -> Markup:
    """A smaller remark."""
    return render("views/note", sentence=sentence)


def cards(look: Look) -> Markup:
    """Everything there is to see beside the maps: similarities, then what the method shows."""
    drawn = []
    if len(look.similarity) > 1:
        drawn.append(_similarity("The picture's views", "view", look.similarity))
    if look.text_similarity is not None and len(look.text_similarity) > 1:
        drawn.append(_similarity("The text's views", "text view", look.text_similarity))
    for kind, group in groupby(look.panels, key=lambda panel: panel.kind):
        panels = list(group)
        if kind == "number":
            # each meaning once, where several numbers share it
            meanings = " ".join(dict.fromkeys(panel.meaning for panel in panels))
            drawn.append(("In numbers", render("views/numbers", panels=panels), meanings))
        else:
            chart = matrix if kind == "matrix" else curves
            drawn += [(panel.title, chart(panel), panel.meaning) for panel in panels]
    if not drawn:
        return note("One view, pooled in a fixed way: there is nothing else to show.")
    return render(
        "views/cards", cards=[(title, body, note(meaning)) for title, body, meaning in drawn]
    )


def matrix(panel: Panel, *, name_rows: bool = False) -> Markup:
    """A table with a colour for each value; numbers too, where there is room.

    Args:
        panel: of kind "matrix".
        name_rows: rows have their names even where columns have room for their numbers only.
    """
    values = panel.values.float().cpu().numpy()  # (R, C)
    low, high = panel.limits or (float(values.min()), float(values.max()))
    shades = colour((values - low) / max(high - low, 1e-9))  # (R, C, 3)
    return render(
        "views/matrix",
        panel=panel,
        values=values.tolist(),
        shades=shades.tolist(),
        dark=(shades @ _LUMINANCE < _DARK).tolist(),  # (R, C)
        numbered=values.shape[1] <= _MOST_NUMBERED,
        name_rows=name_rows,
        scale=scale(_short(low), _short(high)),
    )


def curves(panel: Panel) -> Markup:
    """One line for each row, over the columns in order."""
    values = panel.values.float().cpu().numpy()  # (L, P)
    low, high = panel.limits or (min(0.0, float(values.min())), float(values.max()))
    if high <= low:
        high = low + 1.0
    base, right = _HEIGHT - _BOTTOM, _WIDTH - 6
    x = np.linspace(_LEFT, right, values.shape[1]) if values.shape[1] > 1 else np.array([180])
    y = base - (values - low) / (high - low) * (base - 8)  # (L, P)
    lines = [
        {
            "name": name,
            "points": " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, heights, strict=True)),
            "colour": _COLOURS[row % len(_COLOURS)],
            "dashes": _DASHES[row % len(_DASHES)],
        }
        for row, (name, heights) in enumerate(zip(panel.rows, y, strict=True))
    ]
    return render(
        "views/curves",
        panel=panel,
        lines=lines,
        label=_in_words(panel, values),
        size=(_WIDTH, _HEIGHT),
        box=(_LEFT, right, base),
        limits=(_short(low), _short(high)),
    )


def _in_words(panel: Panel, values: np.ndarray) -> str:
    """What a reader who does not see the curves should know of them."""
    lines = [
        f"{name} is highest at {panel.columns[int(line.argmax())]} with {line.max():.3f} and "
        f"lowest at {panel.columns[int(line.argmin())]} with {line.min():.3f}"
        for name, line in zip(panel.rows, values, strict=True)
    ]
    return f"{panel.title}: {'; '.join(lines)}"


def _short(value: float) -> str:
    """A number for an axis.

    >>> _short(0.12345), _short(-1.0)
    ('0.123', '-1')
    """
    return f"{value:.3g}"


def _similarity(title: str, item: str, cosines: np.ndarray) -> tuple[str, Markup, str]:
    """A card's title, table and meaning."""
    count = len(cosines)
    names = tuple(f"{item} {place + 1}" for place in range(count))
    apart = cosines[~np.eye(count, dtype=bool)]
    first, second = np.unravel_index((cosines - 2 * np.eye(count)).argmax(), cosines.shape)
    meaning = (
        "The cosine between every two of them; 1 is the same embedding. "
        f"{apart.mean():.2f} on average"
    )
    if count > 2:
        meaning += f", at most {apart.max():.2f} between {names[first]} and {names[second]}"
    panel = Panel("matrix", title, "", torch.from_numpy(cosines), names, names, limits=(-1.0, 1.0))
    return title, matrix(panel), f"{meaning}."
