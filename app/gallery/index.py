"""The views of a gallery in memory, and the best of them for a query."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Literal, NamedTuple

import faiss
import numpy as np
import torch
from torch import Tensor

from polyview.models import Method, Views
from polyview.models.files import replacing

HALF_FROM = 32 * 2**20  # bytes in float32 from which rows are kept in float16 and scanned by FAISS
HALF_SCORED_FROM = 2 * 2**30  # the same where every item is scored by the method
CLUSTERED_FROM = 2**30  # bytes in float16 from which candidates come from clusters
RECALL = 0.97  # of the ten best, that clusters must reach
_BEST = 10
_CHUNK = 4096  # items read or scored at once
_SHARDS = 16  # parts of a gallery, each scanned by a thread
_SPARE = 64  # rows listed beyond those that suffice, so that equal scores are among them
_LISTED = 1024  # rows that clusters list, at least
_TRAINING = 40  # rows for each cluster that centres are found with

_log = logging.getLogger(__name__)


class Match(NamedTuple):
    """An item: its id, its score, and the image view that won (0 with one view)."""

    id: int
    score: float
    view: int


class Gallery:
    """Views of one method, for images or captions; safe to use from several threads.

    - Small galleries lie in one float32 tensor, and every item is scored.
    - Larger ones lie in float16. Where one pair of rows decides the score (`Method.row_search`),
      FAISS lists the rows with the largest inner products, and the items that own them are scored.
      That is exact: let an item own V rows, and x be one of the k best, by its row r and the
      query's row w. Fewer than k items have a row with a larger product with w, so r is among the
      first (k - 1) V + 1 rows listed for w. `_SPARE` more make room for products that differ by
      rounding alone; of more equal scores than that at the k-th place, any may be returned.
    - Above `CLUSTERED_FROM`, after `settle`, rows come from the nearest clusters (FAISS IVF over
      rows of 8 bits): approximate, and `recall` says how much of the ten best is found.

    Args:
        side: what the items are; a query is of the other kind or, for images, may be an image.
        method: makes the views, and scores them.
        device: where views are kept and scored; FAISS is for the CPU alone.
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
        self._lock = threading.RLock()  # FAISS's rows move in memory as they grow
        self._ids, self._count = np.empty(0, np.int64), 0
        self._tensor: Tensor | None = None  # (capacity, V, D) float32
        self._rows: Any = None  # faiss.IndexShards of float16
        self._shards: list[faiss.IndexScalarQuantizer] = []
        self._clusters: Any = None  # faiss.IndexIVFScalarQuantizer
        self._in_clusters = 0  # items

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Memory of this process that the views and their clusters take."""
        numbers = self._count * math.prod(self.shape or (0,))
        clusters = self._clusters
        if clusters is None:
            return (2 if self._rows is not None else 4) * numbers
        return 2 * numbers + clusters.ntotal * (clusters.d + 8) + clusters.nlist * clusters.d * 4

    def ids(self) -> np.ndarray:
        """Every id (N,), in the order of adding."""
        with self._lock:
            return self._ids[: self._count]

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
                self._begin(views)
            if self.shape != tuple(views.shape[1:]):
                raise ValueError(
                    f"items of shape {tuple(views.shape[1:])} do not fit a gallery of {self.shape}"
                )
            count, total = self._count, self._count + len(ids)
            capacity = max(total, self._expected, 2 * count)
            if total > len(self._ids):  # readers keep the old ones, here and below
                self._ids = np.concatenate(
                    [self._ids[:count], np.empty(capacity - count, np.int64)]
                )
            self._ids[count:total] = ids
            if self._rows is not None:
                self._append_half(views)
            else:
                if self._tensor is None or total > len(self._tensor):
                    more = views.new_empty((capacity, *views.shape[1:]))
                    more[:count] = more[:0] if self._tensor is None else self._tensor[:count]
                    self._tensor = more
                self._tensor[count:total] = views
            self._count = total

    def _begin(self, views: Tensor) -> None:
        """Decides how views are kept when the first ones come."""
        count, each, dim = views.shape
        self.shape = each, dim
        size = 4 * max(self._expected, count) * each * dim
        if self._device.type == "cpu" and size >= self._half_from:
            self.kept_as = "float16"
            make: Any = faiss.IndexShards  # in threads, numbering rows from shard to shard
            self._rows = make(self.method.row_dim(each, dim), True, True)

    def _append_half(self, views: Tensor) -> None:
        """Fills one shard after the other."""
        dim, most = self._rows.d, max(_CHUNK, -(-self._expected // _SHARDS)) * self._rows_of_item
        flat = views.reshape(-1, dim).numpy()
        while len(flat):
            if not self._shards or self._shards[-1].ntotal >= most:
                kind, product = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
                self._shards.append(faiss.IndexScalarQuantizer(dim, kind, product))
                self._rows.add_shard(self._shards[-1])
            room = most - self._shards[-1].ntotal
            self._shards[-1].add(flat[:room])
            flat = flat[room:]
        self._rows.syncWithSubIndexes()

    @property
    def _rows_of_item(self) -> int:
        views, dim = self.shape or (1, 1)
        return views * dim // self.method.row_dim(views, dim)

    def chunks(self) -> Iterator[tuple[np.ndarray, Views]]:
        """Every id and its views, some at a time: ids (n,), views (n, V, D) float32.

        Raises:
            ValueError: there is none.
        """
        ids = self.ids()
        if not len(ids):
            raise ValueError("nothing is searchable yet; try again in a moment")
        for start in range(0, len(ids), _CHUNK):
            part = ids[start : start + _CHUNK]
            end = start + len(part)
            if self._tensor is None:
                yield part, Views(self._take(np.arange(start, end)))
            else:
                yield part, Views(self._tensor[start:end])

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """The views (n, V, D) float32 of n ids, each of which was added before."""
        wanted, known = np.asarray(ids, np.int64), self.ids()
        places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        if (known[places] != wanted).any():  # ids did not come in ascending order
            order = np.argsort(known, kind="stable")
            places = order[np.searchsorted(known, wanted, sorter=order)]
        return Views(self._take(places))

    def _take(self, places: np.ndarray) -> Tensor:
        """Views (n, V, D) of items by their places."""
        if self._tensor is not None:
            if self._device.type == "cpu":  # numpy gathers a few rows faster than torch
                return torch.from_numpy(self._tensor.numpy()[places])
            return self._tensor[torch.from_numpy(places).to(self._device)]
        assert self.shape is not None
        each = self._rows_of_item
        rows = (places[:, None] * each + np.arange(each)).ravel()
        values = np.empty((len(rows), self._rows.d), np.float32)
        with self._lock:
            starts = np.cumsum([0, *(shard.ntotal for shard in self._shards)])
            owners = np.searchsorted(starts, rows, side="right") - 1
            for owner in np.unique(owners):
                own = owners == owner
                values[own] = self._shards[owner].reconstruct_batch(rows[own] - starts[owner])
        return torch.from_numpy(values).reshape(-1, *self.shape)

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
        if only is not None:
            ids = self.ids()
            return ids[np.isin(ids, list(only))]
        return self._listed(query, k, self._clusters)

    def _listed(self, query: Views, k: int, clusters: Any) -> np.ndarray | None:
        """Ids that own rows with large inner products, of clusters or exactly; None for all."""
        if self._rows is None or (clusters is None and not self.method.row_search):
            return None
        each = self._rows_of_item
        needles = query.embeddings[0].float().reshape(-1, self._rows.d).contiguous().numpy()
        with self._lock:
            if clusters is None:
                _, rows = self._rows.search(needles, min(k * each + _SPARE, self._rows.ntotal))
                return self._ids[np.unique(rows // each)]
            _, rows = clusters.search(needles, max(_LISTED, 16 * k * each))  # -1 where too few
            items = np.unique(rows[rows >= 0] // each)
            later = np.arange(self._in_clusters or self._count, self._count)
            return self._ids[np.concatenate([items, later])] if len(items) >= k else None

    def is_large(self) -> bool:
        """Whether `settle` makes clusters."""
        numbers = self._count * math.prod(self.shape or (0,))
        return self._rows is not None and 2 * numbers >= self._clustered_from

    def settle(self, probes: Sequence[Views], kept: Path | None = None) -> None:
        """Makes a large gallery fast once it is filled; searches go on meanwhile.

        Finding clusters takes minutes for millions of rows. As many of them are searched as give
        `RECALL` of what scoring everything finds for the probes.

        Args:
            probes: queries (1, W, D) like those that will come; at least one.
            kept: the first part of the name of the file that keeps clusters of exactly these
                items; None for no file.
        """
        if not self.is_large():
            return
        clusters: Any = None
        for file in kept.parent.glob(f"{kept.name}-*.faiss") if kept else ():
            try:
                clusters, self.recall = faiss.read_index(str(file)), float(file.stem[-6:])
            except (RuntimeError, ValueError) as error:
                _log.warning("clusters are made again: %s", error)
        if clusters is None:
            clusters = self._find_clusters()
            self.recall = self._tune(clusters, probes)
            if kept is not None:
                try:
                    with replacing(kept.with_name(f"{kept.name}-{self.recall:.4f}.faiss")) as draft:
                        faiss.write_index(clusters, str(draft))
                except (OSError, RuntimeError) as error:
                    _log.warning("clusters cannot be kept in %s: %s", kept.parent, error)
        self._in_clusters, self._clusters = clusters.ntotal // self._rows_of_item, clusters
        self.kept_as = f"float16, in {clusters.nlist:,} clusters of 8 bits"

    def _find_clusters(self) -> faiss.IndexIVFScalarQuantizer:
        """An inverted file over rows, with about 2 sqrt(R) centres."""
        each, dim = self._rows_of_item, self._rows.d
        rows = self._count * each
        count = max(1, min(2 ** round(math.log2(2 * math.sqrt(rows))), rows // _TRAINING))
        kind, product = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        centres = faiss.IndexFlatIP(dim)
        # rows themselves are kept, not their differences from the centre
        index = faiss.IndexIVFScalarQuantizer(centres, dim, count, kind, product, False)
        index.parallel_mode = 1  # threads share the clusters of one row
        index.cp.niter, index.cp.spherical, index.cp.seed = 8, True, 0
        some = np.random.default_rng(0).permutation(self._count)[: -(-count * _TRAINING // each)]
        index.train(self._take(np.sort(some)).reshape(-1, dim).numpy())
        for _, views in self.chunks():
            index.add(views.embeddings.reshape(-1, dim).numpy())
        return index

    @torch.inference_mode()
    def _tune(self, clusters: Any, probes: Sequence[Views]) -> float:
        """Searches twice as many clusters until the recall suffices; returns the recall."""
        exact = [{match.id for match in self.search(probe, _BEST)} for probe in probes]
        while True:
            shares = []
            for probe, wanted in zip(probes, exact, strict=True):
                ids = self._listed(probe, _BEST, clusters)
                shares.append(1.0 if ids is None else len(wanted & {*ids.tolist()}) / len(wanted))
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
