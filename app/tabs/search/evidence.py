"""What the words of a question bring to its hits, for the page: tinted words and lit images."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from app.explain.evidence import Explained, explain
from app.explain.heatmaps import where
from app.search.query import Term
from app.search.questions import Question
from app.search.retriever import Retriever
from app.tabs.html import render
from app.tabs.search.view import Result
from models.preprocess import Box

WHOLE = "the whole sentence"
_OWN = "the picture asked with"
_STEPS = 127  # of a value on its way to the browser, either way from 0


@dataclass(frozen=True)
class Hits:
    """Hits of which evidence can be shown; equal ones have equal evidence.

    Attributes:
        question: what they answer.
        spec: the method or ensemble that found them.
        image_ids: n images.
        sizes: width and height of each one's thumbnail.
        scores: of each.
    """

    question: Question
    spec: str
    image_ids: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    scores: tuple[float, ...]

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Hits | None":
        """Those of some results; None where nothing was asked."""
        hits = [result for result in results if result.rank]
        if not hits:
            return None
        return cls(
            hits[0].question,
            hits[0].spec,
            tuple(hit.image_id for hit in hits),
            tuple(hit.image.size for hit in hits),
            tuple(hit.score for hit in hits),
        )


@dataclass(frozen=True)
class Column:
    """What one word, an image, or what cannot be split over words, finds in n images.

    Attributes:
        name: the word, as the encoder reads it, or what else it is.
        maps: (n, rows, columns) in units of the score.
    """

    name: str
    maps: np.ndarray


@dataclass(frozen=True)
class Split:
    """The scores of n images as sums over columns; what is left over is the base.

    Attributes:
        image_ids: of the images.
        scores: (n,).
        columns: at least one.
    """

    image_ids: tuple[int, ...]
    scores: np.ndarray
    columns: tuple[Column, ...]

    @property
    def rest(self) -> np.ndarray:
        """What of the scores (n,) belongs to no cell."""
        return self.scores - sum(column.maps.sum(axis=(1, 2)) for column in self.columns)

    def maps(self, place: int) -> list[np.ndarray]:
        """Of one image: the map of all columns together, then one for each."""
        each = [column.maps[place] for column in self.columns]
        return [np.sum(each, axis=0), *each]

    def names(self) -> list[str]:
        """What `maps` are of."""
        return ["all words", *(column.name for column in self.columns)]

    def tops(self) -> tuple[float, ...]:
        """The highest value of each of `maps` over all images, above 0."""
        every = np.stack([self.maps(place) for place in range(len(self.image_ids))])
        return tuple(max(float(np.abs(maps).max()), 1e-9) for maps in every.swapaxes(0, 1))

    def tops_alike(self) -> tuple[float, ...]:
        """The same, but one for all words, so that they can be compared."""
        every, *each = self.tops()
        return (every, *[max(each)] * len(each))


def split(
    retriever: Retriever, terms: Sequence[Term], spec: str, image_ids: Sequence[int]
) -> Split:
    """Splits the scores of images for a query, see `app.explain.evidence.explain`."""
    explained = explain(retriever, terms, spec, image_ids)
    return Split(explained.image_ids, explained.scores, tuple(_columns(explained)))


def _columns(explained: Explained) -> list[Column]:
    columns = []
    for term in explained.terms:
        if term.words:
            columns += [Column(word, term.cells[..., m]) for m, word in enumerate(term.words)]
        else:
            columns.append(Column(_OWN, term.cells.sum(axis=-1)))
        if np.any(term.whole_sentence):
            columns.append(Column(WHOLE, term.whole_sentence))
    return columns


def bar(found: Split, sizes: Sequence[tuple[int, int]], retriever: Retriever) -> Markup:
    """The words of a question, and what the browser needs to light the images.

    Args:
        found: of the hits.
        sizes: width and height of each of them, at any scale.
        retriever: of the pack and its images.
    """
    hits: dict[int, dict[str, Any]] = {}
    for place, (image_id, size) in enumerate(zip(found.image_ids, sizes, strict=True)):
        maps = found.maps(place)
        values = np.stack(maps[1:])  # (columns, rows, columns)
        scale = max(float(np.abs(values).max()), 1e-9) / _STEPS
        cells = np.rint(values / scale).astype(np.int8)
        hits[image_id] = {
            "score": round(float(found.scores[place]), 4),
            "rest": round(float(found.rest[place]), 4),
            "sums": [round(float(one.sum()), 4) for one in maps],
            "where": [where(one) for one in maps],
            "box": visible(retriever, size),
            "scale": scale,
            "cells": base64.b64encode(cells.tobytes()).decode(),
        }
    facts = {
        "grid": list(found.columns[0].maps.shape[1:]), "tops": found.tops(), "names": found.names(),
        "hits": hits,
    }  # fmt: skip
    return render("search/evidence", facts=json.dumps(facts), names=found.names()[1:])


def visible(retriever: Retriever, size: tuple[int, int]) -> Box:
    """The part of an image that the encoder sees, relative xyxy."""
    return retriever.info.preprocess.visible_box(*size)
