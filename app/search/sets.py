"""Sets of features: those of an image, or of all frames in a window of a clip.

If methods read frames as sets, a score belongs to a window. The *moment* of a hit is the frame with
the most evidence (`models/evidence.py`), summed over words.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import CollectionImage
from polyview.export.runtime import Runtime
from polyview.models.evidence import Parts
from polyview.models.views import pad_sets

_AT_ONCE = 16  # windows whose parts are in memory at a time


class Sets:
    """The sets of features of a collection; safe to use from several threads.

    Args:
        runtime: the pack.
        index: has the frames of clips and their features.
        image: returns an image of the collection by id.
    """

    def __init__(
        self, runtime: Runtime, index: Index, image: Callable[[int], CollectionImage]
    ) -> None:
        self._runtime, self._index, self._image = runtime, index, image

    def features(self, image_ids: Sequence[int], name: str) -> tuple[Tensor, Tensor]:
        """The features (n, N, d) of images for a method, padded with 0, and the mask (n, N).

        Raises:
            ValueError: an image cannot be read.
        """
        sets = [self._index.clips.read_with(image_id) for image_id in image_ids]
        features = self._frames(sets, name)
        return pad_sets([torch.cat([features[i] for i in frames]) for frames in sets])

    @torch.inference_mode()
    def moments(
        self, rows: Sequence[int], terms: Mapping[str, Sequence[tuple[float, Parts]]]
    ) -> list[int]:
        """For each window, the id of the frame that contributes most to its score.

        If the features of a window are not at hand, its first frame.

        Args:
            rows: ids of windows.
            terms: weights and parts of the query's terms, by method.

        Raises:
            ValueError: a method's score cannot be split.
        """
        moments = {row: row for row in rows}
        for start in range(0, len(rows), _AT_ONCE):
            sets = {row: self._index.clips.read_with(row) for row in rows[start : start + _AT_ONCE]}
            read = {name: self._frames([*sets.values()], name, at_hand=True) for name in terms}
            for row, frames in list(sets.items()):
                if not all(own.keys() >= set(frames) for own in read.values()):
                    del sets[row]
            if not sets:
                continue
            longest = max(map(len, sets.values()))
            curves = torch.zeros(len(sets), longest)  # (B, T)
            for name, own_terms in terms.items():
                own = read[name]
                padded = pad_sets([torch.cat([own[i] for i in s]) for s in sets.values()])
                seen = self._runtime.image_parts(padded[0], name, padded[1])
                for weight, term in own_terms:
                    part = self._runtime.methods[name].evidence(seen, term).scaled(weight)
                    cells = part.cells.sum(dim=2) + part.whole_sentence  # (B, N)
                    curves += cells.unflatten(1, (longest, -1)).sum(dim=2).float().cpu()
            for curve, (row, frames) in zip(curves, sets.items(), strict=True):
                moments[row] = frames[int(curve[: len(frames)].argmax())]
        return [moments[row] for row in rows]

    def _frames(
        self, sets: Sequence[Sequence[int]], name: str, *, at_hand: bool = False
    ) -> dict[int, Tensor]:
        """Features (n, d) of the frames of sets, by id."""
        images = [self._image(image_id).reached() for image_id in dict.fromkeys(chain(*sets))]
        return self._index.features(images, name, at_hand=at_hand)
