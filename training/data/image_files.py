"""Sequences of images that are decoded on access, and prefetching."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, ImageSequence

_DEFAULT_MILLISECONDS = 100.0  # for frames without a duration
_MAX_CACHED_CLIPS = 3
_Item = TypeVar("_Item")


class LazyList(Sequence[_Item]):
    """A sequence of `count` items; access to item i calls `make(i)`."""

    def __init__(self, count: int, make: Callable[[int], _Item]) -> None:
        self._rows, self._make = range(count), make

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> _Item:  # type: ignore[override]
        return self._make(self._rows[index])


class ImageFiles(LazyList[Image.Image]):
    """Images of any size and mode, decoded from their files on access.

    Access raises ValueError if a file is damaged or not an image, OSError if it cannot be read.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(len(paths), self._open)
        self.paths = paths

    def _open(self, index: int) -> Image.Image:
        path = self.paths[index]
        try:
            with path.open("rb") as file, Image.open(file) as image:
                image.load()
                return image
        # Pillow raises these for a file that it cannot decode; only failures to read have an errno
        except (OSError, EOFError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = str(error).replace(f" {str(file)!r}", "")  # drops the repr of the file object
            raise ValueError(f"{path} is not a readable image: {reason}") from error


def thread_map(make: Callable[[int], _Item], rows: Iterable[int]) -> list[_Item]:
    """Returns `make(row)` for each row, computed in threads; Pillow decodes without the GIL."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, rows))


def find_damaged(images: ImageFiles) -> list[int]:
    """Decodes every image; returns the rows of the images that cannot be read."""

    def is_damaged(row: int) -> bool:
        try:
            images[row].load()
        except (ValueError, OSError):
            return True
        return False

    return np.flatnonzero(thread_map(is_damaged, range(len(images)))).tolist()


def crops(images: Sequence[Image.Image], seed: int) -> Sequence[Image.Image]:
    """Returns random crops of at least half the area of each image; mirrors half of the crops."""

    def crop(row: int) -> Image.Image:
        random = np.random.default_rng([seed, row])
        image = ImageOps.exif_transpose(images[row])
        area_share, aspect_change = random.uniform(0.5, 1.0), np.exp(random.uniform(-0.3, 0.3))
        width = round(image.width * min(1.0, np.sqrt(area_share * aspect_change)))
        height = round(image.height * min(1.0, np.sqrt(area_share / aspect_change)))
        left = int(random.integers(image.width - width + 1))
        top = int(random.integers(image.height - height + 1))
        part = image.crop((left, top, left + max(1, width), top + max(1, height)))
        return ImageOps.mirror(part) if random.random() < 0.5 else part

    return LazyList(len(images), crop)


def clip_frames(
    read: Callable[[int], list[Image.Image]], clip_count: int, frame_count: int
) -> Sequence[Image.Image]:
    """Returns all frames, clip by clip; `read(i)` returns the `frame_count` frames of clip i."""
    lock, read_cached = Lock(), lru_cache(_MAX_CACHED_CLIPS)(read)

    def frame(row: int) -> Image.Image:
        with lock:  # otherwise several threads would read the same clip
            return read_cached(row // frame_count)[row % frame_count]

    return LazyList(clip_count * frame_count, frame)


def read_frames(path: Path, count: int) -> list[Image.Image]:
    """Reads the frames of an animated image at the middles of `count` equal time intervals.

    Frames are chosen by time, because equal frames are often stored as one longer frame.
    Raises ValueError or OSError if the file is not an image, is damaged, or cannot be read.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            frames, durations = list[Image.Image](), list[float]()
            for frame in ImageSequence.Iterator(image):
                frames.append(frame.convert("RGB"))
                durations.append(float(frame.info.get("duration", 0)) or _DEFAULT_MILLISECONDS)
    except (SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable clip: {error}") from error
    ends = np.cumsum(durations)  # the end of each frame in milliseconds
    middles = (np.arange(count) + 0.5) * ends[-1] / count
    return [frames[index] for index in np.searchsorted(ends, middles, side="right").tolist()]


def prefetch(stream: Iterator[_Item]) -> Iterator[_Item]:
    """Yields the items of a stream; a thread computes the next item. Items must not be None."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, stream, None)
        while (item := future.result()) is not None:
            future = pool.submit(next, stream, None)
            yield item
