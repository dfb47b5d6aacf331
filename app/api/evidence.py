"""Questions that explain: evidence of scores, views of an image, collapse of views."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.api.search import sent_image
from polyview.app.explain import evidence
from polyview.app.explain.collapse import Collapse, Meters
from polyview.app.explain.lighting import light
from polyview.app.explain.look import Views, look, nested
from polyview.app.explain.places import box, sheets
from polyview.app.gallery.scan import CollectionImage
from polyview.app.packs.opened import Opened
from polyview.app.search.answers import Question, remark
from polyview.app.search.hits import QueryTerm
from polyview.app.search.query import checked, describe, parse
from polyview.app.search.retriever import Retriever

_MAX_NUMBERS = 500_000  # of one answer about several images
_DIGITS = 8  # of evidence, so that its sum stays the score
_meters = Meters()  # of all packs


def explain(
    retriever: Retriever,
    query: p.Words,
    image: p.ImageOrFile,
    method: p.Method = "",
    per_view: p.PerView = False,
    like: p.Like = None,
    content: p.MaybeContent = None,
) -> answers.Explanation:
    """Splits the score of an image over its cells and the words, or cells, of the query."""
    terms = Question(query, like, sent_image(content)).terms(retriever)
    target, spec = find_image(retriever, image), method or retriever.methods.best
    seen = evidence.explain(retriever, terms, spec, [target.image_id])
    answer = answers.Explanation(
        **_common(query, spec, seen),
        read_as=", ".join(describe(terms)),
        image_id=target.image_id,
        file=target.file,
        score=float(seen.scores[0]),
        **{name: values[0] for name, values in _sums(seen).items()},
    )
    of_words = remark(retriever, *(term.words for term in terms if term.words))
    answer.remark = f"{of_words} {answer.remark}".strip()
    if any(seen.seconds):
        answer.seconds = list(seen.seconds[0])
    if per_view:
        split = evidence.explain(retriever, terms, spec, [target.image_id], per_view=True)
        sums = {name: values[0] for name, values in _sums(split).items()}
        answer.per_view = [
            {"view": view, "score": float(score)} | {n: values[view] for n, values in sums.items()}
            for view, score in enumerate(split.scores[0])
        ]
    return answer


def explain_hits(
    retriever: Retriever,
    query: p.Words,
    images: p.ManyIds,
    method: p.Method = "",
    like: p.Like = None,
    more: p.ImageIds = p.NONE,
    less: p.ImageIds = p.NONE,
    weight: p.Weight = 1.0,
    content: p.MaybeContent = None,
) -> answers.HitExplanations:
    """Splits the scores of several images at once, as arrays over the images."""
    spec, image = method or retriever.methods.best, sent_image(content)
    terms = Question(query, like, image, weight, more, less).terms(retriever)
    seen = evidence.explain(retriever, terms, spec, images)
    count, cells = len(images), seen.grid[0] * seen.grid[1]
    columns = sum(term.cells.shape[-1] for term in seen.terms)
    if (numbers := count * cells * columns) > _MAX_NUMBERS:
        raise ValueError(
            f"{count} images of {cells} cells and {columns} words are {numbers:,} numbers; ask for "
            f"fewer images, at most {_MAX_NUMBERS:,} numbers"
        )
    sheet, frames = sheets(retriever, images)
    return answers.HitExplanations(
        **_common(query, spec, seen),
        images=images,
        scores=nested(seen.scores, _DIGITS),
        **_sums(seen),
        boxes=[box(retriever, image_id) for image_id in images],
        sheet=sheet,
        seconds=[list(times) for times in seen.seconds],
        frames=frames,
    )


def explain_image(
    retriever: Retriever,
    query: p.Words,
    image: p.ImageOrFile,
    method: p.Method = "",
    word: p.Word = "",
) -> answers.Blob:
    """Draws the evidence of words, or of one of them, over an image, as a PNG."""
    terms, target = parse(checked(query)), find_image(retriever, image)
    spec = method or retriever.methods.best
    seen = evidence.explain(retriever, terms, spec, [target.image_id])
    lit = io.BytesIO()
    light(retriever, seen, target.image_id, word or None).save(lit, "PNG")
    return answers.Blob(media_type="image/png", data=lit.getvalue())


def views(
    retriever: Retriever,
    image: p.ImageOrFile,
    method: p.Method = "",
    query: p.Words = "",
    settings: p.Settings = p.NONE,
) -> Views:
    """Returns every view of an image with its map and, for a text, its score."""
    spec, image_id = method or retriever.methods.best, find_image(retriever, image).image_id
    chosen = {k: v[-1] for k, v in p.pairs(settings, "settings", "match:maxsim").items()}
    answer = look(retriever, image_id, spec, query, chosen)
    answer.collapsed = _meters.collapsed(retriever, spec)
    if query.strip():
        answer.remark = remark(retriever, query)
    return answer


def collapse(opened: Opened, retriever: Retriever, method: p.Method = "") -> Collapse:
    """Measures whether a method's views differ; the first call starts it and returns at once."""
    spec = method or retriever.methods.best
    retriever.methods.one(spec)
    reading = _meters.meter(retriever, spec)
    if isinstance(reading.result, Collapse):
        return Collapse(**dict(reading.result))  # with every field
    state = "failed" if reading.problem else "running"
    doing = opened.sentence(ValueError(reading.problem or reading.progress))
    return Collapse(method=spec, state=state, progress=doing)


def find_image(retriever: Retriever, image: int | str) -> CollectionImage:
    """Finds an image of the collection by id or file.

    Raises:
        ValueError: there is no such image.
    """
    if isinstance(image, int):
        return retriever.image(image)
    if named := [each for each in retriever.collection.images if each.file == image]:
        return named[0]
    raise ValueError(
        f'there is no image "{image[:80]}" in this collection; give the file name or id of a hit'
    )


def _common(query: str, spec: str, seen: evidence.Explained) -> dict[str, Any]:
    """The fields of both explanations, except for the numbers."""
    return {
        "query": query,
        "method": spec,
        "grid": seen.grid,
        "words": [word for term in seen.terms for word in term.words],
        "terms": [
            QueryTerm(words=t.term.words, weight=t.term.weight, count=len(t.words))
            for t in seen.terms
        ],
        "remark": evidence.NO_PLACE if seen.placeless else "",
    }


def _sums(seen: evidence.Explained) -> dict[str, Any]:
    """Base, cells and whole sentence of each score, over all terms; see `HitExplanations`."""
    scores, count = seen.scores.shape, seen.grid[0] * seen.grid[1]  # (n,) or (n, V)
    cells = [term.cells.reshape(*scores, count, -1) for term in seen.terms]  # (n, ..., N, M) each
    whole = sum((term.whole_sentence for term in seen.terms), np.zeros((*scores, *seen.grid)))
    return {
        "base": nested(sum((term.base for term in seen.terms), np.zeros(scores)), _DIGITS),
        "cells": nested(np.concatenate([np.zeros((*scores, count, 0)), *cells], axis=-1), _DIGITS),
        "whole_sentence": nested(whole.reshape(*scores, count), _DIGITS),
    }
