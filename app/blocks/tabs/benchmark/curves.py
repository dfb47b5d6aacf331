"""Small curves of trainings, as a table of methods: how the loss fell and rsum rose."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.blocks.tabs.html import render
from app.packs.curves import Points, Training

WIDTH, HEIGHT, _EDGE = 120, 28, 3  # of a curve, and how far it stays from the edge, in pixels


@dataclass(frozen=True)
class Curve:
    """One curve.

    Attributes:
        words: its first and last value.
        line: the points of a polyline, as SVG writes them.
        end: its last point.
    """

    words: str
    line: str
    end: tuple[float, float]


@dataclass(frozen=True)
class Row:
    """A method's training: its title, length, and curves of loss and rsum."""

    title: str
    epochs: int
    minutes: float
    curves: tuple[Curve, Curve]


def trainings(found: Sequence[Training], titles: Mapping[str, str]) -> Markup:
    """The table; nothing where there are no logs.

    Args:
        found: the trainings.
        titles: what people call each method.
    """
    if not found:
        return Markup()
    rows = [
        Row(
            titles[training.name],
            training.epochs,
            training.minutes,
            (curve(training.loss, logarithmic=True), curve(training.rsum)),
        )
        for training in found
    ]
    return render("benchmark/curves", rows=rows, width=WIDTH, height=HEIGHT)


def curve(points: Points, *, logarithmic: bool = False) -> Curve:
    """A curve between the lowest and the highest of its values.

    Args:
        points: (epoch, value), at least one.
        logarithmic: by the logarithms of values, where all are positive.
    """
    epochs, values = [epoch for epoch, _ in points], [value for _, value in points]
    heights = values
    if logarithmic and min(values) > 0:
        heights = [math.log(value) for value in values]
    across = _spread(epochs, WIDTH)
    places = [(x, HEIGHT - y) for x, y in zip(across, _spread(heights, HEIGHT), strict=True)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    return Curve(f"{_shown(values[0])} → {_shown(values[-1])}", line, (round(x, 1), round(y, 1)))


def _spread(values: Sequence[float], size: int) -> list[float]:
    """Values from the lowest at one edge to the highest at the other; equal ones in the middle."""
    low, span = min(values), max(values) - min(values)
    room = size - 2 * _EDGE
    return [_EDGE + room * ((value - low) / span if span else 0.5) for value in values]


def _shown(value: float) -> str:
    """A number with about four digits.

    >>> [_shown(value) for value in (2378.86, 530.74, 0.14179)]
    ['2,379', '530.7', '0.1418']
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"
