"""Reads images with a frozen image encoder, once, into a file of features.

Decoding runs in threads (Pillow lets others work while it decodes) ahead of the encoder. Features
go into a memory-mapped file as they are made, and a record beside it says which rows are done, so
that an extraction that was interrupted, by `kill -9` too, goes on where the record ends.
"""

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.lib.format import open_memmap
from PIL import Image
from torch import nn
from tqdm import tqdm

from models.files import write_whole
from models.preprocess import Preprocess
from training.data.graph import GraphEncoder

RECORD_SECONDS = 5.0  # from one record of what is done to the next
_BATCHES_AHEAD = 3  # decoded while the encoder works
WORTH_A_GRAPH = 200  # images; a graph takes some seconds to make
_NAMED = 10  # damaged images named in a refusal


@dataclass(frozen=True)
class Reader:
    """A frozen image encoder, and how it is run.

    Attributes:
        encoder: pixels (B, 3, S, S) to features (B, n, d), in eval mode, on `device`.
        preprocess: how images become pixels.
        device: where the encoder computes.
        batch: images in a batch.
        workers: threads that decode; 0 takes one for each processor.
        skip_damaged: leave images out that cannot be read, instead of refusing to finish.
    """

    encoder: nn.Module
    preprocess: Preprocess
    device: torch.device
    batch: int = 32
    workers: int = 0
    skip_damaged: bool = False

    @torch.inference_mode()
    def features(self, squares: list[np.ndarray]) -> np.ndarray:
        """Features (B, n, d) float16 of B squares (S, S, 3) uint8."""
        pixels = torch.from_numpy(self.preprocess.normalize(np.stack(squares)))
        made: np.ndarray = self.encoder(pixels.to(self.device)).half().cpu().numpy()
        if not np.isfinite(made).all():
            raise ValueError(
                "the image encoder gives features that are not finite in half precision; "
                "its weights are damaged, or it needs another preprocessing"
            )
        return made


