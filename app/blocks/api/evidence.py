"""/explain and /explain_image."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.blocks.api.search import sentences
from app.explain.evidence import Explained, explain
from app.explain.heatmaps import data_uri
from app.explain.lighting import light
from app.gallery.collection import CollectionImage
from app.packs.open_packs import OpenPacks
from app.search.answers import remark
from app.search.query import checked, describe, parse
from app.search.retriever import Retriever

_DIGITS = 8  # so that what is added up stays the score


def endpoints(opened: OpenPacks) -> list[Callable[..., dict[str, Any]]]:
    """The functions behind the endpoints."""
    retriever = opened.first
    default = retriever.methods.best

    @sentences
    def explain(
        query: str, image: int | str, method: str = default, per_view: bool = False
    ) -> dict[str, Any]:
        """Splits the score of words and a picture over the picture's cells and the words.

        `base`, all of `cells` and all of `whole_sentence` add up to `score`.

        Args:
            query: a sentence, or several terms as /search_text reads them.
            image: a picture of the gallery, by its id, counted from 0, or its file.
            method: one of the pack's methods, see /info; or several joined by "+".
            per_view: also split the score of each of the picture's views; of one method only.

        Returns:
            `words` as the method's encoder reads them, those of all terms in a row; `grid`, the
            rows and columns of the cells, which of a clip that the method reads as a whole are its
            frames, shown at `seconds`; `cells`, row by row, for each a list with one number a word;
            `whole_sentence`, for each cell what it finds in what cannot be split over words;
            `base`, what no cell brings.
        """
        return _explain(retriever, query, image, method, per_view)

    @sentences
    def explain_image(
        query: str, image: int | str, method: str = default, word: str | None = None
    ) -> dict[str, Any]:
        """Lights a picture where its score for words comes from, as a PNG for reports.

        What speaks for the words keeps its colours, what speaks against them is orange, the rest is
        dark.

        Args:
            query: a sentence, or several terms as /search_text reads them.
            image: a picture of the gallery, by its id, counted from 0, or its file.
            method: one of the pack's methods, see /info; or several joined by "+".
            word: one of the words that /explain lists; null for all of them together.

        Returns:
            `png`, a data URI, at most 640 pixels wide and high; `adds`, what is shown adds to
            `score`; `where` most of that lies; `top`, the value of a cell that is lit fully.
        """
        return _explain_image(retriever, query, image, method, word)

    return [explain, explain_image]


def _explain(
    retriever: Retriever, query: str, image: Any, method: str, per_view: Any
) -> dict[str, Any]:
    start = time.perf_counter()
    if not isinstance(per_view, bool):
        raise ValueError(f"per_view must be true or false, not {per_view!r:.80}")
    asked, shown = parse(checked(query)), _find(retriever, image)
    seen = explain(retriever, asked, method, [shown.image_id])
    answer = {
        "query": query,
        "read_as": ", ".join(describe(asked)),
        "image_id": shown.image_id,
        "file": shown.file,
        "method": method,
        "words": [word for term in seen.terms for word in term.words],
        "terms": [
            {"words": term.term.words, "weight": term.term.weight, "count": len(term.words)}
            for term in seen.terms
        ],
        "grid": list(seen.grid),
        **({"seconds": list(seen.seconds[0])} if any(seen.seconds) else {}),
        "score": float(seen.scores[0]),
        **_sums(seen, 0),
    }
    if per_view:
        by_view = explain(retriever, asked, method, [shown.image_id], per_view=True)
        answer["per_view"] = [
            {"view": view, "score": float(score), **_sums(by_view, (0, view))}
            for view, score in enumerate(by_view.scores[0])
        ]
    answer["remark"] = remark(retriever, *(term.words for term in asked))
    return {**answer, "ms": round((time.perf_counter() - start) * 1000, 1)}


def _explain_image(
    retriever: Retriever, query: str, image: Any, method: str, word: Any
) -> dict[str, Any]:
    start = time.perf_counter()
    if word is not None and not isinstance(word, str):
        raise ValueError(f"word must be a text or null, not {word!r:.80}")
    asked, found = parse(checked(query)), _find(retriever, image)
    seen = explain(retriever, asked, method, [found.image_id])
    lit = light(retriever, seen, found.image_id, word)
    return {
        "query": query,
        "image_id": found.image_id,
        "file": found.file,
        "method": method,
        "word": word,
        "score": float(seen.scores[0]),
        "adds": round(float(lit.cells.sum()), _DIGITS),
        "where": seen.where(lit.cells, 0),
        "top": round(lit.top, _DIGITS),
        "png": data_uri(lit.image),
        "remark": remark(retriever, *(term.words for term in asked)),
        "ms": round((time.perf_counter() - start) * 1000, 1),
    }


def _sums(seen: Explained, place: int | tuple[int, int]) -> dict[str, Any]:
    """Base, cells and whole sentence of one score, over all terms."""
    count = seen.grid[0] * seen.grid[1]
    cells = [term.cells[place].reshape(count, -1) for term in seen.terms]  # (N, M) each
    none = np.zeros((count, 0))
    whole = sum((term.whole_sentence[place] for term in seen.terms), np.zeros(seen.grid))
    return {
        "base": round(float(sum(term.base[place] for term in seen.terms)), _DIGITS),
        "cells": _list(np.concatenate([none, *cells], axis=1)),
        "whole_sentence": _list(whole.reshape(count)),
    }


def _find(retriever: Retriever, image: Any) -> CollectionImage:
    """An image of the gallery by id or file.

    Raises:
        ValueError: there is none.
    """
    if isinstance(image, str):
        for picture in retriever.collection.images:
            if picture.file == image:
                return picture
        raise ValueError(
            f'there is no picture "{image[:80]}" in the gallery; give a file or an id of a hit'
        )
    whole = isinstance(image, int) or (isinstance(image, float) and image.is_integer())
    if isinstance(image, bool) or not whole:
        raise ValueError(f"image must be a file or a whole number, not {image!r:.80}")
    return retriever.image(int(image))


def _list(values: np.ndarray) -> list[Any]:
    return np.round(values.astype(np.float64), _DIGITS).tolist()
