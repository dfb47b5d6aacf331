"""The view lens: search with reduced weights for some views of every image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from polyview.app.search import comparison
from polyview.app.search.clips import Scores, best_of_files
from polyview.app.search.hits import Hit, Timed
from polyview.app.search.retriever import Retriever, Term


class Lens(Timed):
    """Hits with weighted views; `stayed` of them are also hits without weights."""

    query: str
    method: str
    weights: list[float]
    searched: int
    stayed: int
    hits: list[Hit]
    remark: str = ""


@torch.inference_mode()
def rank(retriever: Retriever, words: str, name: str, weights: Sequence[float], k: int) -> Lens:
    """Finds the k best images for a sentence with weighted views, see `Method.weighted`.

    `weights` has a number from 0 to 1 for each view; not all are 0. Raises ValueError if the method
    is unknown, the weights are not valid, or nothing is searchable.
    """
    method = retriever.methods.require_single(name)
    lens = torch.tensor(weights, dtype=torch.float32)
    query, gallery = retriever.views(words, name), retriever.gallery(name)
    chunks = []
    for chunk_ids, views in gallery.chunks():
        query = query.to(views.embeddings.device)
        pair = (method.score(v, query)[:, 0] for v in (method.weighted(views, lens), views))
        chunks.append((chunk_ids, *(scores.float().cpu().numpy() for scores in pair)))
    ids, scores, plain_scores = map(np.concatenate, zip(*chunks, strict=True))  # (N,) each
    if retriever.index.clips:  # the best frame of each clip, with and without the lens
        files = retriever.index.files
        plain_scores = best_of_files(Scores(ids, plain_scores, ids), files).values
        best_frames = best_of_files(Scores(ids, scores, ids), files)
        scores, ids = best_frames.values, best_frames.images
    plain_ranks = comparison.rank(plain_scores)
    best = np.argsort(comparison.rank(scores))[:k]
    weighted = method.weighted(gallery.views(ids[best]), lens)
    winners = method.view_scores(weighted, query)[..., 0].argmax(dim=0)  # (k,), of remaining views
    remaining = torch.arange(len(lens))
    if weighted.embeddings.shape[1] < len(lens):
        remaining = remaining[lens > 0]
    image_ids = retriever.moments(ids[best].tolist(), [Term(words)], name)
    hits = []
    for i, (image_id, row) in enumerate(zip(image_ids, best, strict=True)):
        hit = retriever.hit(image_id, float(scores[row]), int(remaining[winners[i]]), i + 1)
        hit.before = int(plain_ranks[row])
        hits.append(hit)
    stayed = int((plain_ranks[best] <= len(best)).sum())
    return Lens(
        query=words, method=name, weights=list(weights), searched=len(ids), stayed=stayed, hits=hits
    )
