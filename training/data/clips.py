"""Features of the frames of clips: one file for each clip, read on access."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np

STEPS = 3  # training uses a stride of 1, 2 or 3 frames (PVSE's data.py)


class Clips:
    """The frames of N clips as an array (N, n, d), padded to the longest clip.

    `paths` are .npy files of floats (T, d) in time order. Indexing returns all frames of a clip, or
    `frames` of them at equal distances if it has more (0: no limit), padded with zeros.

    Attributes:
        lengths: (N,) int64, the number of frames read from each clip.
        shape: (N, n, d); n is the largest of the lengths.

    Raises:
        ValueError: a file is not such an array, or has another width than the first.
    """

    def __init__(self, paths: Sequence[Path], frames: int = 0) -> None:
        sizes = [_open(path).shape for path in paths]
        self._paths = paths
        self._totals = np.array([count for count, _ in sizes], np.int64)
        self._width = sizes[0][1]
        for path, (_, width) in zip(paths, sizes, strict=True):
            if width != self._width:
                raise ValueError(f"{path} has {width} numbers a frame, {paths[0]} {self._width}")
        self._limit(frames)

    def _limit(self, frames: int) -> None:
        self.lengths = np.minimum(self._totals, frames) if frames else self._totals
        self.shape = (len(self._paths), int(self.lengths.max()), self._width)

    def at_most(self, frames: int) -> Clips:
        """The same clips with at most `frames` frames each; 0 for all."""
        limited = copy.copy(self)
        limited._limit(frames)
        return limited

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        index = np.arange(len(self))[rows].tolist()
        return self._padded([(row, _evenly(self._totals[row], self.lengths[row])) for row in index])

    def drawn(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Features (B, n, d) of clips (B,); a random subsequence of long clips.

        PVSE, section 3.5: "for videos longer than 8 frames we select random subsequences".
        """
        runs = []
        for row in rows.tolist():
            total, count = int(self._totals[row]), int(self.lengths[row])
            step = 1
            if count < total:
                step = int(random.integers(min(STEPS, (total - 1) // max(count - 1, 1)))) + 1
            start = int(random.integers(total - step * (count - 1)))
            runs.append((row, start + step * np.arange(count)))
        return self._padded(runs)

    def _padded(self, places: list[tuple[int, np.ndarray]]) -> np.ndarray:
        """The frames at the indices (n,) of each clip, padded with zeros."""
        parts = [_open(self._paths[row])[frames] for row, frames in places]
        kind = np.result_type(*parts) if parts else np.float32
        out = np.zeros((len(parts), *self.shape[1:]), kind)
        for part, row in zip(parts, out, strict=True):
            row[: len(part)] = part
        return out


def _evenly(total: int, count: int) -> np.ndarray:
    """The middle frames of `count` equal parts of a clip.

    >>> _evenly(16, 4).tolist(), _evenly(3, 3).tolist()
    ([2, 6, 10, 14], [0, 1, 2])
    """
    return ((2 * np.arange(count) + 1) * total) // (2 * count)


def _open(path: Path) -> np.ndarray:
    return load_array(path, 2, "frames, numbers")


def load_array(path: Path, axes: int, what: str) -> np.ndarray:
    """Opens a memory-mapped .npy file of floats with `axes` non-empty axes."""
    try:
        values: np.ndarray = np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a whole .npy file of numbers: {error}") from error
    if values.ndim != axes or 0 in values.shape or values.dtype.kind != "f":
        raise ValueError(f"{path} must hold floats ({what}), not {values.dtype} {values.shape}")
    return values