def extract(reader: Reader, images: Sequence[Image.Image], path: Path, title: str) -> list[int]:
    """Makes a file of features, or goes on with one.

    Of several processes that ask for the same file, one makes it, and the others wait.

    Args:
        reader: the encoder.
        images: N images; `ImageFiles` names damaged ones.
        path: the file to make, (N, n, d) float16; what is not finished lies beside it.
        title: what the progress bar says.

    Returns:
        The rows that were left out because their images are damaged (see `Reader.skip_damaged`);
        they are not in the file.

    Raises:
        ValueError: images are damaged (all of them are read first, and named), there is none, or
            the encoder gives nonsense.
        OSError: the disk is too small.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock.partial")
    with FileLock(lock):
        if not path.is_file():
            _Extraction(reader, images, path).run(title)
    lock.unlink(missing_ok=True)
    return skipped_rows(path)


def skipped_rows(path: Path) -> list[int]:
    """The rows that `extract` left out of a file of features."""
    about = path.with_suffix(".json")
    if not about.is_file():
        return []
    return json.loads(about.read_text("utf-8"))["skipped"]


def is_begun(path: Path) -> bool:
    """Whether an extraction was interrupted that has taken its room on the disk."""
    return _partial(path).is_file()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


class _Extraction:
    """One file of features in the making."""

    def __init__(self, reader: Reader, images: Sequence[Image.Image], path: Path) -> None:
        self.reader, self.images, self.path = reader, images, path
        self.partial = _partial(path)
        self.record = path.with_name(f".{path.name}.json.partial")
        self.out: np.memmap[Any, np.dtype[np.float16]] | None = None
        self.done = 0  # rows below are made, but for the damaged
        self.damaged: dict[int, str] = {}  # row -> why

    def run(self, title: str) -> None:
        self._go_on()
        rows = [*sorted(self.damaged), *range(self.done, len(self.images))]
        if self.reader.device.type == "cpu" and len(rows) >= WORTH_A_GRAPH:
            graph = GraphEncoder(self.reader.encoder, self.reader.preprocess.size)
            self.reader = replace(self.reader, encoder=graph)
        recorded = time.monotonic()
        with tqdm(total=len(self.images), initial=self.done, desc=title, mininterval=1) as bar:
            for batch, squares in self._decoded(rows):
                self._write(batch, squares)
                bar.update(sum(row >= self.done for row in batch))
                self.done = max(self.done, batch[-1] + 1)
                if time.monotonic() - recorded >= RECORD_SECONDS:
                    self._record()
                    recorded = time.monotonic()
        self._record()
        self._finish()

    def _go_on(self) -> None:
        """Takes up what an interrupted extraction left."""
        if not self.record.is_file() or not self.partial.is_file():
            return
        before = json.loads(self.record.read_text("utf-8"))
        self.out = np.load(self.partial, mmap_mode="r+")
        self.done = before["done"]
        self.damaged = {int(row): why for row, why in before["damaged"].items()}

    def _decoded(self, rows: list[int]) -> Iterator[tuple[list[int], list[np.ndarray | str]]]:
        """Batches of rows with their squares, or why there is none."""
        size, waiting = self.reader.batch, deque[tuple[list[int], list[Future[Any]]]]()
        pool = ThreadPoolExecutor(self.reader.workers or os.cpu_count())
        try:
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                waiting.append((batch, [pool.submit(self._square, row) for row in batch]))
                if len(waiting) > _BATCHES_AHEAD:
                    first, futures = waiting.popleft()
                    yield first, [future.result() for future in futures]
            for last, futures in waiting:
                yield last, [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)

    def _square(self, row: int) -> np.ndarray | str:
        try:
            return np.asarray(self.reader.preprocess.square(self.images[row]), np.uint8)
        except (OSError, ValueError) as error:
            return str(error)

    def _write(self, rows: list[int], squares: list[np.ndarray | str]) -> None:
        for row, square in zip(rows, squares, strict=True):
            self.damaged.pop(row, None)
            if isinstance(square, str):
                self.damaged[row] = square
        readable = [square for square in squares if not isinstance(square, str)]
        if not readable:
            return
        features = self.reader.features(readable)  # (b, n, d)
        if self.out is None:
            self.out = self._allocate((len(self.images), *features.shape[1:]))
        self.out[[row for row in rows if row not in self.damaged]] = features

    def _allocate(self, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[np.float16]]:
        needed, free = 2 * int(np.prod(shape)), shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise OSError(
                f"the features need {needed / 1e9:.1f} GB, but {self.path.parent} has only "
                f"{free / 1e9:.1f} GB left; make room or choose another --cache"
            )
        return open_memmap(self.partial, "w+", np.float16, shape)

    def _record(self) -> None:
        """Notes what is done, once it is on the disk."""
        if self.out is None:
            return
        self.out.flush()
        write_whole(self.record, json.dumps({"done": self.done, "damaged": self.damaged}))

    def _finish(self) -> None:
        rows, total = sorted(self.damaged), len(self.images)
        if rows and not (self.reader.skip_damaged and self.out is not None):
            raise ValueError(_refusal([self.damaged[row] for row in rows], total))
        if self.out is None:
            raise ValueError(f"there are no images to make {self.path} from")
        finished = self._kept(self.out, rows) if rows else self.partial
        about = {"images": total - len(rows), "skipped": rows}
        write_whole(self.path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")
        self.out = None
        finished.replace(self.path)
        self.partial.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)

    def _kept(self, features: np.ndarray, left_out: list[int]) -> Path:
        """Copies the features without some rows into another file."""
        whole = np.delete(np.arange(len(features)), left_out)
        path = self.path.with_name(f".{self.path.name}.kept.partial")
        copy = open_memmap(path, "w+", np.float16, (len(whole), *features.shape[1:]))
        for start in range(0, len(whole), 256):
            copy[start : start + 256] = features[whole[start : start + 256]]
        copy.flush()
        return path


def _refusal(reasons: list[str], total: int) -> str:
    """Says which images are damaged."""
    lines = "".join(f"\n  {reason}" for reason in reasons[:_NAMED])
    more = f"\n  and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    return (
        f"{len(reasons)} of {total} images cannot be read:{lines}{more}\n"
        "replace them and run again (only they will be read), "
        "or leave them out with python -m training.extract --skip-damaged"
    )
