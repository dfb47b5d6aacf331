"""Endpoints that explain: evidence of scores, views of an image, collapse of views."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.api.search import decode_query_image, pairs
from polyview.app.explain import evidence
from polyview.app.explain.collapse import Collapse, is_collapsed, measure_in_background
from polyview.app.explain.drawing import draw
from polyview.app.explain.places import box, sheets
from polyview.app.explain.views import Views, describe_views, nested
from polyview.app.gallery.scan import CollectionImage
from polyview.app.packs.state import AppState
from polyview.app.search.answers import Question, describe, parse, remark
from polyview.app.search.hits import QueryTerm
from polyview.app.search.retriever import Retriever

_MAX_NUMBERS = 500_000  # in an answer of `explain_hits`
_DIGITS = 8  # of evidence, so that the rounded values still sum to the score


def explain(
    retriever: Retriever,
    query: p.Words,
    image: p.ImageOrFile,
    method: p.Method = "",
    per_view: p.PerView = False,
    like: p.Like = None,
    content: p.MaybeContent = None,
) -> answers.Explanation:
    """Attributes the score of an image to its cells and to the words, or cells, of the query."""
    terms = Question(query, like, decode_query_image(content)).terms(retriever)
    target, spec = find_image(retriever, image), method or retriever.methods.best
    result = evidence.explain(retriever, terms, spec, [target.image_id])
    answer = answers.Explanation(
        **_shared_fields(query, spec, result),
        read_as=", ".join(describe(terms)),
        image_id=target.image_id,
        file=target.file,
        score=float(result.scores[0]),
        **{name: values[0] for name, values in _sums(result).items()},
    )
    word_remark = remark(retriever, *(term.words for term in terms if term.words))
    answer.remark = f"{word_remark} {answer.remark}".strip()
    if any(result.seconds):
        answer.seconds = list(result.seconds[0])
    if per_view:
        by_view = evidence.explain(retriever, terms, spec, [target.image_id], per_view=True)
        sums = {name: values[0] for name, values in _sums(by_view).items()}
        answer.per_view = [
            {"view": view, "score": float(score)} | {n: values[view] for n, values in sums.items()}
            for view, score in enumerate(by_view.scores[0])
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
    spec, image = method or retriever.methods.best, decode_query_image(content)
    terms = Question(query, like, image, weight, more, less).terms(retriever)
    result = evidence.explain(retriever, terms, spec, images)
    count, cells = len(images), result.grid[0] * result.grid[1]
    columns = sum(term.cells.shape[-1] for term in result.terms)
    if (numbers := count * cells * columns) > _MAX_NUMBERS:
        raise ValueError(
            f"{count} images of {cells} cells and {columns} words are {numbers:,} numbers; ask for "
            f"fewer images, at most {_MAX_NUMBERS:,} numbers"
        )
    sheet, frames = sheets(retriever, images)
    return answers.HitExplanations(
        **_shared_fields(query, spec, result),
        images=images,
        scores=nested(result.scores, _DIGITS),
        **_sums(result),
        boxes=[box(retriever, image_id) for image_id in images],
        sheet=sheet,
        seconds=[list(times) for times in result.seconds],
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
    terms, target = parse(query), find_image(retriever, image)
    spec = method or retriever.methods.best
    result = evidence.explain(retriever, terms, spec, [target.image_id])
    png = io.BytesIO()
    draw(retriever, result, target.image_id, word or None).save(png, "PNG")
    return answers.Blob(media_type="image/png", data=png.getvalue())


def views(
    retriever: Retriever,
    image: p.ImageOrFile,
    method: p.Method = "",
    query: p.Words = "",
    settings: p.Settings = p.NONE,
) -> Views:
    """Returns every view of an image with its map and, for a text, its score."""
    spec, image_id = method or retriever.methods.best, find_image(retriever, image).image_id
    knobs = {k: v[-1] for k, v in pairs(settings, "settings", "match:maxsim").items()}
    answer = describe_views(retriever, image_id, spec, query, knobs)
    answer.collapsed = is_collapsed(retriever, spec)
    if query.strip():
        answer.remark = remark(retriever, query)
    return answer


def collapse(state: AppState, retriever: Retriever, method: p.Method = "") -> Collapse:
    """Measures whether a method's views differ; the first call starts the measurement."""
    spec = method or retriever.methods.best
    retriever.methods.require_single(spec)
    reading = measure_in_background(retriever, spec)
    if isinstance(reading.result, Collapse):
        return Collapse(**dict(reading.result))  # sets every field
    status = "failed" if reading.problem else "running"
    progress = state.public_message(ValueError(reading.problem or reading.progress))
    return Collapse(method=spec, state=status, progress=progress)


def find_image(retriever: Retriever, image: int | str) -> CollectionImage:
    """Finds an image of the collection by id or file; raises ValueError if there is none."""
    if isinstance(image, int):
        return retriever.image(image)
    if matches := [other for other in retriever.collection.images if other.file == image]:
        return matches[0]
    raise ValueError(
        f'there is no image "{image[:80]}" in this collection; give the file name or id of a hit'
    )


def _shared_fields(query: str, spec: str, result: evidence.QueryEvidence) -> dict[str, Any]:
    """The fields that both kinds of explanations share, without the numbers."""
    return {
        "query": query,
        "method": spec,
        "grid": result.grid,
        "words": [word for term in result.terms for word in term.words],
        "terms": [
            QueryTerm(words=t.term.words, weight=t.term.weight, count=len(t.words))
            for t in result.terms
        ],
        "remark": evidence.NO_MAP if result.has_no_map else "",
    }


def _sums(result: evidence.QueryEvidence) -> dict[str, Any]:
    """`base`, `cells` and `whole_sentence` over all terms; see `HitExplanations`."""
    scores, count = result.scores.shape, result.grid[0] * result.grid[1]  # (n,) or (n, V)
    cells = [term.cells.reshape(*scores, count, -1) for term in result.terms]  # (n, ..., N, M) each
    whole = sum((term.whole_sentence for term in result.terms), np.zeros((*scores, *result.grid)))
    return {
        "base": nested(sum((term.base for term in result.terms), np.zeros(scores)), _DIGITS),
        "cells": nested(np.concatenate([np.zeros((*scores, count, 0)), *cells], axis=-1), _DIGITS),
        "whole_sentence": nested(whole.reshape(*scores, count), _DIGITS),
    }
