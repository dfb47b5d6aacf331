"""Endpoints that find images: by words, by image or both; comparison, lens and timeline."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from PIL import Image

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.explain.views import Lens, search_weighted
from polyview.app.gallery.images import decode
from polyview.app.packs.state import AppState
from polyview.app.search import comparison
from polyview.app.search.answers import Question, answer, parse, remark
from polyview.app.search.examples import algebra, curated, sentences
from polyview.app.search.hits import Answer, Hit, fingerprint, first_alike, image_size
from polyview.app.search.retriever import Retriever


def decode_query_image(content: bytes | None) -> Image.Image | None:
    """Decodes an uploaded query image; raises ImageError if it is not valid."""
    return decode(io.BytesIO(content), "the image") if content else None


def add_layout(retriever: Retriever, hits: Sequence[Hit]) -> None:
    """Adds the sizes of thumbnails, and marks hits that look nearly the same as an earlier one."""
    thumbnails = retriever.thumbnails([hit.image_id for hit in hits])
    visible = [hit for hit in hits if hit.image_id in thumbnails]
    firsts = first_alike([fingerprint(thumbnails[hit.image_id]) for hit in visible])
    for hit, first in zip(visible, firsts, strict=True):
        add_size(hit, thumbnails)
        hit.alike = None if visible[first] is hit else visible[first].rank


def add_size(image: Hit, thumbnails: Mapping[int, Path]) -> None:
    """Adds the size of an image's thumbnail, if it has one."""
    with suppress(OSError, KeyError):
        image.width, image.height = image_size(thumbnails[image.image_id])


def search_text(
    retriever: Retriever,
    query: p.Words = "",
    method: p.Method = "",
    k: p.Count = 10,
    filters: p.Facts = p.NONE,
    like: p.Like = None,
    more: p.ImageIds = p.NONE,
    less: p.ImageIds = p.NONE,
    weight: p.Weight = 1.0,
    layout: p.Layout = False,
) -> Answer:
    """Finds the images that best match words, an image of the collection, or examples."""
    question = Question(query, like, None, weight, more, less)
    return _answer(retriever, question, method, k, filters, layout)


def search_image(
    retriever: Retriever,
    image: p.Content,
    method: p.Method = "",
    k: p.Count = 10,
    query: p.Words = "",
    weight: p.Weight = 1.0,
    filters: p.Facts = p.NONE,
    layout: p.Layout = False,
) -> Answer:
    """Finds the images and captions that best match an image, or an image and words."""
    question = Question(query, image=decode_query_image(image), weight=weight)
    result = _answer(retriever, question, method, k, filters, layout)
    result.images = result.hits
    return result


def compare(
    state: AppState,
    retriever: Retriever,
    query: p.Words,
    methods: p.Methods,
    k: p.CompareCount = 10,
    like: p.Like = None,
) -> comparison.Comparison:
    """Ranks the images by several methods and measures their agreement."""
    terms = Question(query, like).terms(retriever)
    result = comparison.compare(retriever, state.peers(retriever), terms, methods, k, like)
    thumbnails = retriever.thumbnails(list(result.ranks))
    for hit in (hit for column in result.columns for hit in column.hits):
        image = retriever.image(hit.image_id)
        hit.file, hit.captions = image.file, list(image.captions)
        if image.moment is not None:
            hit.seconds, hit.frame = image.moment.seconds, image.moment.frame
        add_size(hit, thumbnails)
    return result


def lens(
    retriever: Retriever,
    query: p.Words,
    method: p.Method,
    weights: p.Weights,
    k: p.Count = 10,
    layout: p.Layout = False,
) -> Lens:
    """Finds images with reduced weights for some of their views."""
    result = search_weighted(retriever, query, method, weights, k)
    if layout:
        add_layout(retriever, result.hits)
    result.remark = remark(retriever, query)
    return result


def timeline(
    retriever: Retriever, image: p.ImageId, query: p.Words, method: p.Method = ""
) -> answers.Hits:
    """Scores the indexed frames of a clip, in time order."""
    frames = retriever.timeline(image, parse(query), method)
    return answers.Hits(total=len(frames), hits=frames)


def examples(retriever: Retriever) -> answers.Examples:
    """Returns example queries: captions that only one method ranks well, sentences, and a sum."""
    return answers.Examples(
        curated=curated(retriever.info, retriever.collection),
        queries=sentences(retriever, 6),
        algebra=algebra(retriever),
    )


def _answer(
    retriever: Retriever, question: Question, method: str, k: int, filters: list[str], layout: bool
) -> Answer:
    facts = group_by_key(filters, "filter", "setting:beach")
    result = answer(retriever, question, method, k, facts)
    if layout:
        add_layout(retriever, result.hits)
    return result


def group_by_key(texts: list[str], name: str, example: str) -> dict[str, list[str]]:
    """Groups `key:value` texts by key. Raises ValueError if a text has no colon.

    >>> group_by_key(["setting:beach", "setting:sea"], "filter", "setting:beach")
    {'setting': ['beach', 'sea']}
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        key, colon, value = text.partition(":")
        if not colon:
            raise ValueError(f'{name} must be key:value, such as {example}, not "{text[:80]}"')
        values.setdefault(key, []).append(value)
    return values
