"""Rows of numbers in a file that is mapped into memory to be read.

A file holds float32 rows of one shape, one after the other, and nothing else: row `i` begins at
byte `i * size`. Which row belongs to what, and which rows count at all, `app.catalogue` knows; it
also keeps each row's checksum, so that a row that is not as it was written is never used. A file
only grows: other processes may have it mapped, and a map of a file that shrinks ends a process.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np


def checksums(values: np.ndarray) -> list[int]:
    """The CRC-32 of each of the rows (B, ...)."""
    return [zlib.crc32(row) for row in np.ascontiguousarray(values)]


class VectorFile:
    """The rows of one model's embeddings.

    Args:
        path: the file; made when the first row is written.
        shape: of one row.
    """

    def __init__(self, path: Path, shape: Sequence[int]) -> None:
        self.path = path
        self._shape = tuple(shape)
        self._size = 4 * math.prod(self._shape)  # bytes of a row

    def read(self, rows: Sequence[int], sums: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Rows, and which of them are as they were written.

        Args:
            rows: their numbers.
            sums: their checksums when they were written.

        Returns:
            (B, *shape) float32, a copy; and (B,) bool, where False marks a row not to be used.

        Raises:
            OSError: the file is there and cannot be read.
        """
        values = np.zeros((len(rows), *self._shape), np.float32)
        numbers = np.asarray(rows, np.int64)
        there = numbers < self._count()
        if there.any():
            shape = (self._count(), *self._shape)
            values[there] = np.memmap(self.path, np.float32, "r", shape=shape)[numbers[there]]
        return values, there & (np.asarray(checksums(values)) == np.asarray(sums))

    def write(self, rows: Sequence[int], values: np.ndarray) -> None:
        """Writes rows, and returns once the disk has them.

        Args:
            rows: their numbers, ascending; rows that are left out below them may hold anything.
            values: (B, *shape) with B = len(rows).

        Raises:
            OSError: they cannot be written; the rows may then hold anything.
        """
        values = np.ascontiguousarray(values, np.float32)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        breaks = [i for i, (a, b) in enumerate(pairwise(rows), start=1) if b != a + 1]
        with self.path.open("r+b") as file:
            for start, end in pairwise([0, *breaks, len(rows)]):  # runs of neighbours
                file.seek(rows[start] * self._size)
                file.write(values[start:end].data)
            file.flush()
            os.fsync(file.fileno())

    def _count(self) -> int:
        """How many whole rows the file holds."""
        try:
            return self.path.stat().st_size // self._size
        except FileNotFoundError:
            return 0
