"""The headroom figure drawn: rsum against width, and what the views are like."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from models.files import replacing

Point = Mapping[str, Any]
"""A row of the table by the keys of `training.experiments.headroom.COLUMNS`."""
READINGS = {
    "best_view": ("v", "best view alone"),
    "mean_of_views": ("s", "mean of views"),
    "max_of_views": ("^", "maximum"),
    "rsum": ("o", "its own score"),
    "oracle_view": ("*", "oracle view"),
}
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f3c8d")
_GREYS = ("#999999", "#777777", "#555555")


def draw(points: Sequence[Point], path: Path) -> None:
    """Draws four panels into an SVG, the same bytes for the same numbers.

    Args:
        points: rows of the table, those of one vector first.
        path: of the SVG.
    """
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure = Figure(figsize=(12, 9.5), layout="constrained")
        (total, view), (readings, views) = figure.subplots(2, 2)
        lines = list(_lines(points))
        _draw_widths(total, lines, "total", "numbers an image")
        _draw_widths(view, lines, "dim", "numbers a view")
        _draw_readings(readings, lines)
        _draw_views(views, lines)
        handles, labels = total.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
        with replacing(path) as draft:
            figure.savefig(draft, format="svg", metadata={"Date": None})


def _lines(points: Sequence[Point]) -> Iterator[tuple[str, dict[str, Any], list[Point]]]:
    """What is one line: its name, its look, and its points from narrow to wide."""
    colors, greys, first = cycle(_COLORS), cycle(_GREYS), True
    key = lambda point: (point["curve"], point["models"])  # noqa: E731
    order = list(dict.fromkeys(map(key, points)))
    each = sorted(points, key=lambda point: (order.index(key(point)), point["dim"]))
    for (curve, models), found in groupby(each, key=key):
        if first:
            look = {"color": "black", "linewidth": 2.0}
        elif models > 1:
            look = {"color": next(greys), "linestyle": "--"}
        else:
            look = {"color": next(colors)}
        yield f"{models} {curve}" if models > 1 else curve, look, list(found)
        first = False


def _draw_widths(axes: Axes, lines: Sequence[Any], key: str, title: str) -> None:
    for name, look, points in lines:
        at, reached = [point[key] for point in points], [point["rsum"] for point in points]
        axes.plot(at, reached, label=name, marker="o", markersize=3.5, **look)
    widths = sorted({point[key] for _, _, points in lines for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks([width for width in widths if not math.log2(width) % 1] or widths)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title=f"Equal {title}", xlabel=title, ylabel="rsum")
    axes.grid(alpha=0.3)


def _draw_readings(axes: Axes, lines: Sequence[Any]) -> None:
    """Every way to read the views, at the width that most have in common."""
    several = [line for line in lines if line[2][0]["oracle_view"] is not None]
    counts = Counter(point["total"] for _, _, points in several for point in points)
    usual = counts.most_common(1)[0][0] if counts else 0
    chosen = [
        min(points, key=lambda point: (abs(math.log(point["total"] / usual)), point["total"]))
        for _, _, points in several
    ]
    for key, (marker, name) in READINGS.items():
        reached = [point[key] for point in chosen]
        axes.plot(range(len(chosen)), reached, marker, color="black", fillstyle="none", label=name)
    single = [point["rsum"] for point in lines[0][2] if point["total"] == usual]
    for reached in single:
        axes.axhline(reached, color="black", linewidth=1, label=f"one vector of {usual}")
    names = [
        f"{name}\n{point['models'] * point['views']} of {point['dim']}"
        for (name, _, _), point in zip(several, chosen, strict=True)
    ]
    axes.set_xticks(range(len(chosen)), names, rotation=35, ha="right", fontsize=8)
    axes.set(title=f"What is in the views, near {usual} numbers an image", ylabel="rsum")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)


def _draw_views(axes: Axes, lines: Sequence[Any]) -> None:
    """How alike views are, and how evenly they win; wider ones larger."""
    for _, look, points in lines:
        shown = [point for point in points if point["view_cosine"] is not None]
        at, wins = ([point[key] for point in shown] for key in ("view_cosine", "wins_top"))
        sizes = [12 * math.log2(point["dim"] + 1) for point in shown]
        axes.plot(at, wins, color=look["color"], linewidth=0.8)
        axes.scatter(at, wins, s=sizes, color=look["color"])
    axes.set(title="How alike views are, and which win (wider: larger)", ylim=(0, 103))
    axes.set(xlabel="mean cosine of two views of an image", ylabel="wins of the busiest view, %")
    axes.grid(alpha=0.3)
