"""Accuracy against speed, with size as area: drawn by matplotlib as SVG in the page's colours.

Matplotlib is imported with the first plot. What it draws has a colour of `_COLORS` for each part;
the SVG then names the page's CSS variables in their place, so that it is light or dark with the
page. Texts stay texts, in the page's font; style.css draws the methods' names over the lines.
"""

from __future__ import annotations

import io
import math
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from app.tabs.html import neutral

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = 15  # pixels from one line of text to the next
_GAP = 4  # between a circle and its label
_SVG = "http://www.w3.org/2000/svg"
_COLORS = {  # colours that stand for the page's, so none may occur twice
    "grid": ("#010101", "var(--border-color-primary)"),
    "quiet": ("#020202", "var(--body-text-color-subdued)"),
    "circle": ("#030303", "var(--primary-500)"),
    "edge": ("#040404", "var(--pv-circle-edge)"),
}
_POINT, _NAME = "point", "name"  # begin the ids of circles and of their names
_drawing = threading.Lock()  # what matplotlib reads its style from is one for all threads


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
        font: size of a label's letters.
        letter: width of an average one.
        largest: radius of the largest circle.
    """

    width: int
    height: int
    font: int = 13
    letter: float = 7.0
    largest: float = 15.0

    @property
    def area(self) -> Box:
        """What lies between the axes."""
        return Box(52, 14, self.width - 16, self.height - 46)


WIDE, NARROW = Frame(760, 400), Frame(340, 360, 12, 6.4, 11.0)


def plot(points: Sequence[Point], accuracy: str, frame: Frame, css_class: str) -> Markup:
    """The drawing as SVG to stand within a page.

    Args:
        points: what is shown, one at least.
        accuracy: what the vertical axis is, with its unit.
        frame: how large it is.
        css_class: the SVG's class; no other on the page may have it.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with _drawing, mpl.rc_context():
        mpl.rcParams["svg.fonttype"] = "none"
        mpl.rcParams["svg.hashsalt"] = css_class
        mpl.rcParams["text.parse_math"] = False
        figure = Figure(figsize=(frame.width / 72, frame.height / 72), dpi=72)  # points are pixels
        _draw(figure, points, accuracy, frame)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", transparent=True)
    tips = {f"{_POINT}{i}": _fact(point) for i, point in enumerate(points)}
    return _for_the_page(drawn.getvalue(), css_class, describe(points, accuracy), tips)


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
        color=_COLORS["quiet"][0],
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
            facecolor=_COLORS["circle"][0],
            edgecolor=_COLORS["edge"][0],
            linewidth=1,
            zorder=2.5,
            clip_on=False,
        )
        circle.set_gid(f"{_POINT}{i}")
    upwards = axes.transData.transform([(point.ms, point.accuracy) for point in points])
    places = [(float(x), frame.height - float(y)) for x, y in upwards]
    labels = place_labels([point.title for point in points], places, radii, frame)
    for point, place, radius, label in zip(points, places, radii, labels, strict=True):
        _name(axes, point, place, radius, label, frame)


def _axes(figure: Figure, points: Sequence[Point], accuracy: str, frame: Frame) -> Axes:
    """Axes with room around the points: milliseconds across, on a logarithmic scale."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    area, grid, quiet = frame.area, _COLORS["grid"][0], _COLORS["quiet"][0]
    left, bottom = area.left / frame.width, 1 - area.bottom / frame.height
    width, height = (area.right - area.left) / frame.width, (area.bottom - area.top) / frame.height
    axes = figure.add_axes((left, bottom, width, height))
    times, reached = [point.ms for point in points], [point.accuracy for point in points]
    room = max(max(reached) - min(reached), 1.0) / 8
    axes.set_xscale("log")
    axes.set_xlim(min(times) / 1.25, max(times) * 1.25)
    axes.set_ylim(min(reached) - room, max(reached) + room)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("ms per text query, logarithmic", fontsize=12, color=quiet, labelpad=6)
    axes.set_ylabel(accuracy, fontsize=12, color=quiet, labelpad=6)
    axes.tick_params(length=0, pad=6, labelsize=12, labelcolor=quiet)
    axes.grid(color=grid, linewidth=1, clip_on=False)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _name(
    axes: Axes, point: Point, place: tuple[float, float], radius: float, label: Label, frame: Frame
) -> None:
    """A title, and a line to its circle where it stands apart."""
    box = label.box
    across = {"start": box.left, "end": box.right, "middle": (box.left + box.right) / 2}
    at = across[label.anchor], frame.height - (box.top + box.bottom) / 2
    apart = math.dist(at, (place[0], frame.height - place[1])) > radius + _LINE + _GAP
    line = {"arrowstyle": "-", "color": _COLORS["quiet"][0], "shrinkA": 0, "shrinkB": 0}
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
    name.set_gid(_NAME)


def _for_the_page(drawn: bytes, css_class: str, label: str, tips: dict[str, str]) -> Markup:
    """Matplotlib's SVG document as an element of a page.

    Args:
        drawn: the document.
        css_class: becomes the element's class and begins every id in it.
        label: the drawing in words.
        tips: what a pointer over the group of an id shows.
    """
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ET.fromstring(drawn)
    for unwanted in ("metadata", "defs"):  # of the document; the style in it would hold page-wide
        for element in root.findall(f"{{{_SVG}}}{unwanted}"):
            root.remove(element)
    for side in ("width", "height"):
        del root.attrib[side]
    root.attrib |= {"class": css_class, "role": "img", "aria-label": label}
    for group in root.iter(f"{{{_SVG}}}g"):
        name = group.attrib.pop("id", "")  # the same in every drawing; nothing refers to them
        if name in tips:
            title = ET.Element(f"{{{_SVG}}}title")
            title.text = tips[name]
            group.insert(0, title)
            group.set("class", "pv-point")
        elif name == _NAME:
            group.set("class", "pv-name")
    svg = ET.tostring(root, "unicode")
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    for stand_in, wanted in _COLORS.values():
        svg = svg.replace(stand_in, wanted)
    return neutral(svg)


def _fact(point: Point) -> str:
    return f"{point.title}: {point.ms:.2f} ms, {point.accuracy:.1f}, {point.megabytes:.2f} MB"
