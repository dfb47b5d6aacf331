"""Matrices, curves and numbers as HTML and SVG, each with what it means."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from app.heatmaps import colour
from app.inside import Look
from app.panels import text
from app.tabs.views.panel import note, scale
from models.panel import Panel

_MOST_NUMBERED = 8  # columns that leave room for numbers
_LUMINANCE, _DARK = np.array([0.2126, 0.7152, 0.0722]), 120  # of a colour; white letters below it
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 320, 150, 38, 18  # of a chart, and its axes
# colours of lines that readers with colour-vision deficiency tell apart (Okabe and Ito, 2008)
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_DASHES = ("none", "7 3", "2 3", "9 3 2 3")


def cards(look: Look) -> str:
    """Everything there is to see beside the maps: similarities, then what the method shows."""
    drawn = []
    if len(look.similarity) > 1:
        drawn.append(_similarity("The picture's views", "view", look.similarity))
    if look.text_similarity is not None and len(look.text_similarity) > 1:
        drawn.append(_similarity("The text's views", "text view", look.text_similarity))
    for kind, group in groupby(look.panels, key=lambda panel: panel.kind):
        panels = list(group)
        if kind == "number":
            drawn.append(_numbers(panels))
        else:
            chart = matrix if kind == "matrix" else curves
            drawn += [_card(panel.title, chart(panel), panel.meaning) for panel in panels]
    if not drawn:
        return note("One view, pooled in a fixed way: there is nothing else to show.")
    return f'<div class="pv-v-inside">{"".join(drawn)}</div>'


def matrix(panel: Panel, *, name_rows: bool = False) -> str:
    """A table with a colour for each value; numbers too, where there is room.

    Args:
        panel: of kind "matrix".
        name_rows: rows have their names even where columns have room for their numbers only.
    """
    values = panel.values.float().cpu().numpy()  # (R, C)
    low, high = panel.limits or (float(values.min()), float(values.max()))
    shades = colour((values - low) / max(high - low, 1e-9))  # (R, C, 3)
    letters = np.where(shades @ _LUMINANCE < _DARK, "#fff", "#111")  # (R, C)
    numbered = values.shape[1] <= _MOST_NUMBERED
    heads = "".join(
        f'<th scope="col" title="{text(name)}">{text(name) if numbered else place}</th>'
        for place, name in enumerate(panel.columns, start=1)
    )
    rows = []
    for r, name in enumerate(panel.rows):
        shown = text(name) if numbered or name_rows else r + 1
        cells = "".join(
            f"<td{' class=pv-v-marked' if (r, c) in panel.marks else ''} "
            f'title="{text(name)}, {text(column)}: {values[r, c]:.3f}" '
            f'style="background:rgb{tuple(shades[r, c].tolist())};color:{letters[r, c]}">'
            f"{_inner(float(values[r, c]), (r, c) in panel.marks, numbered)}</td>"
            for c, column in enumerate(panel.columns)
        )
        rows.append(f'<tr><th scope="row" title="{text(name)}">{shown}</th>{cells}</tr>')
    kind = "" if numbered else " pv-v-dense"
    return (
        f'<div class="pv-v-scroll" tabindex="0" role="group" aria-label="{text(panel.title)}">'
        f'<table class="pv-v-matrix{kind}"><thead><tr><td></td>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{scale(_short(low), _short(high))}"
    )


def _inner(value: float, marked: bool, numbered: bool) -> str:
    """What stands in a cell; where there is no room, it is there to be read aloud."""
    said = f"{'★ ' if marked else ''}{value:.2f}"
    return said if numbered else f'<span class="pv-v-hidden">{said}</span>'


def curves(panel: Panel) -> str:
    """One line for each row, over the columns in order."""
    values = panel.values.float().cpu().numpy()  # (L, P)
    low, high = panel.limits or (min(0.0, float(values.min())), float(values.max()))
    if high <= low:
        high = low + 1.0
    x = np.linspace(_LEFT, _WIDTH - 6, values.shape[1]) if values.shape[1] > 1 else np.array([180])
    y = (_HEIGHT - _BOTTOM) - (values - low) / (high - low) * (_HEIGHT - _BOTTOM - 8)
    lines = "".join(
        f'<polyline points="{_points(x, y[row])}" stroke="{_COLOURS[row % len(_COLOURS)]}" '
        f'stroke-dasharray="{_DASHES[row % len(_DASHES)]}"><title>{text(name)}</title></polyline>'
        for row, name in enumerate(panel.rows)
    )
    base = _HEIGHT - _BOTTOM
    right, below = _WIDTH - 6, _HEIGHT - 4
    axes = (
        f'<path class="pv-v-axis" d="M{_LEFT} 8V{base}H{right}"/>'
        f'<text x="{_LEFT - 4}" y="14" text-anchor="end">{_short(high)}</text>'
        f'<text x="{_LEFT - 4}" y="{base}" text-anchor="end">{_short(low)}</text>'
        f'<text x="{_LEFT}" y="{below}">{text(panel.columns[0])}</text>'
        f'<text x="{right}" y="{below}" text-anchor="end">{text(panel.columns[-1])}</text>'
    )
    return (
        f'<svg class="pv-v-curves" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{text(_in_words(panel, values))}">{axes}{lines}</svg>{_key(panel.rows)}'
    )


def _in_words(panel: Panel, values: np.ndarray) -> str:
    """What a reader who does not see the curves should know of them."""
    said = [
        f"{name} is highest at {panel.columns[int(line.argmax())]} with {line.max():.3f} and "
        f"lowest at {panel.columns[int(line.argmin())]} with {line.min():.3f}"
        for name, line in zip(panel.rows, values, strict=True)
    ]
    return f"{panel.title}: {'; '.join(said)}"


def _key(names: Sequence[str]) -> str:
    """Which line is which; nothing where there is one."""
    if len(names) == 1:
        return ""
    entries = "".join(
        f'<span><svg viewBox="0 0 28 6" aria-hidden="true"><path d="M0 3H28" '
        f'stroke="{_COLOURS[row % len(_COLOURS)]}" stroke-dasharray="{_DASHES[row % len(_DASHES)]}"'
        f"/></svg>{text(name)}</span>"
        for row, name in enumerate(names)
    )
    return f'<p class="pv-v-key">{entries}</p>'


def _points(x: np.ndarray, y: np.ndarray) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _short(value: float) -> str:
    """A number for an axis.

    >>> _short(0.12345), _short(-1.0)
    ('0.123', '-1')
    """
    return f"{value:.3g}"


def _similarity(title: str, item: str, cosines: np.ndarray) -> str:
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
    return _card(title, matrix(panel), f"{meaning}.")


def _numbers(panels: Sequence[Panel]) -> str:
    """Numbers one below another; what they mean is said once where it is the same."""
    rows = "".join(
        f"<dt>{text(panel.title)}</dt><dd>{float(panel.values):.3f}</dd>" for panel in panels
    )
    meanings = " ".join(dict.fromkeys(panel.meaning for panel in panels))
    return _card("In numbers", f'<dl class="pv-v-figures">{rows}</dl>', meanings)


def _card(title: str, body: str, meaning: str) -> str:
    return f'<section class="pv-card"><h4>{text(title)}</h4>{body}{note(meaning)}</section>'
