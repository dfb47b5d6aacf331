"""What the methods of a pack score the images of a gallery for a query, and which score best."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from polyview.app.gallery.index import Gallery, Match
from polyview.app.gallery.indexing import Index
from polyview.app.search.hits import NotReadyError, Scores, best_of_files, in_all
from polyview.app.search.query import Term
from polyview.models import Views

SAMPLED = 1024  # images, at most, whose scores stand for those of the whole gallery
_SAMPLE_BYTES = 8 * 2**20  # of their views, of each method that was asked
_PATIENCE = 20.0  # seconds a query waits until there is something to search, or all captions
_BRIEF = 2.0  # seconds it waits for the rest of the images before it answers with what there is
MANY = 10_000  # images; scoring fewer takes less time than starting several threads
_TORCH_THREADS = torch.get_num_threads()
_lock = threading.Lock()
_active = 0  # questions inside `shared_processors`


@contextmanager
def shared_processors(images: int) -> Iterator[None]:
    """Divides torch's threads among the questions that are being answered.

    Inside, torch's operators in this thread use this question's share; below `MANY` images, one
    thread. An operator in several threads waits for the slowest of them, which costs most of its
    time if others need the cores.
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


@dataclass(frozen=True)
class EncodedQuery:
    """A query as the methods that are asked read it.

    Attributes:
        terms: T terms, none alike and none of weight 0; none at all where they cancel out.
        views: for each method, the views (1, W, D) of each term.
    """

    terms: tuple[Term, ...]
    views: Mapping[str, Sequence[Views]]

    @property
    def plain(self) -> bool:
        """Whether one method is asked one term of weight 1."""
        return len(self.views) == 1 and [term.weight for term in self.terms] == [1]


