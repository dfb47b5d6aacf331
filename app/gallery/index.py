"""Keeps the views of a gallery in memory and finds the best items for a query."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyview.app.gallery.scan import Collection, CollectionImage
from polyview.app.gallery.video import Moment
from polyview.models import Method, Views

HALF_MIN_BYTES = 32 * 2**20  # size in float32 above which views are stored in float16
SCORED_HALF_MIN_BYTES = 2 * 2**30  # the same limit for methods that score every item
CLUSTERS_MIN_BYTES = 2**30  # size in float16 above which candidates come from clusters
MIN_RECALL = 0.97  # share of the ten best that clusters must find
_RECALL_K = 10  # number of best items for which recall is measured
_CHUNK = 4096  # items scored at once
_MARGIN = 2.0**-8  # twice the error of a float16 product, relative to the norms of the two rows
_MIN_LISTED = 1024  # minimum number of rows that a search in clusters returns
_TRAINING_ROWS = 40  # training rows for each cluster; limits the number of clusters
MAX_SAMPLE = 1024  # maximum number of items whose scores represent those of a gallery
MAX_SAMPLE_BYTES = 8 * 2**20  # maximum size of the views of these items
LARGE_GALLERY = 10_000  # items; scoring fewer is faster in one thread
_TORCH_THREADS = torch.get_num_threads()
_queries_lock = threading.Lock()
_active_queries = 0  # number of queries within `shared_processors`


class Match(NamedTuple):
    """An item that matches a query."""

    id: int
    score: float
    view: int | None  # the best image view; None if terms disagree, or methods are averaged


class Clips(dict[int, tuple[Moment, ...]]):
    """The moments of each clip's frames, by id of the clip.

    Each frame is an image. The first frame has the id of the clip; the ids of further frames follow
    those of all files, so that `Collection.file_id` maps them to the clip. Packs that read frames
    as sets divide a clip into *windows* of at most `frames_per_set` frames and nearly equal length.
    A window is an item of a gallery, with the id of its first frame.
    """

    def __init__(self, collection: Collection, frames_per_set: int) -> None:
        super().__init__()
        self._images, self._frames_per_set = collection.images, frames_per_set

    def windows(self, file_id: int | None = None) -> list[list[int]]:
        """Returns the image ids of each window of a file, or of all files, in time order."""
        file_count, windows = len(self._images), []
        for first_id in range(file_count) if file_id is None else [file_id]:
            count = len(self.get(first_id, ())) or 1  # frames; a still image counts as one
            window_count = -(-count // self._frames_per_set)
            for i in range(window_count):
                frames = range(count * i // window_count, count * (i + 1) // window_count)
                windows.append([first_id + frame * file_count for frame in frames])
        return windows

    def window_of(self, image_id: int) -> list[int]:
        """Returns the image ids of the window that contains an image, in time order."""
        windows = self.windows(image_id % len(self._images))
        return next((window for window in windows if image_id in window), [image_id])

    def image(self, image_id: int) -> CollectionImage:
        """Returns the image of a file or of a clip's frame; raises ValueError for an unknown id."""
        frame, file_id = divmod(image_id, len(self._images))
        moments = self.get(file_id, ())
        if image_id < 0 or (frame and frame >= len(moments)):
            last = len(self._images) - 1
            raise ValueError(f"there is no image {image_id}; files have ids from 0 to {last}")
        image = self._images[file_id]
        return replace(image, image_id=image_id, moment=moments[frame]) if moments else image


