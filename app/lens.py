"""The view lens: what is found when some views of every picture count less, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.hits import Hit
from app.inside import method_of
from app.retriever import MAX_HITS, Retriever
from models import Method, Views

_CHUNK = 4096  # pictures scored in one call


@dataclass(frozen=True)
class LensHit:
    """A picture found through the lens, and its rank without it."""

    hit: Hit
    before: int

    @property
    def moved(self) -> int:
        """How many places it went up, or down where negative."""
        return self.before - self.hit.rank


@dataclass(frozen=True)
class Ranking:
    """What the lens finds.

    Attributes:
        hits: best first.
        searched: how many pictures were ranked.
        stayed: how many of the hits are among as many without the lens.
        ranks: for each picture's id, its rank with the lens and without.
    """

    hits: list[LensHit]
    searched: int
    stayed: int
    ranks: Mapping[int, tuple[int, int]]


@torch.inference_mode()
def rank(
    retriever: Retriever, query: Views, name: str, weights: Sequence[float], k: int
) -> Ranking:
    """Ranks every searchable picture with weighted views, see `Method.weighted`.

    Args:
        retriever: whose pictures are ranked.
        query: (1, W, D) a text's views.
        name: the method that made them.
        weights: one for each view, 0 to 1, not all 0.
        k: at least 1; at most 1,000 pictures are returned.

    Raises:
        ValueError: an unknown method, weights or a k that make no sense, or nothing is searchable.
    """
    method = method_of(retriever, name)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r}")
    ids, views = retriever.index.images[name].items()
    count = views.embeddings.shape[1]
    lens = read_weights(weights, count)
    query = query.to(views.embeddings.device)
    now, before = _scores(method, views, query, lens)
    order = now.argsort(descending=True, stable=True)
    best, places, old_places = order[:k][:MAX_HITS], _ranks(order), _ranks_of(before)
    weighted = method.weighted(Views(views.embeddings[best]), lens)
    won = method.view_scores(weighted, query)[..., 0].argmax(dim=0)  # (k,), of those that stay
    stay = torch.arange(count)
    if weighted.embeddings.shape[1] < count:
        stay = stay[lens > 0]
    hits = [
        LensHit(
            Hit(
                ids[row],
                retriever.picture(ids[row]).file,
                float(now[row]),
                int(stay[int(view)]),
                place,
            ),
            int(old_places[row]),
        )
        for place, (row, view) in enumerate(zip(best.tolist(), won, strict=True), start=1)
    ]
    pairs = zip(places.tolist(), old_places.tolist(), strict=True)
    stayed = sum(hit.before <= len(hits) for hit in hits)
    return Ranking(hits, len(ids), stayed, dict(zip(ids, pairs, strict=True)))


def read_weights(weights: Any, count: int) -> Tensor:
    """Weights from outside as (V,); their range is for `Method.weighted` to check.

    Raises:
        ValueError: it is no list of `count` numbers.
    """
    listed = isinstance(weights, list | tuple)
    numbers = listed and all(
        isinstance(w, int | float) and not isinstance(w, bool) and abs(w) <= 1e300 for w in weights
    )
    if not numbers or len(weights) != count:
        shown = str(weights)[:80]
        raise ValueError(f"weights must be {count} numbers from 0 to 1, one a view, not {shown}")
    return torch.tensor([float(w) for w in weights])


def _scores(method: Method, views: Views, query: Views, lens: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of every picture with the lens and without, (N,) each on the CPU."""
    now, before = [], []
    for rows in views.embeddings.split(_CHUNK):
        part = Views(rows)
        now.append(method.score(method.weighted(part, lens), query)[:, 0])
        before.append(method.score(part, query)[:, 0])
    return torch.cat(now).float().cpu(), torch.cat(before).float().cpu()


def _ranks_of(scores: Tensor) -> Tensor:
    return _ranks(scores.argsort(descending=True, stable=True))


def _ranks(order: Tensor) -> Tensor:
    """The rank, from 1, of each item of an order (N,)."""
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(1, len(order) + 1)
    return ranks
