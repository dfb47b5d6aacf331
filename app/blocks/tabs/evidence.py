"""What the words of a question bring to scores, as the tabs show it: maps, and their way there."""

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.explain import heatmaps, sheets
from app.explain.evidence import Explained, TermEvidence, explain
from app.search.query import Term
from app.search.retriever import Retriever
from models.preprocess import Box

WHOLE = "the whole sentence"
OWN = "the picture asked with"
MAX_VALUES = 2**20  # bytes of one page's maps, one a value
_FAINT = 0.25  # of the highest value of all cells, what lights fully at least
_STEPS = 127  # of a value on its way to the browser, either way from 0


@dataclass(frozen=True)
class Column:
    """What one word, an image or a cell of it, or what cannot be split, finds in n images.

    Attributes:
        name: the word, as the encoder reads it, or what else it is.
        maps: (n, rows, columns) in units of the score.
        term: which of the question's terms it belongs to.
        cell: it is one cell of an image that was asked with.
    """

    name: str
    maps: np.ndarray
    term: int = 0
    cell: bool = False


@dataclass(frozen=True)
class Split:
    """The scores of n images, or views of one, as sums over columns; what is left is the base.

    Attributes:
        scores: (n,).
        columns: at least one.
        seconds: of clips that are read as sets, when the frames of each of n sheets are shown.
        by_time: maps are rows (1, T) of frames, not sheets.
    """

    scores: np.ndarray
    columns: tuple[Column, ...]
    seconds: tuple[tuple[float, ...], ...] = ()
    by_time: bool = False

    @property
    def rest(self) -> np.ndarray:
        """What of the scores (n,) belongs to no cell."""
        return self.scores - sum(column.maps.sum(axis=(1, 2)) for column in self.columns)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of an image's cells."""
        rows, columns = self.columns[0].maps.shape[1:]
        return rows, columns

    @property
    def has_places(self) -> bool:
        """Whether any cell brings anything: an encoder's summary has no place in the image."""
        return any(np.any(column.maps) for column in self.columns)

    def maps(self, place: int) -> list[np.ndarray]:
        """Of one image: the map of all columns together, then one for each."""
        each = [column.maps[place] for column in self.columns]
        return [np.sum(each, axis=0), *each]

    def where(self, place: int, shown: np.ndarray) -> str:
        """Where most of a map (rows, columns) of one image is, in words."""
        seconds = self.seconds[place] if self.seconds else ()
        if not seconds:
            return heatmaps.where(shown)
        frames = shown[0] if self.by_time else sheets.by_frame(shown, self._longest)
        return sheets.where(frames[: len(seconds)], seconds)

    def over_time(self) -> "Split":
        """The same of sets, with maps (n, 1, T) over their frames in place of sheets."""
        rows = (sheets.by_frame(column.maps, self._longest) for column in self.columns)
        pairs = zip(self.columns, rows, strict=True)
        columns = tuple(replace(column, maps=row[:, None]) for column, row in pairs)
        return replace(self, columns=columns, by_time=True)

    @property
    def _longest(self) -> int:
        """How many frames the longest set has."""
        return max(1, *(len(clip) for clip in self.seconds))

    def is_cell(self, place: int) -> bool:
        """Whether one of `maps` is of one cell of an image that was asked with."""
        return place > 0 and self.columns[place - 1].cell

    def names(self) -> list[str]:
        """What `maps` are of, in short."""
        return ["all words" if self.has_words else "all", *(c.name for c in self.columns)]

    def spoken(self) -> list[str]:
        """What `maps` are of, in a sentence."""
        own = [c.cell or c.name in (OWN, WHOLE) for c in self.columns]
        names = [c.name if o else f"“{c.name}”" for c, o in zip(self.columns, own, strict=True)]
        return ["the words together" if self.has_words else OWN, *names]

    @property
    def has_words(self) -> bool:
        """Whether any word is a column, not an image alone."""
        return any(not column.cell and column.name != OWN for column in self.columns)

    def tops(self) -> tuple[float, ...] | None:
        """What is lit fully in each of `maps`: its highest value over all images, above 0.

        Of questions with an image, which is often among the hits, None: each hit is for itself.
        """
        if any(column.cell for column in self.columns):
            return None
        every = [sum(column.maps for column in self.columns), *(c.maps for c in self.columns)]
        return tuple(max(float(np.abs(maps).max()), 1e-9) for maps in every)

    def tops_of(self, place: int) -> tuple[float, ...]:
        """The same of one image by itself: one for all words, so that they can be compared.

        A faint cell of an image that was asked with stays faint.
        """
        every, *each = [max(float(np.abs(one).max()), 1e-9) for one in self.maps(place)]
        groups = [column.cell for column in self.columns]
        words, cells = (
            max((t for t, c in zip(each, groups, strict=True) if c is cell), default=0.0)
            for cell in (False, True)
        )
        tops = [max(t, _FAINT * cells) if c else words for t, c in zip(each, groups, strict=True)]
        return (every, *tops)

    def most_lit(self) -> int:
        """How many images a page can light, at least one."""
        return max(1, MAX_VALUES // (len(self.columns) * self.grid[0] * self.grid[1]))

    def packed(self, places: Sequence[int], boxes: Sequence[Box]) -> list[dict[str, Any]]:
        """What evidence.js needs to know of some images.

        Args:
            places: of the images.
            boxes: the part of each that the encoder sees, relative xyxy.
        """
        return [self._packed(place, box) for place, box in zip(places, boxes, strict=True)]

    def _packed(self, place: int, box: Box) -> dict[str, Any]:
        maps = self.maps(place)
        values = np.stack(maps[1:])  # (columns, rows, columns of the grid)
        scale = max(float(np.abs(values).max()), 1e-9) / _STEPS
        tops = self.tops_of(place) if self.tops() is None else None
        return {
            "tops": tops and [float(f"{top:.3g}") for top in tops],
            "score": round(float(self.scores[place]), 4),
            "rest": round(float(self.rest[place]), 4),
            "sums": [round(float(one.sum()), 4) for one in maps],
            "where": [self.where(place, one) for one in maps],
            "box": box,
            "scale": scale,
            "frames": len(self.seconds[place]) if self.by_time else 0,
            "cells": base64.b64encode(np.rint(values / scale).astype(np.int8).tobytes()).decode(),
        }


def split(
    retriever: Retriever,
    terms: Sequence[Term],
    spec: str,
    images: Sequence[int],
    *,
    by_cell: bool = False,
) -> Split:
    """Splits the scores of images for a query, see `app.explain.evidence.explain`.

    Args:
        retriever: the pack and its images.
        terms: of the query.
        spec: a method or an ensemble.
        images: of the collection, by id.
        by_cell: an image that is a term has a column for each of its cells, not one.
    """
    return columns_of(explain(retriever, terms, spec, images), by_cell=by_cell)


def columns_of(explained: Explained, *, by_cell: bool = False) -> Split:
    """Evidence, term by term, as columns, see `split`.

    Raises:
        ValueError: the terms cancel out.
    """
    columns = [
        column
        for number, term in enumerate(explained.terms)
        for column in _columns(term, number, explained.grid, by_cell)
    ]
    if not columns:
        raise ValueError("the terms cancel out, so no word brings anything")
    return Split(explained.scores, tuple(columns), explained.seconds)


def _columns(
    term: TermEvidence, number: int, grid: tuple[int, int], by_cell: bool
) -> Iterator[Column]:
    if term.words:
        for m, word in enumerate(term.words):
            yield Column(word, term.cells[..., m], number)
    elif by_cell and term.cells.shape[-1] == math.prod(grid) > 1:
        for row, column in np.ndindex(grid):
            name = f"row {row + 1}, column {column + 1} of {OWN}"
            yield Column(name, term.cells[..., row * grid[1] + column], number, cell=True)
    else:
        yield Column(OWN, term.cells.sum(axis=-1), number)
    if np.any(term.whole_sentence):
        yield Column(WHOLE if term.words else OWN, term.whole_sentence, number)


def visible(retriever: Retriever, size: tuple[int, int]) -> Box:
    """The part of an image that the encoder sees, relative xyxy."""
    return retriever.info.preprocess.visible_box(*size)
