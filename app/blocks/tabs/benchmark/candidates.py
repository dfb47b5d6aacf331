"""The time of a query against the number of images, a line a method, named where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from app.blocks.tabs.benchmark.svg import COLORS, NAME, POINT, Frame, drawn, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINE = 16  # pixels from one name to the next
_GAP = 14  # between where lines end and their names
_DIGIT = 8  # pixels


@dataclass(frozen=True)
class Line:
    """One method: its name, and milliseconds of a query for each number of images."""

    title: str
    ms: tuple[float, ...]


def plot(lines: Sequence[Line], images: Sequence[int], frame: Frame, css_class: str) -> Markup:
    """The drawing as SVG to stand within a page.

    Args:
        lines: what is shown, one at least.
        images: how many are searched, at each point of the lines.
        frame: how large it is.
        css_class: the SVG's class; no other on the page may have it.
    """
    slow_first = sorted(lines, key=lambda line: -line.ms[-1])
    facts = [_fact(line, images) for line in slow_first]
    words = f"Milliseconds per text query against images searched. {'; '.join(facts)}"
    tips = {f"{POINT}{i}": fact for i, fact in enumerate(facts)}
    return drawn(
        lambda figure: _draw(figure, slow_first, images, frame), frame, css_class, words, tips
    )


def apart(heights: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Heights moved as little as needed to stand apart, within limits where they fit.

    Args:
        heights: highest first.
        least: from one to the next.
        low: of the lowest.
        high: of the highest.

    >>> apart([9.0, 8.5, 1.0], 2.0, 0.0, 10.0)
    [9.75, 7.75, 1.0]
    """
    groups: list[list[float]] = []  # of heights that touch, each around its own mean
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _bottom(groups[-2], least) - least < _top(groups[-1], least):
            touching = groups.pop()
            groups[-1] += touching
    placed = [_top(group, least) - i * least for group in groups for i in range(len(group))]
    ceiling = [high - i * least for i in range(len(placed))]
    floor = [low + i * least for i in range(len(placed))][::-1]
    return [max(min(y, top), bottom) for y, top, bottom in zip(placed, ceiling, floor, strict=True)]


def _top(group: Sequence[float], least: float) -> float:
    return sum(group) / len(group) + (len(group) - 1) * least / 2


def _bottom(group: Sequence[float], least: float) -> float:
    return sum(group) / len(group) - (len(group) - 1) * least / 2


def _draw(figure: Figure, lines: Sequence[Line], images: Sequence[int], frame: Frame) -> None:
    """Axes, lines and their names; lines the slowest first."""
    room = max(len(line.title) for line in lines) * frame.letter + _GAP
    titles = "pictures searched, logarithmic", "ms per text query, logarithmic"
    axes = plain_axes(figure, frame, titles, {"x": (1.0,), "y": (1.0,)}, (_DIGIT, room))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="y", pad=3)
    axes.yaxis.labelpad = 1  # beside times of up to five digits
    times = [ms for line in lines for ms in line.ms]
    axes.set_xlim(images[0], images[-1])
    axes.set_ylim(min(times) / 1.5, max(times) * 1.5)
    ends = [float(axes.transData.transform((images[-1], line.ms[-1]))[1]) for line in lines]
    low, high = (frame.height - side for side in (frame.area.bottom, frame.area.top))
    across = frame.area.right - room
    for i, (line, end, height) in enumerate(
        zip(lines, ends, apart(ends, _LINE, low, high), strict=True)
    ):
        (drawn_line,) = axes.plot(
            images, line.ms, color=COLORS["circle"][0], linewidth=1.75, marker="o", markersize=4
        )
        drawn_line.set_gid(f"{POINT}{i}")
        drawn_line.set_clip_on(False)
        name = axes.annotate(
            line.title,
            (across + 4, end),
            (across + _GAP, height),
            xycoords="figure pixels",
            textcoords="figure pixels",
            fontsize=frame.font,
            verticalalignment="center_baseline",
            arrowprops={"arrowstyle": "-", "color": COLORS["quiet"][0], "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )
        name.set_gid(NAME)


def _fact(line: Line, images: Sequence[int]) -> str:
    """A line in words, as a pointer over it shows."""
    times = ", ".join(
        f"{ms:.3g} ms for {count:,}" for ms, count in zip(line.ms, images, strict=True)
    )
    return f"{line.title}: {times}"
