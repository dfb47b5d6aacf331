"""Scores and ranks the images of a gallery for a query."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch

from polyview.app.gallery.index import Gallery, Match
from polyview.app.gallery.indexing import Index
from polyview.app.search.hits import NotReadyError
from polyview.models import Views

SAMPLED = 1024  # images in the sample that represents the gallery
_SAMPLE_BYTES = 8 * 2**20  # bytes of their views
_PATIENCE = 20.0  # seconds a query waits for the first images, or for all captions
_BRIEF = 2.0  # seconds it waits for the remaining images
MANY = 10_000  # images; scoring fewer is faster in one thread
_TORCH_THREADS = torch.get_num_threads()
_lock = threading.Lock()
_active = 0  # number of questions in `shared_processors`

# An encoded query: method -> weight and views (1, W, D) of each term. Terms are distinct and have
# nonzero weights; empty if all terms cancel out.
Query = Mapping[str, Sequence[tuple[float, Views]]]


@contextmanager
def shared_processors(images: int) -> Iterator[None]:
    """Divides torch's threads among concurrent questions.

    Within the block, torch's operators use this question's share of threads, or one thread below
    `MANY` images. An operator in several threads waits for the slowest, which is slow if other
    questions use the cores.
    """
    global _active
    with _lock:
        _active += 1
        share = max(1, _TORCH_THREADS // _active) if images >= MANY else 1
    torch.set_num_threads(share)
    try:
        yield
    finally:
        with _lock:
            _active -= 1
        torch.set_num_threads(_TORCH_THREADS)


class Scores(NamedTuple):
    """Scores (N,) float32 of images and their ids (N,), in the order of the gallery.

    For scores of files, `best_images` (N,) are the ids of the best image of each.
    """

    ids: np.ndarray
    values: np.ndarray
    best_images: np.ndarray | None = None

    @property
    def images(self) -> np.ndarray:
        """Ids (N,) of the images with these scores."""
        return self.ids if self.best_images is None else self.best_images


def best_of_files(scores: Scores, files: int) -> Scores:
    """Scores of files by their best images, in file order; a clip has several images.

    Args:
        scores: scores of images.
        files: number of files in the collection; see `Collection.file_id`.

    >>> best_of_files(Scores(np.array([0, 1, 3, 5]), np.array([0.1, 0.2, 0.4, 0.3])), 2)
    Scores(ids=array([0, 1]), values=array([0.1, 0.4]), best_images=array([0, 3]))
    """
    best = np.lexsort((scores.ids, -scores.values))
    owners, first = np.unique(scores.ids[best] % files, return_index=True)
    return Scores(owners, scores.values[best[first]], scores.ids[best[first]])


def single(query: Query) -> tuple[str, Views] | None:
    """Method and views of a query with one method and one term of weight 1; else None."""
    (name, terms), *others = query.items()
    return (name, terms[0][1]) if not others and [weight for weight, _ in terms] == [1] else None


def subsample(values: np.ndarray, most: int) -> np.ndarray:
    """Every k-th of (N,) values, at most `most`."""
    return values[:: max(1, -(-len(values) // most))]


class Ranking:
    """Ranks the items in the galleries of a pack.

    Args:
        index: builds the galleries.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._samples: dict[str, tuple[int, Views]] = {}  # size of the gallery; views of a sample

    def scores(self, query: Query, texts: bool = False) -> Scores:
        """Scores of all searchable items: weighted sums over terms, averaged over methods.

        All are 0 if the terms cancel out. Each frame of a clip has its own score.

        Raises:
            NotReadyError: nothing is searchable yet.
        """
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for name, terms in query.items():
            gallery = self._gallery(query, name, texts)
            if not terms:
                parts.append((gallery.ids(), np.zeros(len(gallery.ids()), np.float32)))
            for weight, views in terms:
                ids, values = gallery.scores(views)
                parts.append((ids, weight / len(query) * values))
        ids = parts[0][0]
        if not all(np.array_equal(others, ids) for others, _ in parts):
            # galleries grow meanwhile, and an image may be unreadable for a later method
            ids = reduce(np.intersect1d, [others for others, _ in parts])
            parts = [(o, v[np.intersect1d(o, ids, return_indices=True)[1]]) for o, v in parts]
        return Scores(ids, reduce(np.add, [values for _, values in parts]))

    def best(
        self, query: Query, k: int, only: AbstractSet[int] | None = None, texts: bool = False
    ) -> tuple[list[Match], Scores | None]:
        """The k best images or captions with their winning views, and all scores if computed.

        A view wins if it scores best for every term. Only the best frame of a clip is among the k;
        the scores include every frame.

        Raises:
            NotReadyError: nothing is searchable yet.
        """
        files = self._index.files if self._index.clips and not texts else 0
        if plain := single(query):
            gallery = self._gallery(query, plain[0], texts)
            if texts or not gallery.local or len(gallery) > SAMPLED:
                return _search(gallery, plain[1], k, self._items(gallery, only), files), None
        scores = self.scores(query, texts)
        if only is not None:
            chosen = self._chosen(scores.ids, only)
            scores = Scores(scores.ids[chosen], scores.values[chosen])
        best = np.argsort(-scores.values, kind="stable")
        if files:
            _, first = np.unique(scores.ids[best] % files, return_index=True)
            best = best[np.sort(first)]
        ids, values = scores.ids[best[:k]].tolist(), scores.values[best[:k]].tolist()
        views = [None] * len(ids) if texts else self._winners(query, ids)
        return [Match(*each) for each in zip(ids, values, views, strict=True)], scores

    @torch.inference_mode()
    def _winners(self, query: Query, ids: Sequence[int]) -> list[int | None]:
        """For each image, its best view if it is the same for all terms, else None."""
        (name, terms), *others = query.items()
        if others or not terms or not ids:
            return [None] * len(ids)
        gallery = self._index.images[name]
        images, method = gallery.views(ids), gallery.method  # (n, V, D)
        scores = [method.view_scores(images, v.to(images.embeddings.device)) for _, v in terms]
        places = torch.stack([each[..., 0].argmax(dim=0) for each in scores], dim=1)  # (n, T)
        return [row[0] if len(set(row)) == 1 else None for row in places.tolist()]

    @torch.inference_mode()
    def sample(self, name: str, text: Views, only: AbstractSet[int] | None) -> np.ndarray:
        """Scores (S,) of an even sample of the images for a text (1, W, D).

        Args:
            name: the method.
            text: the views of the text.
            only: ids of the files to search; None for all.
        """
        gallery, (count, views) = self._index.images[name], self._samples.get(name, (-1, None))
        ids = gallery.ids()
        if only is not None:
            ids = ids[self._chosen(ids, only)]
        if not len(ids):
            return np.zeros(0, np.float32)
        if only is not None or views is None or count != len(ids):
            most = max(1, min(SAMPLED, _SAMPLE_BYTES // (4 * math.prod(gallery.shape or (1,)))))
            views = gallery.views(subsample(ids, most))
            if only is None:
                self._samples[name] = len(ids), views
        scores = gallery.method.score(views, text.to(views.embeddings.device))
        return scores[:, 0].float().cpu().numpy()

    def extent(self, query: Query, only: AbstractSet[int] | None) -> tuple[int, int, str]:
        """Counts the ranked images and files, and says why the ranking is approximate."""
        gallery = min((self._index.images[name] for name in query), key=len)
        ids = gallery.ids()
        if only is not None:
            ids = ids[self._chosen(ids, only)]
        files = int((ids < self._index.files).sum())  # without further frames of clips
        return len(ids), files, gallery.caveat(only) if single(query) else ""

    def _chosen(self, ids: np.ndarray, only: AbstractSet[int]) -> np.ndarray:
        """Whether images (n,), which may be frames of clips, belong to files."""
        return np.isin(ids % self._index.files, list(only))

    def _items(self, gallery: Gallery, only: AbstractSet[int] | None) -> AbstractSet[int] | None:
        """The ids of files with those of all their frames."""
        if only is None or not self._index.clips:
            return only
        ids = gallery.ids()
        return {*ids[self._chosen(ids, only)].tolist()}

    def _gallery(self, query: Query, name: str, texts: bool) -> Gallery:
        """A method's gallery of images or captions; waits until it is not empty.

        Raises:
            NotReadyError: it is still empty.
        """
        index, end = self._index, time.monotonic() + _PATIENCE
        gallery, done = index.images[name], index.images_done
        if texts:
            gallery, done = index.captions[name], index.captions_done
        elif set(query) == {index.first}:
            done = index.first_done
        done.wait(_PATIENCE if texts else _BRIEF)
        while not len(gallery) and time.monotonic() < end and not done.wait(0.1):
            pass
        if not len(gallery) and done.is_set():
            raise NotReadyError(f"there is nothing to search ({index.progress})")
        if not len(gallery):
            raise NotReadyError(
                f"nothing can be searched yet ({index.progress}); try again in a moment"
            )
        return gallery


def _search(
    gallery: Gallery, views: Views, k: int, only: AbstractSet[int] | None, files: int
) -> list[Match]:
    """The k best items of a gallery; with `files`, at most one for each file."""
    most = k
    while True:
        matches = gallery.search(views, most, only)
        if not files:
            return matches
        best: dict[int, Match] = {}
        for match in matches:
            best.setdefault(match.id % files, match)
        if len(best) >= k or len(matches) < most:
            return list(best.values())[:k]
        most *= 4
