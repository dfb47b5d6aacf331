"""Accuracy against speed, with size as area: an SVG that follows the page's colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.panels import text

_LINE = 15  # pixels from one line of text to the next
_GAP = 4  # between a circle and its label
_TICKS = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Point:
    """One method: its name, milliseconds of a query, accuracy, megabytes."""

    title: str
    ms: float
    accuracy: float
    megabytes: float


class Box(NamedTuple):
    """A rectangle in pixels, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two rectangles have a point in common.

        >>> Box(0, 0, 2, 2).meets(Box(1, 1, 3, 3))
        True
        """
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def within(self, other: Box) -> bool:
        """Whether this one lies wholly in another."""
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom


@dataclass(frozen=True)
class Label:
    """Where a title stands: its box, and how its text is anchored within."""

    box: Box
    anchor: str  # "start", "middle" or "end"


@dataclass(frozen=True)
class Frame:
    """The drawing's size and the area between the axes, in pixels.

    Attributes:
        width: of the drawing.
        height: of the drawing.
        letter: width of an average letter of a label.
        largest: radius of the largest circle.
    """

    width: int
    height: int
    letter: float = 7.0
    largest: float = 15.0

    @property
    def area(self) -> Box:
        """What lies between the axes."""
        return Box(52, 14, self.width - 16, self.height - 46)


WIDE, NARROW = Frame(760, 400), Frame(340, 360, 6.4, 11.0)


def plot(points: Sequence[Point], accuracy: str, frame: Frame, css_class: str) -> str:
    """The drawing as SVG; empty where there is nothing to draw.

    Args:
        points: what is shown.
        accuracy: what the vertical axis is, with its unit.
        frame: how large it is.
        css_class: the SVG's class.
    """
    if not points:
        return ""
    across, up = _log_ticks([p.ms for p in points]), _ticks([p.accuracy for p in points])
    places = [_place(point, across, up, frame) for point in points]
    largest = max(point.megabytes for point in points)
    radii = [frame.largest * math.sqrt(point.megabytes / largest) for point in points]
    labels = place_labels([p.title for p in points], places, radii, frame)
    parts = [
        _axes(across, up, accuracy, frame),
        _frontier(points, places),
        *map(_circle, points, places, radii),
        *map(_label, [p.title for p in points], places, radii, labels),
    ]
    return (
        f'<svg class="{css_class}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{text(describe(points, accuracy))}">{"".join(parts)}</svg>'
    )


def describe(points: Sequence[Point], accuracy: str) -> str:
    """The plot in words, for those who do not see it."""
    facts = "; ".join(
        f"{p.title}: {p.ms:.2f} ms, {p.accuracy:.1f}, {p.megabytes:.2f} MB"
        for p in sorted(points, key=lambda p: -p.accuracy)
    )
    return f"{accuracy} against milliseconds per text query, circles as large as the files. {facts}"


def place_labels(
    titles: Sequence[str],
    places: Sequence[tuple[float, float]],
    radii: Sequence[float],
    frame: Frame,
) -> list[Label]:
    """A place beside its circle for each title, free of circles and other titles where possible.

    Args:
        titles: what is written.
        places: centres of the circles, (x, y) in pixels.
        radii: of the circles.
        frame: what all must stay within.
    """
    circles = [Box(x - r, y - r, x + r, y + r) for (x, y), r in zip(places, radii, strict=True)]
    placed: dict[int, Label] = {}
    # From the top down, so that a crowd spreads in one direction.
    for i in sorted(range(len(titles)), key=lambda i: places[i][1]):
        taken = circles[:i] + circles[i + 1 :] + [label.box for label in placed.values()]
        candidates = list(_candidates(titles[i], circles[i], frame))
        inside = [label for label in candidates if label.box.within(frame.area)] or candidates
        free = (label for label in inside if not any(label.box.meets(box) for box in taken))
        placed[i] = next(free, inside[0])
    return [placed[i] for i in range(len(titles))]


def frontier(points: Sequence[Point]) -> list[int]:
    """The points that no other beats in speed and accuracy both, from fast to slow.

    >>> frontier([Point("a", 1, 10, 1), Point("b", 2, 9, 1), Point("c", 3, 12, 1)])
    [0, 2]
    """
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i].ms, -points[i].accuracy)):
        if not kept or points[i].accuracy > points[kept[-1]].accuracy:
            kept.append(i)
    return kept


def _candidates(title: str, circle: Box, frame: Frame) -> Iterator[Label]:
    """Places for a title, the better ones first: beside, above, below, then further away."""
    width = len(title) * frame.letter
    x, y = (circle.left + circle.right) / 2, (circle.top + circle.bottom) / 2
    half = _LINE / 2
    for away in range(0, 90, 6):
        for lift in (0, -away, away):
            right, left = circle.right + _GAP, circle.left - _GAP
            yield Label(Box(right, y + lift - half, right + width, y + lift + half), "start")
            yield Label(Box(left - width, y + lift - half, left, y + lift + half), "end")
        top, bottom = circle.top - _GAP - away, circle.bottom + _GAP + away
        yield Label(Box(x - width / 2, top - _LINE, x + width / 2, top), "middle")
        yield Label(Box(x - width / 2, bottom, x + width / 2, bottom + _LINE), "middle")


def _ticks(values: Sequence[float]) -> list[float]:
    """About five round numbers that the values lie between."""
    low, high = min(values), max(values)
    rough = max(high - low, 1.0) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(t for t in (*_TICKS, 10.0) if t * power >= rough)
    first, last = math.floor((low - step / 4) / step), math.ceil((high + step / 4) / step)
    return [step * i for i in range(first, last + 1)]


def _log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... as far as the values lie between them, with some room."""
    every = [10.0**power * tick for power in range(-4, 6) for tick in _TICKS]
    low = max((i for i, tick in enumerate(every) if tick <= min(values) * 0.9), default=0)
    high = next((i for i, tick in enumerate(every) if tick >= max(values) * 1.1), len(every) - 1)
    return every[low : high + 1]