def subsample(values: np.ndarray, max_items: int = MAX_SAMPLE) -> np.ndarray:
    """Returns every k-th of (N,) values, for the smallest k that leaves at most `max_items`."""
    return values[:: max(1, -(-len(values) // max_items))]


@contextmanager
def shared_processors(item_count: int) -> Iterator[None]:
    """Divides torch's threads among concurrent queries.

    Within the block, torch's operators use this query's share of the threads, or one thread below
    `LARGE_GALLERY` items. An operator waits for the slowest of its threads, which takes long if
    other queries use the cores.
    """
    global _active_queries
    with _queries_lock:
        _active_queries += 1
        share = max(1, _TORCH_THREADS // _active_queries) if item_count >= LARGE_GALLERY else 1
    torch.set_num_threads(share)
    try:
        yield
    finally:
        with _queries_lock:
            _active_queries -= 1
        torch.set_num_threads(_TORCH_THREADS)


class Gallery:
    """The views of images or captions by one method; safe to use from several threads.

    - Small galleries are stored in float32, and every item is scored.
    - Larger ones are stored in float16. If one pair of rows determines the score
      (`Method.row_search`), the products of all rows with those of the query are computed in
      float16, and only the items that can be among the best are scored. This is exact: let x be one
      of the k best items, and w the query's row that determines the score of x. Fewer than k items
      have a larger product with w, so x is among the candidates. `_MARGIN` allows for rounding.
    - Above `CLUSTERS_MIN_BYTES`, after `build_search_index`, candidates come from the nearest
      clusters (FAISS IVF over 8-bit rows). This is approximate. `recall` is the measured share of
      the ten best items that are found.

    Views (V, D) of items are stored and scored on `device`; float16 and clusters need the CPU.
    Queries are the views (1, W, D) of a text or an image; for captions, only of an image.
    """

    local = True  # True if the views are in this process

    def __init__(
        self,
        side: Literal["images", "texts"],
        method: Method,
        device: torch.device | str = "cpu",
        expected_count: int = 0,  # the approximate number of items
    ) -> None:
        self.method, self.storage = method, "float32"  # the storage format, shown to users
        self.shape: tuple[int, int] | None = None  # (V, D) of an item; None without items
        self.recall: float | None = None  # None if searches are exact
        self._side, self._device, self._expected_count = side, torch.device(device), expected_count
        self._lock = threading.Lock()  # guards the next four attributes
        self._ids, self._count = np.empty(0, np.int64), 0
        self._tensor = torch.empty(0, 1, 1)  # (capacity, V, D)
        self._max_norm = 0.0  # the largest norm of a row
        self._clusters: Any = None  # faiss.IndexIVFScalarQuantizer
        self._sample: tuple[int, Views] | None = None  # number of items, views of their sample

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """The memory of this process for the views and clusters, in bytes."""
        size, clusters = self._tensor[: self._count].nbytes, self._clusters
        if clusters is not None:  # rows of 8-bit values with ids of 64 bits, and float32 centres
            size += clusters.ntotal * (clusters.d + 8) + clusters.nlist * clusters.d * 4
        return size

    @property
    def _item_size(self) -> int:
        """The number of values in the views of an item."""
        return math.prod(self.shape or (0,))

    def ids(self) -> np.ndarray:
        """Returns all ids (N,), in the order of adding."""
        return self._ids_and_views()[0]

    def caveat(self, only: AbstractSet[int] | None = None) -> str:
        """Returns a message if a search is not exact, else ""; for `only`, see `search`."""
        is_exact = self._clusters is None or only is not None
        return "" if is_exact else f"Approximate: finds {self.recall:.0%} of the ten best."

    def add(self, ids: Sequence[int], views: Tensor) -> None:
        """Appends B items with their views (B, V, D); V and D must match earlier items."""
        views = views.detach().to(self._device, torch.float32)
        if not len(views):
            return
        with self._lock:
            if self.shape is None:
                self.shape = views.shape[1], views.shape[2]
                size = 4 * max(self._expected_count, len(views)) * self._item_size
                limit = HALF_MIN_BYTES if self.method.row_search else SCORED_HALF_MIN_BYTES
                is_half = self._device.type == "cpu" and size >= limit
                self.storage = "float16" if is_half else "float32"
                dtype = getattr(torch, self.storage)
                self._tensor = views.new_empty((0, *self.shape), dtype=dtype)
            count, total = self._count, self._count + len(ids)
            if total > len(self._ids):  # running searches still read the old arrays
                capacity = max(total, self._expected_count, 2 * count)
                old_ids, old_views = self._ids, self._tensor
                self._ids = np.empty(capacity, np.int64)
                self._tensor = old_views.new_empty((capacity, *self.shape))
                self._ids[:count], self._tensor[:count] = old_ids[:count], old_views[:count]
            self._ids[count:total], self._tensor[count:total] = ids, views
            self._max_norm = max(self._max_norm, float(self._rows(views).norm(dim=-1).max()))
            self._count = total

    def _ids_and_views(self) -> tuple[np.ndarray, Tensor]:
        """Returns all ids (N,) and their views (N, V, D), as stored."""
        with self._lock:
            return self._ids[: self._count], self._tensor[: self._count]

    def _rows(self, views: Tensor) -> Tensor:
        """Reshapes the views (n, V, D) of n items to R rows of E values for each item."""
        return views.reshape(-1, self.method.row_dim(*(self.shape or (1, 1))))  # (n R, E)

    def chunks(self, ids: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Views]]:
        """Yields the ids (n,) and views (n, V, D) float32 of `ids`, or of all items, in chunks.

        Raises ValueError if the gallery is empty.
        """
        all_ids, views = self._ids_and_views()
        if not len(all_ids):
            raise ValueError("nothing is searchable yet; try again in a moment")
        for start in range(0, len(all_ids if ids is None else ids), _CHUNK):
            part = slice(start, start + _CHUNK)
            if ids is None:
                yield all_ids[part], Views(views[part].float())
            else:
                yield ids[part], self.views(ids[part])

    def views(self, ids: Sequence[int] | np.ndarray) -> Views:
        """Returns the views (n, V, D) float32 of n ids, all of which must exist."""
        all_ids, views = self._ids_and_views()
        id_array = np.asarray(ids, np.int64)
        indices = np.searchsorted(all_ids, id_array).clip(max=len(all_ids) - 1)
        if (all_ids[indices] != id_array).any():  # ids were not added in ascending order
            order = np.argsort(all_ids, kind="stable")
            indices = order[np.searchsorted(all_ids, id_array, sorter=order)]
        if views.is_cuda:
            return Views(views[torch.from_numpy(indices).to(self._device)])
        # numpy selects a few items faster than torch
        return Views(torch.from_numpy(views.numpy()[indices]).float())

    @torch.inference_mode()
    def search(self, query: Views, k: int, only: AbstractSet[int] | None = None) -> list[Match]:
        """Finds the k >= 1 best items for a query (1, W, D), best first.

        Items with equal scores are in the order of adding. `only` has the ids of the items to rank;
        None ranks all. There may be fewer than k matches.
        """
        if not len(self):
            return []
        query = query.to(self._device)
        ids, values = self.scores(query, self.candidates(query, min(k, len(self)), only))
        if not len(ids):
            return []
        scores = torch.from_numpy(values)
        kth_score = scores.topk(min(k, len(scores))).values[-1]
        best = (scores >= kth_score).nonzero()[:, 0]  # `topk` has no fixed order of ties
        best = best[scores[best].sort(descending=True, stable=True).indices[:k]]
        ids = ids[best.numpy()]
        views = self.best_views(ids, [query])
        return [Match(*row) for row in zip(ids.tolist(), scores[best].tolist(), views, strict=True)]

    @torch.inference_mode()
    def best_views(self, ids: np.ndarray, queries: Sequence[Views]) -> list[int | None]:
        """Returns each item's best image view, or None if it differs between the queries."""
        items = self.views(ids)  # (n, V, D)
        pairs = [self._pair(items, query.to(items.embeddings.device)) for query in queries]
        best = [self.method.view_scores(*pair).flatten(1).argmax(dim=0) for pair in pairs]
        rows = torch.stack(best, dim=1).tolist()  # (n, Q)
        return [row[0] if len(set(row)) == 1 else None for row in rows]

    def search_files(
        self, query: Views, k: int, only: AbstractSet[int] | None, file_count: int
    ) -> list[Match]:
        """Finds the k best files for a query, see `search`; a match in a clip is its best window.

        `only` has ids of files. `file_count` is used to map items to files (`Collection.file_id`).
        """
        ids, limit = self.ids(), k
        if only is not None and (ids >= file_count).any():  # add the other windows of clips
            only = {*ids[np.isin(ids % file_count, list(only))].tolist()}
        while True:
            matches, best_matches = self.search(query, limit, only), dict[int, Match]()
            for match in matches:
                best_matches.setdefault(match.id % file_count, match)
            if len(best_matches) >= k or len(matches) < limit:
                return list(best_matches.values())[:k]
            limit *= 4  # several windows of a clip were among the best

    @torch.inference_mode()
    def sample_scores(self, query: Views, subset: np.ndarray | None = None) -> np.ndarray:
        """Returns scores (S,) of a text (1, W, D) for a sample of all images, or of `subset`."""
        ids, sample = self.ids() if subset is None else subset, self._sample
        if not len(ids):
            return np.zeros(0, np.float32)
        if subset is not None or sample is None or sample[0] != len(ids):
            count = max(1, MAX_SAMPLE_BYTES // (4 * self._item_size))
            sample = len(ids), self.views(subsample(ids, min(MAX_SAMPLE, count)))
        if subset is None:
            self._sample = sample
        views = sample[1]
        scores = self.method.score(views, query.to(views.embeddings.device))
        return scores[:, 0].float().cpu().numpy()

    @torch.inference_mode()
    def scores(
        self, query: Views, subset: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids (n,) and exact scores (n,) float32 of all items, or of `subset`.

        The query is (1, W, D). Raises ValueError if the gallery is empty.
        """
        query, ids, scores = query.to(self._device), [np.empty(0, np.int64)], [torch.empty(0)]
        for chunk_ids, items in self.chunks(subset):
            ids.append(chunk_ids)
            chunk_scores = self.method.score(*self._pair(items, query))  # (n, 1) or (1, n)
            scores.append(chunk_scores.flatten().float().cpu())
        return np.concatenate(ids), torch.cat(scores).numpy()

    def _pair(self, items: Views, query: Views) -> tuple[Views, Views]:
        """Returns items and query in the order of a method's arguments: images, texts."""
        return (items, query) if self._side == "images" else (query, items)

    def candidates(self, query: Views, k: int, only: AbstractSet[int] | None) -> np.ndarray | None:
        """Returns ids that include the k best items for a query (1, W, D), or None for all items.

        The ids are in the order of adding. There must be at least k items. `only` has the ids of
        the items to rank; None ranks all.
        """
        ids, views = self._ids_and_views()
        if only is not None:
            return ids[np.isin(ids, list(only))]
        if self._clusters is not None:
            return self._cluster_candidates(query, k, self._clusters)
        if views.dtype != torch.float16 or not self.method.row_search:
            return None
        rows, is_near = self._rows(views), torch.zeros(len(ids), dtype=torch.bool)
        for query_row in self._rows(query.embeddings):
            # one row at a time: torch has no fast float16 matrix product on CPUs
            products = (rows @ query_row.half()).float()  # (N R,)
            if len(rows) > len(ids):  # otherwise skipped: `amax` is slow for a single row per item
                products = products.view(len(ids), -1).amax(dim=1)  # (N,)
            threshold = products.topk(k).values[-1] - _MARGIN * self._max_norm * query_row.norm()
            is_near |= products >= threshold
        return ids[is_near.numpy()]

    def _cluster_candidates(self, query: Views, k: int, clusters: Any) -> np.ndarray | None:
        """Returns ids found in clusters, and ids added later; None if fewer than k are found."""
        ids, rows_per_item = self.ids(), self._item_size // clusters.d
        query_rows = self._rows(query.embeddings).float().contiguous().numpy()
        row_count = max(_MIN_LISTED, 16 * k * rows_per_item)
        _, rows = clusters.search(query_rows, row_count)  # -1 for missing rows
        items = np.unique(rows[rows >= 0] // rows_per_item)
        later_items = np.arange(clusters.ntotal // rows_per_item, len(ids))
        return ids[np.concatenate([items, later_items])] if len(items) >= k else None

    def is_large(self) -> bool:
        """Returns True if the gallery is large enough for clusters."""
        size = 2 * self._count * self._item_size
        return self._tensor.dtype == torch.float16 and size >= CLUSTERS_MIN_BYTES

    def build_search_index(self, probes: Sequence[Views]) -> None:
        """Builds the clusters of a complete gallery if it is large; searches continue meanwhile.

        This takes minutes for millions of rows. The number of clusters that a search covers is
        chosen so that the probes, typical queries (1, W, D), reach a recall of `MIN_RECALL`.
        """
        if self.is_large():
            clusters = self._build_clusters()
            self.recall = self._tune(clusters, probes)
            self._clusters = clusters
            self.storage = f"float16, in {clusters.nlist:,} clusters of 8 bits"

    def _build_clusters(self) -> Any:
        """Builds an inverted file (FAISS) over all n rows, with about 2 sqrt(n) clusters."""
        import faiss  # takes 13 MB of memory, which most galleries do not need

        views = self._ids_and_views()[1]
        row_count, dim = self._rows(views).shape
        power = 2 ** round(math.log2(2 * math.sqrt(row_count)))
        cluster_count = max(1, min(power, row_count // _TRAINING_ROWS))
        index: Any = faiss.index_factory(dim, f"IVF{cluster_count},SQ8", faiss.METRIC_INNER_PRODUCT)
        index.by_residual, index.parallel_mode = False, 1  # mode 1: threads share a query
        index.cp.niter, index.cp.spherical, index.cp.seed = 8, True, 0
        sample = np.random.default_rng(0).permutation(row_count)[: cluster_count * _TRAINING_ROWS]
        index.train(self._rows(views)[torch.from_numpy(np.sort(sample))].float().numpy())
        for part in views.split(_CHUNK):
            index.add(self._rows(part).float().numpy())
        return index

    @torch.inference_mode()
    def _tune(self, clusters: Any, probes: Sequence[Views]) -> float:
        """Doubles the number of searched clusters until the recall suffices; returns the recall."""
        exact_ids = [{match.id for match in self.search(probe, _RECALL_K)} for probe in probes]
        while True:
            shares = []
            for probe, best in zip(probes, exact_ids, strict=True):
                ids = self._cluster_candidates(probe, _RECALL_K, clusters)
                shares.append(1.0 if ids is None else len(best & {*ids.tolist()}) / len(best))
            recall = sum(shares) / len(shares)
            if recall >= MIN_RECALL or clusters.nprobe >= clusters.nlist:
                return recall
            clusters.nprobe = min(2 * clusters.nprobe, clusters.nlist)
