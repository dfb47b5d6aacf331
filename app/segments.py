"""Parts of a gallery's embeddings that never change again, and what can be asked of one."""

from __future__ import annotations

from typing import Protocol

import faiss
import numpy as np
import torch
from torch import Tensor

ROUNDING = 2.0**-11  # of a number that is rounded to float16, relative


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
        found: tuple[np.ndarray, np.ndarray] = faiss.knn(
            needles, rows, count, metric=faiss.METRIC_INNER_PRODUCT
        )
        return found


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
        found: tuple[np.ndarray, np.ndarray] = self._index.search(needles, count)
        return found

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
