"""Ranks clips by their best frames, and finds the frames that contribute most to a score.

Every indexed frame of a clip is an image. A pack that reads sets of frames splits a clip into
windows, and encodes the frames of a window together; see `Clips` in `app/gallery/index.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import CollectionImage
from polyview.export.runtime import Runtime
from polyview.models.evidence import Parts
from polyview.models.views import pad_sets

_WINDOW_BATCH = 16  # windows whose features are in memory at the same time


class Scores(NamedTuple):
    """The scores `values` (N,) float32 of N images or files, with their `ids` (N,).

    For images, `images` equals `ids`. For files, `images` has the id of each file's best image.
    """

    ids: np.ndarray
    values: np.ndarray
    images: np.ndarray


def best_of_files(scores: Scores, file_count: int) -> Scores:
    """Reduces the scores of images to the best score of each file, in the order of file ids.

    `file_count` is the number of files in the collection. `Collection.file_id` explains the ids.

    >>> ids = np.array([0, 1, 3, 5])
    >>> best_of_files(Scores(ids, np.array([0.1, 0.2, 0.4, 0.3]), ids), 2)
    Scores(ids=array([0, 1]), values=array([0.1, 0.4]), images=array([0, 3]))
    """
    order = np.lexsort((scores.ids, -scores.values))
    file_ids, first_rows = np.unique(scores.ids[order] % file_count, return_index=True)
    return Scores(file_ids, scores.values[order[first_rows]], scores.ids[order[first_rows]])


def nearest_frame(index: Index, image: CollectionImage) -> int:
    """Maps an image of a collection to its id in an index over the same collection.

    Packs may index different frames of a clip. The indexed frame nearest in time is chosen.
    """
    file_id = image.image_id % index.file_count
    moment, moments = image.moment, index.clips.get(file_id)
    if moment is None or not moments:
        return file_id
    distances = [abs(other.seconds - moment.seconds) for other in moments]
    return file_id + distances.index(min(distances)) * index.file_count


def best_frames(
    index: Index,
    runtime: Runtime,
    windows: Sequence[int],
    query: Mapping[str, Sequence[tuple[float, Parts]]],
) -> list[int]:
    """Returns for each window of a clip the frame that contributes most to the window's score.

    A window is given by the id of one of its frames. `query` maps a method to the weight and the
    parts of each term. If the features of a window are not stored, its id is returned unchanged.
    Raises ValueError if a score cannot be split.
    """
    best_frame_of = dict[int, int]()
    for start in range(0, len(windows), _WINDOW_BATCH):
        batch = windows[start : start + _WINDOW_BATCH]
        sets = {window: index.clips.window_of(window) for window in batch}  # window -> frame ids
        frame_ids = [*chain(*sets.values())]
        features = {name: index.features(frame_ids, name, cached_only=True) for name in query}
        stored_ids = [{*rows} for rows in features.values()]  # a set for each method
        sets = {w: ids for w, ids in sets.items() if all(s.issuperset(ids) for s in stored_ids)}
        if not sets:
            continue
        frame_scores = torch.zeros(len(sets), max(map(len, sets.values())))  # (B windows, T frames)
        for name, terms in query.items():
            rows = features[name]  # by frame id
            padded, mask = pad_sets([torch.cat([rows[i] for i in ids]) for ids in sets.values()])
            images = runtime.image_parts(padded, name, mask)
            for weight, term in terms:
                evidence = runtime.methods[name].evidence(images, term).scaled(weight)
                cells = evidence.cells.sum(dim=2) + evidence.whole_sentence  # (B, N)
                by_frame = cells.unflatten(1, (frame_scores.shape[1], -1))  # (B, T, N / T)
                frame_scores += by_frame.sum(dim=2).float().cpu()
        for row, (window, frames) in zip(frame_scores, sets.items(), strict=True):
            best_frame_of[window] = frames[int(row[: len(frames)].argmax())]
    return [best_frame_of.get(window, window) for window in windows]
