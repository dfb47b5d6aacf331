"""A gallery's embeddings: they come bit by bit, and never change once they are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from app.segments import ROUNDING, Growing, Half, Segment, Whole
from export.sessions import default_threads
from models import Views

SEGMENT = 4096  # items
_CHUNK = 4096  # items read at once
_ADDING = 1e-5  # float32 products of unit vectors differ by less between two orders of adding


class Snapshot:
    """What is in a store at one moment; additions do not change it.

    Args:
        ids: (N,) int64 of the items, in the order of adding.
        segments: of their views.
        row_dim: see `Store`.
        longest: no row is longer, Euclidean.
    """

    def __init__(
        self, ids: np.ndarray, segments: tuple[Segment, ...], row_dim: int, longest: float
    ) -> None:
        self.ids = ids
        self.segments = segments
        self.row_dim = row_dim
        self._longest = longest
        self.rows_of_item = 0
        if segments:
            self.rows_of_item = segments[0].views(0, 1).numel() // row_dim

    def __len__(self) -> int:
        return len(self.ids)

    def chunks(self) -> Iterator[Tensor]:
        """All items' views, a few thousand at a time: (n, V, D) float32."""
        for segment in self.segments:
            for start in range(0, len(segment), _CHUNK):
                yield segment.views(start, min(start + _CHUNK, len(segment)))

    def views(self) -> Tensor:
        """All items' views (N, V, D) float32; a copy where there are several segments."""
        parts = [segment.views(0, len(segment)) for segment in self.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def needles(self, query: Views) -> np.ndarray:
        """A query's (1, W, D) rows (W * D / row_dim, row_dim) float32, contiguous."""
        rows = query.embeddings[0].float().reshape(-1, self.row_dim)
        return rows.contiguous().cpu().numpy()

    def take(self, items: Tensor) -> Tensor:
        """Views (n, V, D) float32 of items (n,), counted from 0 in the order of adding."""
        if len(self.segments) == 1:
            return self.segments[0].take(items)
        ends = np.cumsum([len(segment) for segment in self.segments])
        owner = np.searchsorted(ends, items.numpy(), side="right")  # (n,)
        order = np.argsort(owner, kind="stable")  # segment by segment
        parts, sizes = [], np.bincount(owner, minlength=len(ends))
        for number, part in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
            if len(part):
                start = int(ends[number]) - len(self.segments[number])
                parts.append(self.segments[number].take(items[torch.from_numpy(part)] - start))
        taken = torch.cat(parts or [self.segments[0].take(items[:0])])
        if (order[1:] > order[:-1]).all():
            return taken
        return taken[torch.from_numpy(np.argsort(order)).to(taken.device)]

    def slack(self, needles: np.ndarray) -> float:
        """How far two products of `nearest` may change when computed of views in float32.

        Each number of a row is rounded by at most `ROUNDING` of itself, hence a product with q by
        ROUNDING * sum |q_i x_i| <= ROUNDING * |q| |x| (Cauchy-Schwarz).
        """
        length = self._longest * float(np.linalg.norm(needles, axis=1).max())
        return 2 * (ROUNDING + _ADDING) * max(1.0, length)

    def nearest(self, needles: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows with the largest inner products; a thread scans each segment.

        Args:
            needles: (W, row_dim) float32, contiguous.
            count: T, at most the number of rows.

        Returns:
            Products (W, T), falling, and rows (W, T) int64; row r is of item r // rows_of_item.
        """
        starts = np.cumsum([0, *(len(segment) * self.rows_of_item for segment in self.segments)])

        def scan(segment: Segment) -> tuple[np.ndarray, np.ndarray]:
            return segment.nearest(needles, min(count, len(segment) * self.rows_of_item))

        if len(self.segments) == 1:
            return scan(self.segments[0])
        found = list(_scanners().map(scan, self.segments))
        products = np.concatenate([products for products, _ in found], axis=1)
        rows = [rows + start for (_, rows), start in zip(found, starts[:-1], strict=True)]
        some = np.argpartition(-products, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(products, some, axis=1), axis=1)
        best = np.take_along_axis(some, order, axis=1)
        both = products, np.concatenate(rows, axis=1)
        return np.take_along_axis(both[0], best, axis=1), np.take_along_axis(both[1], best, axis=1)


class Store:
    """Ids and views of items; safe to use from several threads.

    The last items lie in a buffer that grows; each time it holds `segment` of them they become a
    segment that never changes.

    Args:
        device: where views are kept.
        row_dim: gives the width of a row from V and D, see `Method.row_dim`.
        half: whether to keep this many bytes of float32 as float16 only, on the CPU.
        scanned: whether segments of float32 hold float16, too, for `Snapshot.nearest`.
        expected: about how many items will come.
        segment: items of one.

    Attributes:
        shape: views of an item and dimensions of a view, (V, D); None while there is no item.
        half: whether segments hold float16 only.
    """

    def __init__(
        self,
        device: torch.device,
        row_dim: Callable[[int, int], int],
        half: Callable[[int], bool],
        scanned: bool,
        expected: int,
        segment: int = SEGMENT,
    ) -> None:
        self.shape: tuple[int, int] | None = None
        self.half = False
        self._device = device
        self._choose_row_dim, self._choose_half = row_dim, half
        self._row_dim = 0
        self._scanned = scanned
        self._expected = expected
        self._segment = segment
        self._lock = threading.Lock()
        self._ids = np.empty(0, np.int64)  # filled from the front
        self._count = 0
        self._sealed: tuple[Segment, ...] = ()
        self._tail: Tensor | None = None  # (capacity, V, D) float32, filled from the front
        self._in_tail = 0
        self._longest = 0.0  # row

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Memory of the views that are there."""
        if self.shape is None:
            return 0
        numbers = self.shape[0] * self.shape[1]
        sealed = (self._count - self._in_tail) * numbers * self._bytes_of_number
        return sealed + self._in_tail * numbers * 4

    @property
    def _bytes_of_number(self) -> int:
        return 2 if self.half else 6 if self._scanned else 4

    def add(self, ids: Sequence[int], rows: Tensor) -> None:
        """Appends items.

        Args:
            ids: what items are called.
            rows: (B, V, D) with B = len(ids); V and D as in what was added before.

        Raises:
            ValueError: the shapes do not fit.
        """
        rows = rows.detach().to(self._device, torch.float32)
        if len(ids) != len(rows):
            raise ValueError(f"{len(ids)} ids were given for {len(rows)} items")
        if not len(rows):
            return
        with self._lock:
            if self.shape is None:
                self._begin(rows)
            if self.shape != tuple(rows.shape[1:]):
                raise ValueError(
                    f"items of shape {tuple(rows.shape[1:])} do not fit a gallery of {self.shape}"
                )
            while len(rows):
                count = min(len(rows), self._segment - self._in_tail)
                self._append(ids[:count], rows[:count])
                ids, rows = ids[count:], rows[count:]

    def seal(self) -> None:
        """Makes the last items a segment; more may follow."""
        with self._lock:
            if self._in_tail:
                self._seal()

    def now(self) -> Snapshot:
        """What there is at this moment."""
        with self._lock:
            ids, segments = self._ids[: self._count], self._sealed
            if self._tail is not None and self._in_tail:
                segments = (*segments, Growing(self._tail[: self._in_tail], self._row_dim))
            return Snapshot(ids, segments, self._row_dim, self._longest)

    def _begin(self, rows: Tensor) -> None:
        _, views, dim = rows.shape
        self.shape = (views, dim)
        self._row_dim = self._choose_row_dim(views, dim)
        size = max(self._expected, len(rows)) * views * dim * 4
        self.half = self._device.type == "cpu" and self._choose_half(size)

    def _append(self, ids: Sequence[int], rows: Tensor) -> None:
        """Adds items that fit into the tail, and seals it once it is full."""
        total = self._count + len(ids)
        if total > len(self._ids):  # old readers keep the old ones, here and below
            more = np.empty(max(total, 2 * self._count), np.int64)
            more[: self._count] = self._ids[: self._count]
            self._ids = more
        self._ids[self._count : total] = ids
        self._count = total
        before, after = self._in_tail, self._in_tail + len(rows)
        if self._tail is None or after > len(self._tail):
            grown = rows.new_empty((min(self._segment, max(after, 2 * before)), *rows.shape[1:]))
            if self._tail is not None:
                grown[:before] = self._tail[:before]
            self._tail = grown
        self._tail[before:after] = rows
        lengths = rows.reshape(-1, self._row_dim).norm(dim=1)
        self._longest = max(self._longest, float(lengths.max()))
        self._in_tail = after
        if after == self._segment:
            self._seal()

    def _seal(self) -> None:
        assert self._tail is not None
        kind = Half if self.half else Whole if self._scanned else Growing
        self._sealed = (*self._sealed, kind(self._tail[: self._in_tail], self._row_dim))
        self._tail, self._in_tail = None, 0


@cache
def _scanners() -> ThreadPoolExecutor:
    """Threads that scan segments; FAISS uses one thread for each query."""
    return ThreadPoolExecutor(default_threads(), "scan")
