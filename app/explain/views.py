"""Describes the views of an image (maps, scores, intermediate arrays); searches with a lens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyview.app.explain.evidence import box, sheets, to_maps
from polyview.app.search import comparison
from polyview.app.search.clips import Scores, best_of_files
from polyview.app.search.hits import Hit, Timed
from polyview.app.search.retriever import Retriever, Term

_DIGITS = 5  # decimal digits of values in an answer
_MAX_ELEMENTS = 12  # maximum number of views in an answer, if each view is a single element
Rows = list[Any]  # nested lists of numbers; pydantic does not validate them


class Views(Timed):
    """The views of one image; the fields from `text` on are set only for a text.

    Each of `views` has an index, a map over the grid (null without attention) and, for a text, a
    score. If each view is a single cell, a text selects the 12 views with the highest nonzero
    scores, highest first. `similarity` has the cosines of all pairs of views. `inside` has the
    method's intermediate arrays (`Method.inside`), and `knobs` the settings of these arrays.
    """

    image_id: int
    file: str
    captions: list[str]
    method: str
    grid: list[int]
    box: list[float]
    sheet: list[int] | None
    frames: list[int]
    attention_is: str
    views: list[dict[str, Any]]
    similarity: Rows
    inside: list[dict[str, Any]]
    knobs: list[dict[str, Any]]
    collapsed: bool = False
    text: str = ""
    score: float = 0.0
    view_scores_are: str = ""
    winner: int | None = None
    words: list[str] = Field(default=[])
    word_attention: Rows | None = None
    remark: str = ""


class Lens(Timed):
    """The hits of a search with weighted views; a search without weights finds `stayed` of them."""

    query: str
    method: str
    weights: list[float]
    searched: int
    stayed: int
    hits: list[Hit]
    remark: str = ""


@torch.inference_mode()
def describe_views(
    retriever: Retriever, image_id: int, name: str, text: str, settings: Mapping[str, str]
) -> Views:
    """Describes the views of an image of the collection with one method.

    `text` is a sentence, or empty; `settings` has values of the method's knobs (`Method.knobs`).
    Raises ValueError if the image, method or a setting is unknown, or the text cannot be read.
    """
    method, image = retriever.methods.require_single(name), retriever.image(image_id)
    knobs = {knob.name: knob for knob in method.knobs}
    if unknown := settings.keys() - knobs.keys():
        names = ", ".join(knobs) or "none"
        raise ValueError(f'{name} has no setting "{min(unknown)[:80]}"; its settings are {names}')
    values = {k: int(v) if v.isdecimal() else v for k, v in settings.items()}
    images = retriever.views([image_id], name, attention=True)
    texts = retriever.views(text, name, attention=True) if text.strip() else None
    maps = None
    if images.attention is not None:
        attention, adds_up = images.attention.float(), method.attention_sums_to_one
        maps = to_maps(retriever, attention, [image_id], adds_up)[0].cpu()  # (V, rows, columns)
    sheet, frames = sheets(retriever, [image_id])
    views: list[dict[str, Any]] = [
        {"view": v, "attention": None if maps is None else nested(maps[v])}
        for v in range(images.embeddings.shape[1])
    ]
    unit = torch.nn.functional.normalize(images.embeddings[0].float(), dim=1)  # (V, D)
    answer = Views(
        image_id=image_id,
        file=image.file,
        captions=list(image.captions),
        method=name,
        grid=list(retriever.grid if maps is None else maps.shape[1:]),
        box=box(retriever, image_id),
        sheet=sheet,
        frames=frames[0] if frames else [],
        attention_is=method.attention_is,
        views=views,
        similarity=nested(unit @ unit.T),
        inside=[
            {**vars(array), "values": nested(array.values.float())}
            for array in method.inside(images, texts, **values)
        ],
        knobs=[{**k._asdict(), "value": values.get(k.name, k.default)} for k in method.knobs],
    )
    if texts is not None:
        scores = method.view_scores(images, texts)[:, 0, 0].float()  # (V,)
        for view, score in zip(answer.views, nested(scores), strict=True):
            view["score"] = score
        winner = int(scores.argmax())
        if method.views_are_elements:
            candidates = (v for v in answer.views if v["score"] or v["view"] == winner)
            ranking = sorted(candidates, key=lambda view: view["score"], reverse=True)
            answer.views = ranking[:_MAX_ELEMENTS]
        answer.text, answer.winner = text, winner
        answer.score = round(float(method.score(images, texts)), _DIGITS)
        answer.view_scores_are = method.view_scores_are
        answer.words = retriever.tokenize(text).words
        answer.word_attention = None if texts.attention is None else nested(texts.attention[0])
    return answer


@torch.inference_mode()
def search_weighted(
    retriever: Retriever, words: str, name: str, weights: Sequence[float], k: int
) -> Lens:
    """Finds the k best images for the sentence `words` with weighted views (`apply_view_weights`).

    `weights` has a number in 0..1 for each view, not all 0. Raises ValueError if the method is
    unknown, the weights are not valid, or the gallery is empty.
    """
    method = retriever.methods.require_single(name)
    lens = torch.tensor(weights, dtype=torch.float32)
    query, gallery = retriever.views(words, name), retriever.index.images[name]
    chunks = []
    for chunk_ids, views in gallery.chunks():
        query = query.to(views.embeddings.device)
        weighted_views = method.apply_view_weights(views, lens)
        pair = (method.score(images, query)[:, 0] for images in (weighted_views, views))
        chunks.append((chunk_ids, *(scores.float().cpu().numpy() for scores in pair)))
    ids, scores, plain_scores = map(np.concatenate, zip(*chunks, strict=True))  # (N,) each
    if retriever.index.clips:  # only the best frame of each clip counts
        file_count = retriever.index.file_count
        plain_scores = best_of_files(Scores(ids, plain_scores, ids), file_count).values
        best_frames = best_of_files(Scores(ids, scores, ids), file_count)
        scores, ids = best_frames.values, best_frames.images
    plain_ranks = comparison.rank(plain_scores)
    rows = np.argsort(comparison.rank(scores))[:k]  # the k best
    weighted_views = method.apply_view_weights(gallery.views(ids[rows]), lens)
    # the index (k,) of each image's best view; `apply_view_weights` may have removed views
    best_indices = method.view_scores(weighted_views, query)[..., 0].argmax(dim=0)
    view_indices = torch.arange(len(lens))  # original indices of the remaining views
    if weighted_views.embeddings.shape[1] < len(lens):
        view_indices = view_indices[lens > 0]
    image_ids = retriever.find_best_frames(ids[rows].tolist(), [Term(words)], name)
    hits = []
    for i, (image_id, row) in enumerate(zip(image_ids, rows, strict=True)):
        hit = retriever.hit(image_id, float(scores[row]), int(view_indices[best_indices[i]]), i + 1)
        hit.before = int(plain_ranks[row])
        hits.append(hit)
    stayed = int((plain_ranks[rows] <= len(rows)).sum())
    return Lens(
        query=words, method=name, weights=list(weights), searched=len(ids), stayed=stayed, hits=hits
    )


def nested(values: Tensor | np.ndarray, digits: int = _DIGITS) -> Any:
    """Rounds an array to `digits` decimal digits and converts it to nested lists."""
    array = values.float().cpu().numpy() if isinstance(values, Tensor) else values
    return (np.round(np.asarray(array, np.float64), digits) + 0.0).tolist()  # + 0.0 removes -0.0
