"""A gallery's embeddings: they come bit by bit, and never change once they are there.

A `Store` takes them. A `Snapshot` is what it holds at one moment, in parts that stay as they are:
in float32 (`Growing`), in float16 (`Half`), or in both (`Whole`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Protocol

import faiss
import numpy as np
import torch
from torch import Tensor

from export.sessions import default_threads
from models import Views

SEGMENT = 4096  # items
ROUNDING = 2.0**-11  # of a number that is rounded to float16, relative
_CHUNK = 4096  # items read at once
_ADDING = 1e-5  # float32 products of unit vectors differ by less between two orders of adding


class Segment(Protocol):
    """Items' views, in the order of adding.

    A *row* is `row_dim` numbers of an item's views, see `Method.row_dim`. Rows of an item lie one
    after the other, so that row r is of item r // (V * D / row_dim).
    """

    def __len__(self) -> int:
        """How many items."""

    def views(self, start: int, stop: int) -> Tensor:
        """Views (stop - start, V, D) of neighbouring items, float32."""

    def take(self, items: Tensor) -> Tensor:
        """Views (n, V, D) of items (n,) counted from the segment's first, float32."""

    def nearest(self, needles: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows with the largest inner products.

        Args:
            needles: (W, row_dim) float32, contiguous.
            count: T, at most the number of rows.

        Returns:
            Products (W, T), falling, and rows (W, T) int64, counted from the segment's first.
        """


class Growing:
    """Views in float32 that were added last, on any device; `nearest` is for the CPU.

    Args:
        values: (n, V, D) float32, contiguous.
        row_dim: numbers in a row; divides D, or V * D.
    """

    def __init__(self, values: Tensor, row_dim: int) -> None:
        self._values = values
        self._row_dim = row_dim

    def __len__(self) -> int:
        return len(self._values)

    def views(self, start: int, stop: int) -> Tensor:
        """See `Segment.views`."""
        return self._values[start:stop]

    def take(self, items: Tensor) -> Tensor:
        """See `Segment.take`."""
        if self._values.device.type == "cpu":  # numpy gathers a few rows with less ado
            return torch.from_numpy(self._values.numpy()[items.numpy()])
        return self._values[items.to(self._values.device)]

    def nearest(self, needles: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Segment.nearest`."""
        rows = self._values.reshape(-1, self._row_dim).numpy()
        return faiss.knn(needles, rows, count, metric=faiss.METRIC_INNER_PRODUCT)


class Half:
    """Views in float16, on the CPU: half the memory, and scanned in a quarter of the time.

    Numbers are rounded to 11 bits when they come, by at most `ROUNDING` of each; whatever is
    computed of them afterwards is float32.

    Args:
        values: (n, V, D) float32.
        row_dim: numbers in a row; divides D, or V * D.
    """

    def __init__(self, values: Tensor, row_dim: int) -> None:
        self._shape = tuple(values.shape)
        kind = faiss.ScalarQuantizer.QT_fp16
        self._index = faiss.IndexScalarQuantizer(row_dim, kind, faiss.METRIC_INNER_PRODUCT)
        self._index.add(values.reshape(-1, row_dim).numpy())

    def __len__(self) -> int:
        return self._shape[0]

    def views(self, start: int, stop: int) -> Tensor:
        """See `Segment.views`."""
        each = self._rows_of_item
        rows = self._index.reconstruct_n(start * each, (stop - start) * each)
        return torch.from_numpy(rows).reshape(stop - start, *self._shape[1:])

    def take(self, items: Tensor) -> Tensor:
        """See `Segment.take`."""
        each = self._rows_of_item
        rows = (items.numpy()[:, None] * each + np.arange(each)).ravel()
        if not len(rows):
            return torch.empty(0, *self._shape[1:])
        return torch.from_numpy(self._index.reconstruct_batch(rows)).reshape(-1, *self._shape[1:])

    def nearest(self, needles: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Segment.nearest`."""
        return self._index.search(needles, count)

    @property
    def _rows_of_item(self) -> int:
        return self._shape[1] * self._shape[2] // int(self._index.d)


class Whole(Growing):
    """Views in float32 with a copy in float16 that is scanned instead, on the CPU.

    The products of `nearest` are those of the copy.
    """

    def __init__(self, values: Tensor, row_dim: int) -> None:
        super().__init__(values, row_dim)
        self._scanned = Half(values, row_dim)

    def nearest(self, needles: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Segment.nearest`."""
        return self._scanned.nearest(needles, count)


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
        copied: whether segments of so many hold float16 as well, for `Snapshot.nearest`.
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
        copied: Callable[[int], bool],
        expected: int,
        segment: int = SEGMENT,
    ) -> None:
        self.shape: tuple[int, int] | None = None
        self.half = False
        self._device = device
        self._choose_row_dim, self._choose_half, self._choose_copied = row_dim, half, copied
        self._row_dim = 0
        self._copied = False
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
        return 2 if self.half else 6 if self._copied else 4

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
        self._copied = self._choose_copied(size)

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
        kind = Half if self.half else Whole if self._copied else Growing
        self._sealed = (*self._sealed, kind(self._tail[: self._in_tail], self._row_dim))
        self._tail, self._in_tail = None, 0


@cache
def _scanners() -> ThreadPoolExecutor:
    """Threads that scan segments; FAISS uses one thread for each query."""
    return ThreadPoolExecutor(default_threads(), "scan")
