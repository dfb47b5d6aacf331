"""The view lens: search with reduced weights for some views of every image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyview.app.gallery.index import Gallery
from polyview.app.search import comparison
from polyview.app.search.hits import Hit
from polyview.app.search.query import Term, checked, checked_k
from polyview.app.search.ranking import Scores, best_of_files
from polyview.app.search.retriever import MAX_HITS, Retriever
from polyview.models import Views


@dataclass(frozen=True)
class Ranking:
    """The result of the lens.

    Attributes:
        hits: best first, each with its rank without the lens.
        ids: (N,) the ids of the ranked images.
    """

    hits: list[tuple[Hit, int]]
    ids: np.ndarray

    @property
    def stayed(self) -> int:
        """The number of hits that would also be hits without the lens."""
        return sum(before <= len(self.hits) for _, before in self.hits)


@torch.inference_mode()
def rank(retriever: Retriever, words: str, name: str, weights: Sequence[float], k: int) -> Ranking:
    """Ranks every searchable image with weighted views, see `Method.weighted`.

    Args:
        retriever: the pack and its images.
        words: a sentence.
        name: a method.
        weights: one for each view, 0 to 1, not all 0.
        k: at least 1; at most 1,000 images are returned.

    Raises:
        ValueError: the method is unknown, the weights or k are not valid, or nothing is searchable.
    """
    method, k = retriever.methods.one(name), min(checked_k(k), MAX_HITS)
    query, gallery = retriever.views(checked(words), name), retriever.gallery(name)
    ids, scores, plain, lens = score(gallery, query, weights)
    if retriever.index.clips:  # the best frame of each clip, with and without the lens
        files = retriever.index.files
        plain = best_of_files(Scores(ids, plain), files).values
        best_frames = best_of_files(Scores(ids, scores), files)
        scores, ids = best_frames.values, best_frames.images
    before = comparison.rank(plain)
    best = np.argsort(comparison.rank(scores))[:k]
    weighted = method.weighted(gallery.views(ids[best]), lens)
    query = query.to(weighted.embeddings.device)
    won = method.view_scores(weighted, query)[..., 0].argmax(dim=0)  # (k,), of remaining views
    stay = torch.arange(len(lens))
    if weighted.embeddings.shape[1] < len(lens):
        stay = stay[lens > 0]
    image_ids = retriever.moments(ids[best].tolist(), [Term(words)], name)
    places = enumerate(zip(image_ids, best, won.tolist(), strict=True), start=1)
    hits = [
        (retriever.hit(image_id, float(scores[row]), int(stay[view]), place), int(before[row]))
        for place, (image_id, row, view) in places
    ]
    return Ranking(hits, ids)


@torch.inference_mode()
def score(
    gallery: Gallery, query: Views, weights: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """Scores a gallery's images with and without the lens, a few hundred at a time.

    Args:
        gallery: the views of N images.
        query: the views (1, W, D) of a text.
        weights: see `rank`.

    Returns:
        Ids, scores with the lens, and scores without it, (N,) each, and the weights as (V,).

    Raises:
        ValueError: the weights are not valid, or nothing is searchable.
    """
    method, ids, now, before = gallery.method, [], [], []
    lens = torch.tensor(weights, dtype=torch.float32)
    for part, views in gallery.chunks():
        query = query.to(views.embeddings.device)
        ids.append(part)
        now.append(method.score(method.weighted(views, lens), query)[:, 0].float().cpu())
        before.append(method.score(views, query)[:, 0].float().cpu())
    return np.concatenate(ids), torch.cat(now).numpy(), torch.cat(before).numpy(), lens