def _place(
    point: Point, across: Sequence[float], up: Sequence[float], frame: Frame
) -> tuple[float, float]:
    """Where a point is drawn."""
    return _x(point.ms, across, frame), _y(point.accuracy, up, frame)


def _x(ms: float, ticks: Sequence[float], frame: Frame) -> float:
    share = math.log(ms / ticks[0]) / math.log(ticks[-1] / ticks[0])
    return frame.area.left + share * (frame.area.right - frame.area.left)


def _y(accuracy: float, ticks: Sequence[float], frame: Frame) -> float:
    share = (accuracy - ticks[0]) / (ticks[-1] - ticks[0])
    return frame.area.bottom - share * (frame.area.bottom - frame.area.top)


def _axes(across: Sequence[float], up: Sequence[float], accuracy: str, frame: Frame) -> str:
    area, parts = frame.area, []
    for tick in up:
        y = _y(tick, up, frame)
        parts.append(f'<line x1="{area.left}" y1="{y:.1f}" x2="{area.right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{area.left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in across:
        x = _x(tick, across, frame)
        parts.append(f'<line x1="{x:.1f}" y1="{area.top}" x2="{x:.1f}" y2="{area.bottom}"/>')
        said = f'<text x="{x:.1f}" y="{area.bottom + 18}" text-anchor="middle">{tick:g}</text>'
        parts.append(said)
    middle = (area.top + area.bottom) / 2
    parts.append(
        f'<text x="{(area.left + area.right) / 2}" y="{frame.height - 8}" text-anchor="middle">'
        "ms per text query, logarithmic</text>"
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{text(accuracy)}</text>"
    )
    return f'<g class="pv-axes">{"".join(parts)}</g>'


def _frontier(points: Sequence[Point], places: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{places[i][0]:.1f},{places[i][1]:.1f}" for i in frontier(points))
    return f'<polyline class="pv-frontier" points="{path}"/>'


def _circle(point: Point, place: tuple[float, float], radius: float) -> str:
    x, y = place
    fact = f"{point.title}: {point.ms:.2f} ms, {point.accuracy:.1f}, {point.megabytes:.2f} MB"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{text(fact)}</title></circle>'
    )


def _label(title: str, place: tuple[float, float], radius: float, label: Label) -> str:
    """A title, and a line to its circle where it stands apart."""
    box, (x, y) = label.box, place
    at = {"start": box.left, "end": box.right, "middle": (box.left + box.right) / 2}[label.anchor]
    base = box.bottom - 4
    middle = (box.top + box.bottom) / 2
    apart = math.hypot(at - x, middle - y) > radius + _LINE + _GAP
    line = ""
    if apart:
        line = (
            f'<line class="pv-leader" x1="{x:.1f}" y1="{y:.1f}" x2="{at:.1f}" y2="{middle:.1f}"/>'
        )
    return (
        f'{line}<text class="pv-name" x="{at:.1f}" y="{base:.1f}" '
        f'text-anchor="{label.anchor}">{text(title)}</text>'
    )
