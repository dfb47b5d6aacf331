"""The views of a gallery in memory, and the best of them for a query."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyview.models import Method, Views

HALF_FROM = 32 * 2**20  # bytes in float32 from which views are kept in float16
HALF_SCORED_FROM = 2 * 2**30  # the same where every item is scored by the method
CLUSTERED_FROM = 2**30  # bytes in float16 from which candidates come from clusters
RECALL = 0.97  # of the ten best, that clusters must reach
_BEST = 10
_CHUNK = 4096  # items scored at once
_MARGIN = 2.0**-8  # of the lengths of two rows: twice what a product in float16 may be wrong by
_LISTED = 1024  # rows that clusters list, at least
_TRAINING = 40  # rows for each cluster that centres are found with


class Match(NamedTuple):
    """An item: its id, its score, and the image view that won (0 with one view)."""

    id: int
    score: float
    view: int


class Gallery:
    """Views of one method, for images or captions; safe to use from several threads.

    - Small galleries lie in float32, and every item is scored.
    - Larger ones lie in float16. Where one pair of rows decides the score (`Method.row_search`),
      the products of all rows with the query's are computed in float16, and the items that they do
      not rule out are scored. That is exact: let x be one of the k best, by the query's row w.
      Fewer than k items have a row with a larger product with w, so the product of x is at least
      the k-th largest; `_MARGIN` covers the rounding of both.
    - Above `CLUSTERED_FROM`, after `settle`, rows come from the nearest clusters (FAISS IVF over
      rows of 8 bits): approximate, and `recall` says how much of the ten best is found.

    Args:
        side: what the items are; a query is of the other kind or, for images, may be an image.
        method: makes the views, and scores them.
        device: where views are kept and scored; float16 and clusters are for the CPU alone.
        expected: about how many items will come.
        half_from: bytes of float32 from which float16 is used; None decides by the method.
        clustered_from: bytes of float16 from which `settle` makes clusters.

    Attributes:
        shape: views of an item and dimensions of a view, (V, D); None while there is no item.
        kept_as: how the views are kept, in words.
        recall: the share of the ten best that is found; None where searches are exact.
        local: the views lie in this process.
    """

    local = True

    def __init__(
        self,
        side: Literal["images", "texts"],
        method: Method,
        device: torch.device | str = "cpu",
        expected: int = 0,
        half_from: int | None = None,
        clustered_from: int = CLUSTERED_FROM,
    ) -> None:
        self.method, self.kept_as = method, "float32"
        self.shape: tuple[int, int] | None = None
        self.recall: float | None = None
        usual = HALF_FROM if method.row_search else HALF_SCORED_FROM
        self._half_from = usual if half_from is None else half_from
        self._side, self._device = side, torch.device(device)
        self._clustered_from, self._expected = clustered_from, expected
        self._lock = threading.Lock()  # of the next three
        self._ids, self._count = np.empty(0, np.int64), 0
        self._tensor = torch.empty(0, 1, 1)  # (capacity, V, D)
        self._longest = 0.0  # length of the longest row
        self._clusters: Any = None  # faiss.IndexIVFScalarQuantizer

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Memory of this process that the views and their clusters take."""
        views, clusters = self._count * self._tensor[:0].itemsize * self._numbers, self._clusters
        if clusters is None:
            return views
        return views + clusters.ntotal * (clusters.d + 8) + clusters.nlist * clusters.d * 4

    @property
    def _numbers(self) -> int:
        """Of an item."""
        return math.prod(self.shape or (0,))

    def ids(self) -> np.ndarray:
        """Every id (N,), in the order of adding."""
        return self._filled()[0]

    def caveat(self, only: AbstractSet[int] | None = None) -> str:
        """In what way such a search is not exact, in a sentence; empty where it is."""
        if self._clusters is None or only is not None:
            return ""
        return f"Approximate: finds {self.recall:.0%} of the ten best."

    def add(self, ids: Sequence[int], views: Tensor) -> None:
        """Appends items.

        Args:
            ids: what `search` calls each item.
            views: (B, V, D) with B = len(ids); V and D as in what was added before.

        Raises:
            ValueError: the shapes do not fit.
        """
        views = views.detach().to(self._device, torch.float32)
        if len(ids) != len(views):
            raise ValueError(f"{len(ids)} ids were given for {len(views)} items")
        if not len(views):
            return
        with self._lock:
            if self.shape is None:
                self.shape = views.shape[1], views.shape[2]
                size = 4 * max(self._expected, len(views)) * self._numbers
                if self._device.type == "cpu" and size >= self._half_from:
                    self.kept_as = "float16"
                kind = torch.float16 if self.kept_as == "float16" else torch.float32
                self._tensor = views.new_empty((0, *self.shape), dtype=kind)
            if self.shape != tuple(views.shape[1:]):
                raise ValueError(
                    f"items of shape {tuple(views.shape[1:])} do not fit a gallery of {self.shape}"
                )
            count, total = self._count, self._count + len(ids)
            if total > len(self._ids):  # readers keep the old ones
                more = max(total, self._expected, 2 * count)
                known, self._ids = self._ids, np.empty(more, np.int64)
                held, self._tensor = self._tensor, self._tensor.new_empty((more, *self.shape))
                self._ids[:count], self._tensor[:count] = known[:count], held[:count]
            self._ids[count:total], self._tensor[count:total] = ids, views
            self._longest = max(self._longest, float(self._rows(views).norm(dim=-1).max()))
            self._count = total

    def _filled(self) -> tuple[np.ndarray, Tensor]:
        """Every id (N,) and its views (N, V, D), as they are kept."""
        with self._lock:
            return self._ids[: self._count], self._tensor[: self._count]

    def _rows(self, views: Tensor) -> Tensor:
        """Views (n, V, D), cut into rows (n R, E) as the method says."""
        return views.reshape(-1, self.method.row_dim(*(self.shape or (1, 1))))

    def chunks(self) -> Iterator[tuple[np.ndarray, Views]]:
        """Every id and its views, some at a time: ids (n,), views (n, V, D) float32.

        Raises:
            ValueError: there is none.
        """
        ids, views = self._filled()
        if not len(ids):
            raise ValueError("nothing is searchable yet; try again in a moment")
        for start in range(0, len(ids), _CHUNK):
            part = slice(start, start + _CHUNK)
            yield ids[part], Views(views[part].float())

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """The views (n, V, D) float32 of n ids, each of which was added before."""
        known, views = self._filled()
        requested = np.asarray(ids, np.int64)
        places = np.minimum(np.searchsorted(known, requested), len(known) - 1)
        if (known[places] != requested).any():  # ids did not come in ascending order
            order = np.argsort(known, kind="stable")
            places = order[np.searchsorted(known, requested, sorter=order)]
        if views.is_cuda:
            return Views(views[torch.from_numpy(places).to(self._device)])
        # numpy gathers a few rows faster than torch
        return Views(torch.from_numpy(views.numpy()[places]).float())

    @torch.inference_mode()
    def search(self, query: Views, k: int, only: AbstractSet[int] | None = None) -> list[Match]:
        """The k best items, best first; ties in the order of adding.

        Args:
            query: (1, W, D) the views of one text or image.
            k: at least 1; more than there are items returns them all.
            only: ids of the items to rank; None ranks all.
        """
        if not len(self):
            return []
        query = query.to(self._device)
        ids = self.candidates(query, min(k, len(self)), only)
        if ids is None:
            ids, values = self.scores(query)
            scores = torch.from_numpy(values)
        else:
            starts = range(0, len(ids), _CHUNK)
            parts = [self._score(self.views(ids[i : i + _CHUNK]), query) for i in starts]
            scores = torch.cat(parts or [torch.empty(0)]).float().cpu()
        best = _best(scores, k)
        ids = ids[best.numpy()]
        if not len(ids):
            return []
        views = self.views(ids)
        if self._side == "images":
            won = self.method.view_scores(views, query)[..., 0].argmax(dim=0)
        else:
            won = self.method.view_scores(query, views)[:, 0].argmax(dim=0)
        triples = zip(ids.tolist(), scores[best].tolist(), won.tolist(), strict=True)
        return [Match(*triple) for triple in triples]

    @torch.inference_mode()
    def scores(self, query: Views) -> tuple[np.ndarray, np.ndarray]:
        """Every id (N,) and its exact score (N,) float32, for a query (1, W, D).

        Raises:
            ValueError: there is no item.
        """
        query = query.to(self._device)
        pairs = [(ids, self._score(views, query)) for ids, views in self.chunks()]
        scores = torch.cat([part for _, part in pairs]).float().cpu().numpy()
        return np.concatenate([ids for ids, _ in pairs]), scores

    def _score(self, items: Views, query: Views) -> Tensor:
        """Scores (n,) of items (n, V, D)."""
        if self._side == "images":
            return self.method.score(items, query)[:, 0]
        return self.method.score(query, items)[0]

    def candidates(self, query: Views, k: int, only: AbstractSet[int] | None) -> np.ndarray | None:
        """Ids among which the k best are, in the order of adding; None for all.

        Args:
            query: (1, W, D).
            k: at most as many as there are items.
            only: ids of the items to rank; None ranks all.
        """
        ids, views = self._filled()
        if only is not None:
            return ids[np.isin(ids, list(only))]
        if self._clusters is not None:
            return self._clustered(query, k, self._clusters)
        if views.dtype != torch.float16 or not self.method.row_search:
            return None
        rows, near = self._rows(views), torch.zeros(len(ids), dtype=torch.bool)
        for needle in self._rows(query.embeddings):
            # one vector at a time: torch has no fast product of matrices in float16 for CPUs
            products = (rows @ needle.half()).view(len(ids), -1).amax(dim=1).float()  # (N,)
            least = products.topk(k).values[-1] - _MARGIN * self._longest * needle.norm()
            near |= products >= least
        return ids[near.numpy()]

    def _clustered(self, query: Views, k: int, clusters: Any) -> np.ndarray | None:
        """Ids that own the rows with the largest products in clusters; None for too few."""
        ids, each = self.ids(), self._numbers // clusters.d
        needles = self._rows(query.embeddings).float().contiguous().numpy()
        _, rows = clusters.search(needles, max(_LISTED, 16 * k * each))  # -1 where too few
        items = np.unique(rows[rows >= 0] // each)
        later = np.arange(clusters.ntotal // each, len(ids))
        return ids[np.concatenate([items, later])] if len(items) >= k else None

    def is_large(self) -> bool:
        """Whether `settle` makes clusters."""
        size = 2 * self._count * self._numbers
        return self.kept_as.startswith("float16") and size >= self._clustered_from

    def settle(self, probes: Sequence[Views]) -> None:
        """Makes a large gallery fast once it is filled; searches go on meanwhile.

        Finding clusters takes minutes for millions of rows. As many of them are searched as give
        `RECALL` of what scoring everything finds for the probes.

        Args:
            probes: queries (1, W, D) like those that will come; at least one.
        """
        if self.is_large():
            clusters = self._find_clusters()
            self.recall = self._tune(clusters, probes)
            self._clusters = clusters
            self.kept_as = f"float16, in {clusters.nlist:,} clusters of 8 bits"

    def _find_clusters(self) -> Any:
        """An inverted file over rows, with about 2 sqrt(R) centres."""
        views = self._filled()[1]
        dim, count = self._rows(views).shape[1], len(self._rows(views))
        clusters = max(1, min(2 ** round(math.log2(2 * math.sqrt(count))), count // _TRAINING))
        import faiss  # 13 MB of memory, which most galleries never need

        kind, product = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        centres = faiss.IndexFlatIP(dim)
        # rows themselves are kept, not their differences from the centre
        index = faiss.IndexIVFScalarQuantizer(centres, dim, clusters, kind, product, False)
        index.parallel_mode = 1  # threads share the clusters of one row
        index.cp.niter, index.cp.spherical, index.cp.seed = 8, True, 0
        some = np.random.default_rng(0).permutation(count)[: clusters * _TRAINING]
        index.train(self._rows(views)[torch.from_numpy(np.sort(some))].float().numpy())
        for part in views.split(_CHUNK):
            index.add(self._rows(part).float().numpy())
        return index

    @torch.inference_mode()
    def _tune(self, clusters: Any, probes: Sequence[Views]) -> float:
        """Searches twice as many clusters until the recall suffices; returns the recall."""
        exact = [{match.id for match in self.search(probe, _BEST)} for probe in probes]
        while True:
            shares = []
            for probe, best in zip(probes, exact, strict=True):
                ids = self._clustered(probe, _BEST, clusters)
                shares.append(1.0 if ids is None else len(best & {*ids.tolist()}) / len(best))
            recall = sum(shares) / len(shares)
            if recall >= RECALL or clusters.nprobe >= clusters.nlist:
                return recall
            clusters.nprobe = min(2 * clusters.nprobe, clusters.nlist)


def _best(scores: Tensor, k: int) -> Tensor:
    """Places of the k largest of (N,), falling; ties in their order."""
    if not len(scores):
        return torch.empty(0, dtype=torch.int64)
    kth = scores.topk(min(k, len(scores))).values[-1]
    some = (scores >= kth).nonzero()[:, 0]
    return some[scores[some].sort(descending=True, stable=True).indices[:k]]