class Ranking:
    """Ranks what is in the galleries of one pack.

    Args:
        index: fills them.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._samples: dict[str, _Sample] = {}

    def scores(self, query: EncodedQuery) -> Scores:
        """Scores of every searchable image; all 0 where the terms cancel out.

        Raises:
            NotReadyError: nothing is searchable yet.
        """
        scores = self._sum(query, self._index.images, self._images_done(query))
        return best_of_files(scores, self._index.files) if self._index.clips else scores

    @torch.inference_mode()
    def scores_of(self, query: EncodedQuery, ids: Sequence[int]) -> np.ndarray:
        """Scores (n,) of n images; as `scores` adds them up.

        Raises:
            NotReadyError: a method that is asked does not have them yet.
        """
        total = np.zeros(len(ids), np.float32)
        for name, queries in query.views.items():
            gallery = self._index.images[name]
            self._wait(gallery, self._images_done(query))
            if not np.isin(ids, gallery.ids()).all():
                raise NotReadyError(f"not all frames are there ({self._index.progress})")
            images = gallery.views(ids)  # (n, V, D)
            for term, views in zip(query.terms, queries, strict=True):
                found = gallery.method.score(images, views.to(images.embeddings.device))[:, 0]
                total += term.weight / len(query.views) * found.float().cpu().numpy()
        return total

    def images(
        self, query: EncodedQuery, k: int, only: AbstractSet[int] | None
    ) -> tuple[list[Match], Scores | None]:
        """The k best images, and all scores where all were computed: views that won come without.

        Of a clip, the best frame alone is among the k; every frame is among the scores.

        Raises:
            NotReadyError: nothing is searchable yet.
        """
        return self._best(query, self._index.images, self._images_done(query), k, only)

    def searched(self, query: EncodedQuery, only: AbstractSet[int] | None) -> tuple[Gallery, int]:
        """The gallery of those asked that holds the fewest images, and how many files these are.

        Args:
            query: what is asked.
            only: the files that are searched; None for all.
        """
        gallery = min((self._index.images[name] for name in query.views), key=len)
        if only is None and not self._index.clips:
            return gallery, len(gallery)
        ids = gallery.ids()
        ids = ids[ids < self._index.files]  # without the further frames of clips
        return gallery, len(ids) if only is None else int(np.isin(ids, list(only)).sum())

    def captions(self, query: EncodedQuery, k: int) -> list[Match]:
        """The k best captions.

        Raises:
            NotReadyError: none are read yet.
        """
        return self._best(query, self._index.captions, self._index.captions_done, k)[0]

    @torch.inference_mode()
    def winners(
        self, query: EncodedQuery, found: Sequence[Match], told: bool
    ) -> dict[str, np.ndarray]:
        """For each method, the view of each image that scores best for each term; see `Found`.

        Args:
            query: what was asked.
            found: the best images.
            told: whether they say which of their views won.
        """
        if told:
            return dict.fromkeys(query.views, np.array([[match.view for match in found]], np.int64))
        won = {}
        for name, queries in query.views.items():
            won[name] = np.zeros((len(queries), len(found)), np.int64)
            if not found:
                continue
            gallery = self._index.images[name]
            images = gallery.views([match.id for match in found])  # (n, V, D)
            for row, views in zip(won[name], queries, strict=True):
                scores = gallery.method.view_scores(images, views.to(images.embeddings.device))
                row[:] = scores[..., 0].argmax(dim=0).cpu().numpy()  # (V, n) -> (n,)
        return won

    @torch.inference_mode()
    def sample(
        self, name: str, text: Views, only: AbstractSet[int] | None
    ) -> tuple[np.ndarray, int]:
        """What a method's sample of the images scores for a text, and how many images there are.

        Args:
            name: of the method.
            text: (1, W, D).
            only: ids of the images that are searched; None for all.
        """
        sample = self._sample(name, only)
        if not sample.of:
            return np.zeros(0, np.float32), 0
        method = self._index.images[name].method
        found = method.score(sample.views, text.to(sample.views.embeddings.device))
        return found[:, 0].float().cpu().numpy(), sample.of

    def _images_done(self, query: EncodedQuery) -> threading.Event:
        """Set once no more images will come for any of a query's methods."""
        alone = set(query.views) == {self._index.first}
        return self._index.first_done if alone else self._index.images_done

    def _best(
        self,
        query: EncodedQuery,
        galleries: Mapping[str, Gallery],
        done: threading.Event,
        k: int,
        only: AbstractSet[int] | None = None,
    ) -> tuple[list[Match], Scores | None]:
        """The k best items, and all scores where all were computed."""
        if query.plain:
            [(name, (views,))] = query.views.items()
            gallery = galleries[name]
            self._wait(gallery, done)
            scanned = gallery.local and len(gallery) <= SAMPLED
            if galleries is self._index.captions:
                return gallery.search(views, k), None
            if not scanned:
                return self._search(gallery, views, k, only), None
        clips = self._index.clips if galleries is self._index.images else {}
        scores = self._sum(query, galleries, done)
        if only is not None:
            scores = among(scores, self._frames(only))
        best = np.argsort(-scores.values, kind="stable")
        if clips:
            _, first = np.unique(scores.ids[best] % self._index.files, return_index=True)
            best = best[np.sort(first)]
        best = best[:k]
        found = zip(scores.ids[best].tolist(), scores.values[best].tolist(), strict=True)
        return [Match(item, score, 0) for item, score in found], scores

    def _search(
        self, gallery: Gallery, views: Views, k: int, only: AbstractSet[int] | None
    ) -> list[Match]:
        """The k best images of a gallery, one of each file."""
        if not self._index.clips:
            return gallery.search(views, k, only)
        only, most = None if only is None else self._frames(only), k
        while True:
            found = gallery.search(views, most, only)
            best: dict[int, Match] = {}
            for match in found:
                best.setdefault(match.id % self._index.files, match)
            if len(best) >= k or len(found) < most:
                return list(best.values())[:k]
            most *= 4

    def _frames(self, only: AbstractSet[int]) -> AbstractSet[int]:
        """The ids of files with those of all their frames."""
        clips = self._index.clips
        if not clips:
            return only
        further = (
            file_id + place * self._index.files
            for file_id in only & clips.keys()
            for place in range(1, len(clips[file_id]))
        )
        return {*only, *further}

    def _sum(
        self, query: EncodedQuery, galleries: Mapping[str, Gallery], done: threading.Event
    ) -> Scores:
        """Weighted sums of the terms' scores, averaged over the methods."""
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for name, queries in query.views.items():
            gallery = galleries[name]
            self._wait(gallery, done)
            if not queries:
                ids = gallery.ids()
                parts.append((ids, np.zeros(len(ids), np.float32)))
            for term, views in zip(query.terms, queries, strict=True):
                ids, scores = gallery.scores(views)
                parts.append((ids, term.weight / len(query.views) * scores))
        return in_all(parts) if len(parts) > 1 else Scores(*parts[0])

    def _sample(self, name: str, only: AbstractSet[int] | None) -> _Sample:
        gallery = self._index.images[name]
        ids = gallery.ids()
        if only is not None:
            ids = ids[np.isin(ids, list(self._frames(only)))]
        elif name in self._samples and self._samples[name].of == len(ids):
            return self._samples[name]
        most = max(1, min(SAMPLED, _SAMPLE_BYTES // (4 * math.prod(gallery.shape or (1,)))))
        sample = _Sample(gallery.views(spread(ids, most) if len(ids) else ids), len(ids))
        if only is None:
            self._samples[name] = sample
        return sample

    def _wait(self, gallery: Gallery, done: threading.Event) -> None:
        """Waits a while for a gallery to be filled.

        Raises:
            NotReadyError: nothing is in it yet.
        """
        index, end = self._index, time.monotonic() + _PATIENCE
        done.wait(_PATIENCE if done is index.captions_done else _BRIEF)
        while not len(gallery) and time.monotonic() < end and not done.wait(0.1):
            pass
        if not len(gallery) and done.is_set():
            raise NotReadyError(f"there is nothing to search ({index.progress})")
        if not len(gallery):
            raise NotReadyError(
                f"nothing can be searched yet ({index.progress}); try again in a moment"
            )


class _Sample(NamedTuple):
    """Views of every so-manieth image, and of how many images they are."""

    views: Views
    of: int


def among(scores: Scores, only: AbstractSet[int]) -> Scores:
    """The scores of some images."""
    chosen = np.isin(scores.ids, list(only))
    return Scores(scores.ids[chosen], scores.values[chosen])


def spread(values: np.ndarray, most: int) -> np.ndarray:
    """Every so-manieth of (N,), so that at most so many are left."""
    return values[:: max(1, -(-len(values) // most))]
