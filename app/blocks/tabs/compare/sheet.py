"""A comparison drawn as one clean sheet, for a talk or a paper: columns, ranks, frames, matrices.

Drawn with Pillow and the font that comes with matplotlib, DejaVu Sans, so that it looks the same on
every machine. It has the letters of Europe and the Near East; a box stands for a letter it lacks.
"""

import io
import textwrap
from bisect import bisect
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from app.blocks.tabs.compare.view import Sheet
from app.gallery.images import ImageError, open_image
from app.search.comparison import Column, Comparison, Place

INK, GREY, PALE, RIGHT, WHITE = "#0f172a", "#64748b", "#e2e8f0", "#0f766e", "#ffffff"
TILE, GAP, MARGIN, GUTTER = 176, 18, 48, 52  # pixels; the gutter holds the ranks
FRAME = 7
_FOOT, _HEAD, _LINE = 34, 168, 24
_CELL, _NAMES = 58, 200
_PAPER_LINE = 22  # letters


def draw(sheet: Sheet) -> bytes:
    """The sheet as a PNG.

    Tile r of column c lies at `tile_box(c, r)`; a frame of `FRAME` pixels of the colour `RIGHT`
    lies around the images that are right.
    """
    comparison = sheet.comparison
    size = _size(comparison)
    image = Image.new("RGB", size, WHITE)
    pen = ImageDraw.Draw(image)
    _draw_title(image, pen, sheet)
    for c, column in enumerate(comparison.columns):
        _draw_head(pen, column, c)
        for place in column.places:
            _draw_tile(image, pen, sheet, place, c)
    for r in range(1, _depth(comparison) + 1):
        left, top, _, bottom = tile_box(0, r)
        _write(pen, (left - 22, (top + bottom) // 2), str(r), 24, GREY, anchor="rm")
    _draw_matrices(pen, comparison)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def tile_box(column: int, rank: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of an image on the sheet; columns from 0, ranks from 1."""
    left = MARGIN + GUTTER + column * (TILE + GAP)
    top = MARGIN + _title_height() + _HEAD + (rank - 1) * (TILE + _FOOT + GAP)
    return left, top, left + TILE, top + TILE


def _depth(comparison: Comparison) -> int:
    return max(len(column.places) for column in comparison.columns)


def _title_height() -> int:
    return 128


def _size(comparison: Comparison) -> tuple[int, int]:
    count = len(comparison.columns)
    images = GUTTER + count * (TILE + GAP) - GAP
    tables = 2 * (_NAMES + count * _CELL) + 60
    bottom = tile_box(0, _depth(comparison))[3] + _FOOT + 40
    below = 60 + (count + 1) * _CELL * 3 // 4 + 30
    return 2 * MARGIN + max(images, tables, 760), bottom + below + MARGIN


def _draw_title(image: Image.Image, pen: ImageDraw.ImageDraw, sheet: Sheet) -> None:
    comparison, left = sheet.comparison, MARGIN
    if sheet.image is not None:
        small = sheet.image.copy()
        small.thumbnail((100, 100))
        image.paste(small, (left, MARGIN))
        left += 120
    asked = comparison.query if sheet.image is None else f"Pictures like {comparison.query}"
    _write(pen, (left, MARGIN), cut(asked, 38, image.width - left - MARGIN), 38, INK)
    facts = [f"{comparison.pictures:,} pictures of {sheet.gallery}"]
    if comparison.truth is not None:
        count = len(comparison.truth.ids)
        facts.append(f"{count} known to be right, framed" if count > 1 else "the right one framed")
    about = cut("; ".join(facts), 22, image.width - left - MARGIN)
    _write(pen, (left, MARGIN + 58), about, 22, GREY)


def _draw_head(pen: ImageDraw.ImageDraw, column: Column, c: int) -> None:
    left, top, right, _ = tile_box(c, 1)
    top -= _HEAD
    pen.line([(left, top), (right, top)], INK, 3)
    title = f"{c + 1}  {column.title}"
    size = next((size for size in (26, 23, 20) if font(size).getlength(title) <= TILE), 18)
    _write(pen, (left, top + 10), cut(title, size, TILE), size, INK)
    paper = textwrap.wrap(column.paper or "averaged scores", _PAPER_LINE)
    for line, part in enumerate(paper[:2]):
        _write(pen, (left, top + 42 + line * 18), cut(part, 15, TILE), 15, GREY)
    facts = []
    if column.best_true_rank is not None:
        facts.append(f"first right: rank {column.best_true_rank:,}")
    if column.r_precision is not None:
        facts.append(f"R-precision {100 * column.r_precision:.0f} %")
    facts.append(f"{column.ms:.1f} ms")
    for line, fact in enumerate(facts):
        _write(pen, (left, top + 86 + line * _LINE), cut(fact, 18, TILE), 18, INK)


def _draw_tile(
    image: Image.Image, pen: ImageDraw.ImageDraw, sheet: Sheet, place: Place, c: int
) -> None:
    left, top, right, bottom = tile_box(c, place.rank)
    listed = sheet.images[place.image_id]
    thumbnail = listed.thumbnail
    pen.rectangle((left, top, right - 1, bottom - 1), PALE)
    try:
        found = None if thumbnail is None else open_image(thumbnail)
    except ImageError:
        found = None
    if found is None:
        _write(pen, ((left + right) // 2, (top + bottom) // 2), "gone", 18, GREY, anchor="mm")
    else:
        found.thumbnail((TILE, TILE), Image.Resampling.LANCZOS)
        at = (left + (TILE - found.width) // 2, top + (TILE - found.height) // 2)
        image.paste(found, at)
    if place.right:
        pen.rectangle(
            (left - FRAME, top - FRAME, right + FRAME - 1, bottom + FRAME - 1), None, RIGHT, FRAME
        )
    foot = bottom + 22
    if place.right is not None:
        _draw_mark(pen, (left, foot), place.right)
    _draw_move(pen, (left + 30, foot), place)
    score = f"{place.score:.3f}"
    facts = f"{listed.clock} · {score}" if listed.clock else score
    _write(pen, (right, foot), facts, 17, GREY, anchor="rm")


def _draw_mark(pen: ImageDraw.ImageDraw, at: tuple[int, int], right: bool) -> None:
    """A tick or a cross, 16 pixels wide."""
    x, y = at
    if right:
        pen.line([(x, y), (x + 6, y + 6), (x + 16, y - 7)], RIGHT, 4, joint="curve")
    else:
        pen.line([(x + 2, y - 6), (x + 13, y + 5)], GREY, 2)
        pen.line([(x + 2, y + 5), (x + 13, y - 6)], GREY, 2)


def _draw_move(pen: ImageDraw.ImageDraw, at: tuple[int, int], place: Place) -> None:
    """How an image moved against the column to the left."""
    x, y = at
    if place.left_rank is None:
        return
    if place.new or not place.move:
        _write(pen, (x, y), "new" if place.new else "=", 17, GREY, anchor="lm")
        return
    up = place.move > 0
    tip, base = (y - 6, y + 5) if up else (y + 6, y - 5)
    pen.polygon([(x, base), (x + 12, base), (x + 6, tip)], INK)
    _write(pen, (x + 17, y), str(abs(place.move)), 17, INK, anchor="lm")


def _draw_matrices(pen: ImageDraw.ImageDraw, comparison: Comparison) -> None:
    top = tile_box(0, _depth(comparison))[3] + _FOOT + 40
    shares = [[f"{100 * value:.0f}" for value in row] for row in comparison.overlap]
    taus = [["" if v is None else f"{v:.2f}" for v in row] for row in comparison.tau]
    names = [column.title for column in comparison.columns]
    width = _NAMES + len(names) * _CELL + 60
    share = f"Overlap@{comparison.k}, per cent"
    _draw_matrix(pen, (MARGIN, top), share, names, shares)
    _draw_matrix(pen, (MARGIN + width, top), "Kendall's tau-b", names, taus)


def _draw_matrix(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    title: str,
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
) -> None:
    x, y = at
    _write(pen, (x, y), title, 22, INK)
    step = _CELL * 3 // 4
    for j in range(len(names)):
        middle = (x + _NAMES + j * _CELL + _CELL // 2, y + 56)
        _write(pen, middle, str(j + 1), 18, GREY, anchor="mm")
    for i, name in enumerate(names):
        line = y + 56 + (i + 1) * step
        pen.line([(x, line - step // 2), (x + _NAMES + len(names) * _CELL, line - step // 2)], PALE)
        numbered = cut(f"{i + 1}  {name}", 18, _NAMES - 8)
        _write(pen, (x, line), numbered, 18, INK, anchor="lm")
        for j, value in enumerate(cells[i]):
            middle = (x + _NAMES + j * _CELL + _CELL // 2, line)
            if i != j:
                _write(pen, middle, value, 18, INK, anchor="mm")


def _write(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    words: str,
    size: int,
    colour: str,
    anchor: str = "la",
) -> None:
    pen.text(at, words, colour, font(size), anchor)


def cut(words: str, size: int, width: int) -> str:
    """As much of the words, on one line in letters of `size` pixels, as fits a width in pixels."""
    words = " ".join(words.split())
    if font(size).getlength(words) <= width:
        return words
    # Each letter makes it longer, so the most that fits is found by halving.
    fits = bisect(
        range(len(words)), width, key=lambda n: int(font(size).getlength(f"{words[:n]}..."))
    )
    return f"{words[: max(0, fits - 1)].rstrip()}..."


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """The font of the sheet; `size` in pixels."""
    from matplotlib import get_data_path  # only now: it takes long

    return ImageFont.truetype(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)
