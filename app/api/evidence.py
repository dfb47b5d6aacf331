"""Endpoints that explain scores: evidence, the views of an image, the collapse of views."""

from __future__ import annotations

import io
from typing import Any

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.api.search import Question, decode_image, describe, group_by_key, parse, remark
from polyview.app.explain import evidence
from polyview.app.explain.collapse import Collapse, is_collapsed, measure_in_background
from polyview.app.explain.views import Views, describe_views, nested
from polyview.app.gallery.scan import CollectionImage
from polyview.app.packs.state import AppState
from polyview.app.search.retriever import Retriever

_DIGITS = 8  # decimal digits of evidence, so that the rounded contributions sum to the score


def explain(
    retriever: Retriever,
    query: p.Words,
    image: p.ImageOrFile,
    method: p.Method = "",
    per_view: p.PerView = False,
    like: p.Like = None,
    content: p.MaybeContent = None,
) -> answers.Explanation:
    """Splits the score of an image over its cells and the words (or cells) of the query."""
    terms = Question(query, like, decode_image(content)).terms(retriever)
    target = find_image(retriever, image)
    result = evidence.explain(retriever, terms, method, [target.image_id])
    answer = answers.Explanation(
        **_shared_fields(query, method, result),
        read_as=", ".join(describe(terms)),
        image_id=target.image_id,
        file=target.file,
        score=float(result.scores[0]),
        **{name: values[0] for name, values in _summands(result).items()},
    )
    word_remark = remark(retriever, *(term.words for term in terms if term.words))
    answer.remark = f"{word_remark} {answer.remark}".strip()
    if any(result.seconds):
        answer.seconds = list(result.seconds[0])
    if per_view:
        by_view = evidence.explain(retriever, terms, method, [target.image_id], per_view=True)
        fields = {name: values[0] for name, values in _summands(by_view).items()}
        answer.per_view = [
            {"view": view, "score": float(score), **{k: v[view] for k, v in fields.items()}}
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
    """Splits the scores of several images over their cells and the words of the query."""
    terms = Question(query, like, decode_image(content), weight, more, less).terms(retriever)
    result = evidence.explain(retriever, terms, method, images)
    sheet, frames = evidence.sheets(retriever, images)
    return answers.HitExplanations(
        **_shared_fields(query, method, result),
        images=images,
        scores=nested(result.scores, _DIGITS),
        **_summands(result),
        boxes=[evidence.box(retriever, image_id) for image_id in images],
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
    """Draws the evidence of all words, or of one word, over an image; returns a PNG."""
    image_id, png = find_image(retriever, image).image_id, io.BytesIO()
    result = evidence.explain(retriever, parse(query), method, [image_id])
    evidence.draw(retriever, result, image_id, word or None).save(png, "PNG")
    return answers.Blob(media_type="image/png", data=png.getvalue())


def views(
    retriever: Retriever,
    image: p.ImageOrFile,
    method: p.Method = "",
    query: p.Words = "",
    settings: p.Settings = p.NONE,
) -> Views:
    """Returns the views of an image with their maps and, for a text, their scores."""
    image_id = find_image(retriever, image).image_id
    knobs = {k: v[-1] for k, v in group_by_key(settings, "settings", "match:maxsim").items()}
    answer = describe_views(retriever, image_id, method, query, knobs)
    answer.collapsed = is_collapsed(retriever, method)
    if query.strip():
        answer.remark = remark(retriever, query)
    return answer


def collapse(state: AppState, retriever: Retriever, method: p.Method = "") -> Collapse:
    """Measures whether a method's views differ; the first call starts the measurement."""
    retriever.methods.require_single(method)
    computation = measure_in_background(retriever, method)
    if isinstance(computation.result, Collapse):
        return Collapse(**dict(computation.result))  # sets all fields, so that all are sent
    return Collapse(method=method, **state.status(computation))


def find_image(retriever: Retriever, image: int | str) -> CollectionImage:
    """Finds an image of the collection by id or file; raises ValueError if it is unknown."""
    if isinstance(image, int):
        return retriever.image(image)
    if matches := [other for other in retriever.collection.images if other.file == image]:
        return matches[0]
    raise ValueError(f'this collection has no image "{image[:80]}"; give the file or id of a hit')


def _shared_fields(query: str, method: str, result: evidence.QueryEvidence) -> dict[str, Any]:
    """Returns the fields of `_SharedFields` without `cells` and `whole_sentence`."""
    return {
        "query": query,
        "method": method,
        "grid": result.grid,
        "words": [*filter(None, result.words)],
        "terms": list(result.terms),
        "remark": evidence.NO_MAP if result.has_no_map else "",
    }


def _summands(result: evidence.QueryEvidence) -> dict[str, Any]:
    """Returns `base`, `cells` and `whole_sentence` as lists, with the N cells of a map in a row."""
    shape = (*result.scores.shape, result.grid[0] * result.grid[1])
    return {
        "base": nested(result.base, _DIGITS),
        "cells": nested(result.cells.reshape(*shape, len(result.words)), _DIGITS),
        "whole_sentence": nested(result.whole_sentence.reshape(shape), _DIGITS),
    }
