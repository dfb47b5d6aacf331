"""What a pack reads as one set: the features of an image, or of the frames of a clip's window.

Where methods read frames as sets, a score is the window's. Which of its frames it is due to, is
told by its evidence (`models/evidence.py`), summed over words: the *moment* of a hit is the frame
that brings most.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import CollectionImage
from polyview.export.runtime import Runtime
from polyview.models.evidence import Parts
from polyview.models.views import pad_sets

Asked = Mapping[str, Sequence[tuple[float, Parts]]]  # by method, the weight of each term and itself
_AT_ONCE = 16  # windows whose parts are in memory
_REMEMBERED = 20_000  # moments of recent questions


class Sets:
    """What the methods of a pack read of a collection; safe to use from several threads.

    Args:
        runtime: the pack.
        index: knows the frames of clips, and keeps their features.
        image: gives an image of the collection by id.
    """

    def __init__(
        self, runtime: Runtime, index: Index, image: Callable[[int], CollectionImage]
    ) -> None:
        self._runtime = runtime
        self._index = index
        self._image = image
        self._moments: OrderedDict[Hashable, int] = OrderedDict()
        self._lock = threading.Lock()

    def features(self, image_ids: Sequence[int], name: str) -> tuple[Tensor, Tensor]:
        """What a method reads of images: (n, N, d), 0 behind smaller sets, and the mask (n, N).

        Raises:
            ValueError: one cannot be read.
        """
        sets = [self._index.clips.read_with(one) for one in image_ids]
        found = self._frames(sets, name)
        return pad_sets([torch.cat([found[one] for one in own]) for own in sets])

    def moments(
        self, rows: Sequence[int], question: Hashable | None, ask: Callable[[], Asked]
    ) -> list[int]:
        """For each window, the frame to which most of its score is due.

        Only features that are there are used. Of a window without them, or of a score that cannot
        be split, it is the first frame.

        Args:
            rows: ids of windows.
            question: by which moments are remembered; None for one that has no name.
            ask: reads it.
        """
        with self._lock:
            known = ((row, self._moments.get((question, row))) for row in rows)
            found = {row: moment for row, moment in known if moment is not None}
        missing = [row for row in rows if row not in found]
        if missing:
            with suppress(ValueError):  # then nothing is told of them
                for row, curve in self._over_time(missing, ask()).items():
                    found[row] = self._index.clips.read_with(row)[int(curve.argmax())]
        if missing and question is not None:
            self._remember({(question, row): found[row] for row in missing if row in found})
        return [found.get(row, row) for row in rows]

    @torch.inference_mode()
    def _over_time(self, rows: Sequence[int], asked: Asked) -> dict[int, np.ndarray]:
        """How much of each window's score each of its frames (T,) brings, by the window's id.

        Those whose features would have to be computed are left out.

        Raises:
            ValueError: a method's score cannot be split.
        """
        found: dict[int, np.ndarray] = {}
        for start in range(0, len(rows), _AT_ONCE):
            sets = {row: self._index.clips.read_with(row) for row in rows[start : start + _AT_ONCE]}
            frames = list(sets.values())
            read = {name: self._frames(frames, name, at_hand=True) for name in asked}
            there = {
                row: own
                for row, own in sets.items()
                if all(one in features for features in read.values() for one in own)
            }
            if there:
                found |= self._split(there, read, asked)
        return found

    def _split(
        self,
        sets: Mapping[int, Sequence[int]],
        read: Mapping[str, Mapping[int, Tensor]],
        asked: Asked,
    ) -> dict[int, np.ndarray]:
        """See `_over_time`; the features of all frames are given by method."""
        own = next(iter(read.values()))
        each = len(next(iter(own.values())))  # features of a frame
        total = np.zeros((len(sets), max(map(len, sets.values()))), np.float32)  # (B, T)
        for name, terms in asked.items():
            rows = [torch.cat([read[name][one] for one in frames]) for frames in sets.values()]
            features, mask = pad_sets(rows)
            seen = self._runtime.image_parts(features, name, mask)
            for weight, term in terms:
                part = self._runtime.methods[name].evidence(seen, term).scaled(weight)
                sums = part.cells.sum(dim=2) + part.whole_sentence  # (B, N)
                total += sums.unflatten(1, (-1, each)).sum(dim=2).float().cpu().numpy()
        return {row: total[i, : len(frames)] for i, (row, frames) in enumerate(sets.items())}

    def _frames(
        self, sets: Sequence[Sequence[int]], name: str, *, at_hand: bool = False
    ) -> dict[int, Tensor]:
        """Features (n, d) of the images of sets by id."""
        images = [self._image(one).reached() for one in dict.fromkeys(chain(*sets))]
        return self._index.features(images, name, at_hand=at_hand)

    def _remember(self, moments: Mapping[Hashable, int]) -> None:
        with self._lock:
            self._moments.update(moments)
            while len(self._moments) > _REMEMBERED:
                self._moments.popitem(last=False)
