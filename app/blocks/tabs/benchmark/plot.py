"""Accuracy against speed, with size as area; style.css draws the methods' names over the lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from app.blocks.tabs.benchmark.svg import COLORS, NAME, POINT, Box, Frame, drawn, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = 15  # pixels from one line of text to the next
_GAP = 4  # between a circle and its label


@dataclass(frozen=True)
class Point:
    """One method: its name, milliseconds of a query, accuracy, megabytes."""

    title: str
    ms: float
    accuracy: float
    megabytes: float


@dataclass(frozen=True)
class Label:
    """Where a title stands: its box, and how its text is anchored within."""

    box: Box
    anchor: str  # "start", "middle" or "end"


def plot(points: Sequence[Point], accuracy: str, frame: Frame, css_class: str) -> Markup:
    """The drawing as SVG to stand within a page.

    Args:
        points: what is shown, one at least.
        accuracy: what the vertical axis is, with its unit.
        frame: how large it is.
        css_class: the SVG's class; no other on the page may have it.
    """
    tips = {f"{POINT}{i}": _fact(point) for i, point in enumerate(points)}
    words = describe(points, accuracy)
    return drawn(
        lambda figure: _draw(figure, points, accuracy, frame), frame, css_class, words, tips
    )


def describe(points: Sequence[Point], accuracy: str) -> str:
    """The plot in words, for those who do not see it."""
    facts = "; ".join(map(_fact, sorted(points, key=lambda p: -p.accuracy)))
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
    best: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i].ms, -points[i].accuracy)):
        if not best or points[i].accuracy > points[best[-1]].accuracy:
            best.append(i)
    return best


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


def _draw(figure: Figure, points: Sequence[Point], accuracy: str, frame: Frame) -> None:
    """Axes, the frontier, circles and their names."""
    axes = _axes(figure, points, accuracy, frame)
    best = [points[i] for i in frontier(points)]
    axes.plot(
        [p.ms for p in best],
        [p.accuracy for p in best],
        color=COLORS["quiet"][0],
        linewidth=1.5,
        dashes=(4, 3),
        clip_on=False,
    )
    largest = max(point.megabytes for point in points)
    radii = [frame.largest * math.sqrt(point.megabytes / largest) for point in points]
    for i, (point, radius) in enumerate(zip(points, radii, strict=True)):
        circle = axes.scatter(
            point.ms,
            point.accuracy,
            s=(2 * radius) ** 2,
            facecolor=COLORS["circle"][0],
            edgecolor=COLORS["edge"][0],
            linewidth=1,
            zorder=2.5,
            clip_on=False,
        )
        circle.set_gid(f"{POINT}{i}")
    upwards = axes.transData.transform([(point.ms, point.accuracy) for point in points])
    places = [(float(x), frame.height - float(y)) for x, y in upwards]
    labels = place_labels([point.title for point in points], places, radii, frame)
    for point, place, radius, label in zip(points, places, radii, labels, strict=True):
        _name(axes, point, place, radius, label, frame)


def _axes(figure: Figure, points: Sequence[Point], accuracy: str, frame: Frame) -> Axes:
    """Axes with room around the points: milliseconds across, on a logarithmic scale."""
    from matplotlib.ticker import MaxNLocator

    titles = "ms per text query, logarithmic", accuracy
    axes = plain_axes(figure, frame, titles, {"x": (1.0, 2.0, 3.0, 5.0)})
    times, reached = [point.ms for point in points], [point.accuracy for point in points]
    room = max(max(reached) - min(reached), 1.0) / 8
    axes.set_xlim(min(times) / 1.25, max(times) * 1.25)
    axes.set_ylim(min(reached) - room, max(reached) + room)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return axes


def _name(
    axes: Axes, point: Point, place: tuple[float, float], radius: float, label: Label, frame: Frame
) -> None:
    """A title, and a line to its circle where it stands apart."""
    box = label.box
    across = {"start": box.left, "end": box.right, "middle": (box.left + box.right) / 2}
    at = across[label.anchor], frame.height - (box.top + box.bottom) / 2
    apart = math.dist(at, (place[0], frame.height - place[1])) > radius + _LINE + _GAP
    line = {"arrowstyle": "-", "color": COLORS["quiet"][0], "shrinkA": 0, "shrinkB": 0}
    name = axes.annotate(
        point.title,
        (point.ms, point.accuracy),
        at,
        textcoords="figure pixels",
        fontsize=frame.font,
        horizontalalignment={"start": "left", "end": "right", "middle": "center"}[label.anchor],
        verticalalignment="center_baseline",
        arrowprops=line if apart else None,
        annotation_clip=False,
    )
    name.set_gid(NAME)


def _fact(point: Point) -> str:
    return f"{point.title}: {point.ms:.2f} ms, {point.accuracy:.1f}, {point.megabytes:.2f} MB"
