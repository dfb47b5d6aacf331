"""Drawings of the Benchmark tab: by matplotlib, as SVG in the page's colours.

Matplotlib is imported with the first drawing. What it draws has a colour of `COLORS` for each part;
the SVG then names the page's CSS variables in their place, so that it is light or dark with the
page. Texts stay texts, in the page's font.
"""

from __future__ import annotations

import io
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from app.blocks.tabs.html import neutral

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
COLORS = {  # colours that stand for the page's, so none may occur twice
    "grid": ("#010101", "var(--border-color-primary)"),
    "quiet": ("#020202", "var(--body-text-color-subdued)"),
    "circle": ("#030303", "var(--primary-500)"),
    "edge": ("#040404", "var(--pv-circle-edge)"),
}
POINT, NAME = "point", "name"  # begin the ids of what a pointer is over, and of names
_drawing = threading.Lock()  # what matplotlib reads its style from is one for all threads


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


def drawn(
    draw: Callable[[Figure], None],
    frame: Frame,
    css_class: str,
    words: str,
    tips: Mapping[str, str],
) -> Markup:
    """A drawing as SVG to stand within a page.

    Args:
        draw: puts everything into a figure whose points are pixels.
        frame: how large it is.
        css_class: the SVG's class; no other on the page may have it.
        words: the drawing in words, for those who do not see it.
        tips: what a pointer over the group of an id shows.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with _drawing, mpl.rc_context():
        mpl.rcParams["svg.fonttype"] = "none"
        mpl.rcParams["svg.hashsalt"] = css_class
        mpl.rcParams["text.parse_math"] = False
        figure = Figure(figsize=(frame.width / 72, frame.height / 72), dpi=72)
        draw(figure)
        document = io.BytesIO()
        figure.savefig(document, format="svg", transparent=True)
    return _for_the_page(document.getvalue(), css_class, words, tips)


def plain_axes(
    figure: Figure,
    frame: Frame,
    titles: tuple[str, str],
    marks: Mapping[str, Sequence[float]],
    free: tuple[float, float] = (0, 0),
) -> Axes:
    """Axes with a grid and without lines around them.

    Args:
        figure: in which they stand.
        frame: of the drawing.
        titles: what the horizontal and the vertical axis are.
        marks: "x" or "y" where that axis is logarithmic, and which parts of a decade it names.
        free: pixels of the area that stay free on the left and on the right.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    area, grid, quiet = frame.area, COLORS["grid"][0], COLORS["quiet"][0]
    left, bottom = (area.left + free[0]) / frame.width, 1 - area.bottom / frame.height
    width, height = area.right - area.left - sum(free), area.bottom - area.top
    axes = figure.add_axes((left, bottom, width / frame.width, height / frame.height))
    for name, title in zip("xy", titles, strict=True):
        getattr(axes, f"set_{name}label")(title, fontsize=12, color=quiet, labelpad=6)
        axis = getattr(axes, f"{name}axis")
        if name in marks:
            getattr(axes, f"set_{name}scale")("log")
            axis.set_major_locator(LogLocator(subs=tuple(marks[name])))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    axes.tick_params(length=0, pad=6, labelsize=12, labelcolor=quiet)
    axes.grid(color=grid, linewidth=1, clip_on=False)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _for_the_page(document: bytes, css_class: str, label: str, tips: Mapping[str, str]) -> Markup:
    """Matplotlib's SVG document as an element of a page.

    Args:
        document: what matplotlib wrote.
        css_class: becomes the element's class and begins every id in it.
        label: the drawing in words.
        tips: what a pointer over the group of an id shows.
    """
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ET.fromstring(document)
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
        elif name == NAME:
            group.set("class", "pv-name")
    svg = ET.tostring(root, "unicode")
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    for stand_in, wanted in COLORS.values():
        svg = svg.replace(stand_in, wanted)
    return neutral(svg)
