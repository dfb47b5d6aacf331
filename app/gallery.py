"""The searchable store: view embeddings of pictures or captions, and an exact top-k over them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

import faiss
import numpy as np
import torch
from torch import Tensor

from models import Method, Views

EXHAUSTIVE_UP_TO = 4096  # items; below, scoring all is faster than a shortlist
_CHUNK = 4096  # items scored in one call
_SLACK = 1e-5  # float32 inner products of unit vectors differ by less between two orders of adding


class Match(NamedTuple):
    """One found item: its id, its score, and the image view that won (0 with one view)."""

    id: int
    score: float
    view: int


class Gallery:
    """View embeddings of one method, for pictures or for captions.

    `search` is exact. Methods whose score is the largest inner product between a view row of the
    item and one of the query (`Method.row_search`) are searched through a shortlist of rows, the
    others, and small galleries, by scoring every item.

    **Why the shortlist is exact.** Let items own V rows each, and let the query have W rows. For
    each query row w, FAISS lists the T rows with the largest inner products, T = kV + 1; let b be
    the largest, over w, of the last products listed, and let C be the items that own a listed row.

    1. *C holds more than k items*, or all: the T rows of one list belong to at least
       ceil((kV + 1) / V) = k + 1 items, since no item owns more than V of them.
    2. *Nothing outside C scores more than b.* An item's score is one of its inner products; if none
       of its rows is listed, its products with each w are at most the last one listed for w.
    3. Let s be the k-th best exact score within C. *s >= b always*: the list of the w that attains
       b names k + 1 items, each with a product, hence a score, of at least b. *If s > b*, all items
       that score at least s are in C by 2, so the k best of C are the k best of all, and ties at
       the k-th place are broken as an exhaustive search breaks them. *If s = b* (ties; in float
       arithmetic: s <= b + slack), T is doubled and the step repeated; at the latest it ends when
       T covers all rows.

    Args:
        side: what the items are; the query is of the other kind or, for pictures, may be a picture.
        device: where embeddings are kept and scored; the shortlist is used on the CPU only.
        exhaustive_up_to: galleries of up to this many items are scored one by one.
    """

    def __init__(
        self,
        side: Literal["images", "texts"],
        device: torch.device | str = "cpu",
        exhaustive_up_to: int = EXHAUSTIVE_UP_TO,
    ) -> None:
        self._side = side
        self._device = torch.device(device)
        self._exhaustive_up_to = exhaustive_up_to
        self._lock = threading.Lock()
        self._ids: list[int] = []
        self._buffer: Tensor | None = None  # (capacity, V, D), filled from the front

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Views of an item and dimensions of a view, (V, D); None while there is no item."""
        return None if self._buffer is None else (self._buffer.shape[1], self._buffer.shape[2])

    def add(self, ids: Sequence[int], views: Views) -> None:
        """Appends items; searches already under way do not see them.

        Args:
            ids: what `search` calls each item.
            views: (B, V, D) with B = len(ids); V and D as in what was added before.

        Raises:
            ValueError: the shapes do not fit.
        """
        rows = views.embeddings.detach().to(self._device, torch.float32)  # (B, V, D)
        if len(ids) != len(rows):
            raise ValueError(f"{len(ids)} ids were given for {len(rows)} items")
        with self._lock:
            before, after = len(self._ids), len(self._ids) + len(rows)
            if self._buffer is not None and self._buffer.shape[1:] != rows.shape[1:]:
                raise ValueError(
                    f"items of shape {tuple(rows.shape[1:])} do not fit a gallery of "
                    f"{tuple(self._buffer.shape[1:])}"
                )
            if self._buffer is None or after > len(self._buffer):
                self._buffer = self._grown(rows, before, after)
            self._buffer[before:after] = rows
            self._ids.extend(ids)

    def search(
        self, query: Views, k: int, method: Method, only: AbstractSet[int] | None = None
    ) -> list[Match]:
        """The k best items, best first; ties in the order of adding.

        Args:
            query: (1, W, D) the views of one text or picture.
            k: at least 1; more than there are items returns them all.
            method: scores; the one that made the embeddings.
            only: ids of the items to rank, each of which is then scored; None ranks all.
        """
        with self._lock:
            ids, buffer = self._ids, self._buffer
            count = len(ids)
        if not count or buffer is None:
            return []
        rows, query, k = buffer[:count], query.to(self._device), min(k, count)
        with torch.inference_mode():
            if only is not None:
                items = torch.tensor([i for i in range(count) if ids[i] in only], dtype=torch.long)
                if not len(items):
                    return []
                scores = self._score(rows[items], query, method)
            elif self._must_score_all(count, method):
                items = torch.arange(count)
                scores = self._score(rows, query, method)
            else:
                items, scores = self._shortlist(rows, query, k, method)
            best = scores.sort(descending=True, stable=True).indices[:k]
            items, scores = items.to(best.device)[best], scores[best]
            views = self._winning_views(rows[items], query, method)
        triples = zip(items.tolist(), scores.tolist(), views.tolist(), strict=True)
        return [Match(ids[item], score, view) for item, score, view in triples]

    def items(self) -> tuple[list[int], Views]:
        """Everything added so far: ids, and views (N, V, D) that later additions do not change.

        Raises:
            ValueError: nothing was added yet.
        """
        with self._lock:
            count, buffer = len(self._ids), self._buffer
            ids = self._ids[:count]
        if buffer is None:
            raise ValueError("nothing is searchable yet; try again in a moment")
        return ids, Views(buffer[:count])

    @torch.inference_mode()
    def scores(self, query: Views, method: Method) -> tuple[list[int], Tensor]:
        """Exact scores of everything added so far.

        Args:
            query: (1, W, D) the views of one text or picture.
            method: the one that made the embeddings.

        Returns:
            Ids in the order of adding, and their scores (N,) float32 on the CPU.
        """
        ids, views = self.items()
        return ids, self._score(views.embeddings, query.to(self._device), method).float().cpu()

    @torch.inference_mode()
    def view_scores(self, query: Views, method: Method) -> tuple[list[int], Tensor]:
        """As `scores`, for each image view by itself: (V, N)."""
        ids, views = self.items()
        query = query.to(self._device)
        if self._side == "images":
            return ids, method.view_scores(views, query)[..., 0].float().cpu()
        return ids, method.view_scores(query, views)[:, 0].float().cpu()

    @torch.inference_mode()
    def winners(self, query: Views, method: Method, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Which image view scores best, counted from 0.

        Args:
            query: (1, W, D) the views of one text or picture.
            method: the one that made the embeddings.
            ids: (n,) of items added before.

        Returns:
            (n,) int64, in the order of `ids`.
        """
        known, views = self.items()
        place = {item: row for row, item in enumerate(known)}
        rows = torch.tensor([place[int(item)] for item in ids], dtype=torch.long)
        if not len(rows):
            return np.empty(0, np.int64)
        found = self._winning_views(views.embeddings[rows], query.to(self._device), method)
        return found.cpu().numpy()

    def _grown(self, rows: Tensor, before: int, after: int) -> Tensor:
        """A buffer of twice the size with the present items in it; old readers keep the old one."""
        buffer = rows.new_empty((max(after, 2 * before), *rows.shape[1:]))
        if self._buffer is not None:
            buffer[:before] = self._buffer[:before]
        return buffer

    def _must_score_all(self, count: int, method: Method) -> bool:
        if not method.row_search or self._device.type != "cpu":
            return True
        return count <= self._exhaustive_up_to

    def _score(self, rows: Tensor, query: Views, method: Method) -> Tensor:
        """Exact scores of items (n, V, D): (n,)."""
        parts = [Views(part) for part in rows.split(_CHUNK)]
        if self._side == "images":
            return torch.cat([method.score(part, query)[:, 0] for part in parts])
        return torch.cat([method.score(query, part)[0] for part in parts])

    def _winning_views(self, rows: Tensor, query: Views, method: Method) -> Tensor:
        """Which image view scores best for each item (n, V, D): (n,)."""
        items = Views(rows)
        if self._side == "images":
            return method.view_scores(items, query)[..., 0].argmax(dim=0)  # (V, n) -> (n,)
        return method.view_scores(query, items)[:, 0].argmax(dim=0)  # (V, n) -> (n,)

    def _shortlist(
        self, rows: Tensor, query: Views, k: int, method: Method
    ) -> tuple[Tensor, Tensor]:
        """Items among which the k best are, ascending, and their scores; see the class for why."""
        count, views, dim = rows.shape
        haystack = rows.reshape(count * views, dim).numpy()
        needles = query.embeddings[0].float().contiguous().numpy()  # (W, D)
        take = k * views + 1
        while True:
            take = min(take, len(haystack))
            products, found = faiss.knn(
                needles, haystack, take, metric=faiss.METRIC_INNER_PRODUCT
            )  # (W, T)
            items = torch.from_numpy(np.unique(found // views))
            scores = self._score(rows[items], query, method)
            kth = float(scores.topk(k).values[-1])
            bound = float(products[:, -1].max())
            if take == len(haystack) or kth > bound + _SLACK * max(1.0, abs(kth)):
                return items, scores
            take *= 2
