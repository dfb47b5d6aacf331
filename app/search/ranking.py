"""Queries of weighted terms, and the ranking of a gallery's images for an encoded query.

*Scores* are combined, not embeddings, so that the result does not depend on a method's scoring
rule: for an image x, score(x) = sum of weight * score(x, term).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from polyview.app.access import Refusal
from polyview.app.gallery.index import Gallery, Match
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import CollectionImage
from polyview.models import Views

SAMPLED = 1024  # images whose scores represent those of the gallery
SAMPLE_BYTES = 8 * 2**20  # bytes of the views of these images, at most
LARGE_GALLERY = 10_000  # images; scoring fewer is faster in one thread
_PATIENCE = 20.0  # seconds a query waits for the first images, or for all captions
_BRIEF = 2.0  # seconds a query waits for the remaining images
_TORCH_THREADS = torch.get_num_threads()
_lock = threading.Lock()
_active = 0  # number of questions within `shared_processors`

# An encoded query: method -> weight and views (1, W, D) of each term. Terms are distinct and have
# nonzero weights; empty if all terms cancel out.
Query = Mapping[str, Sequence[tuple[float, Views]]]


@dataclass(frozen=True)
class Term:
    """One part of a query: words, or an image."""

    words: str = ""  # a sentence; empty for an image
    image: CollectionImage | Image.Image | None = None  # of a collection, or any decoded image
    weight: float = 1.0  # factor of the term's scores; negative to subtract
    name: str = "image"  # the name of an image, for people


def combined(terms: Sequence[Term]) -> list[Term]:
    """Adds up equal terms and drops terms with a total weight of 0.

    >>> dog, cat = Term("dog"), Term("cat")
    >>> [(t.weight, t.words) for t in combined([dog, cat, dog, Term("cat", weight=-1.0)])]
    [(2.0, 'dog')]
    """
    sums: dict[tuple[str, int], Term] = {}
    for term in terms:
        image = term.image.image_id if isinstance(term.image, CollectionImage) else id(term.image)
        key = (" ".join(term.words.split()), image)
        weight = term.weight + (sums[key].weight if key in sums else 0.0)
        sums[key] = replace(sums.get(key, term), weight=weight)
    return [term for term in sums.values() if abs(term.weight) > 1e-9]  # rounding errors


class Scores(NamedTuple):
    """Scores (N,) float32 of images or files with their ids (N,), in the order of the gallery.

    `images` (N,) are the same ids, or those of the best image of each file.
    """

    ids: np.ndarray
    values: np.ndarray
    images: np.ndarray


def best_of_files(scores: Scores, files: int) -> Scores:
    """Reduces scores of images to those of their files, in file order; a clip has several images.

    `files` is the number of files in the collection, see `Collection.file_id`.

    >>> ids = np.array([0, 1, 3, 5])
    >>> best_of_files(Scores(ids, np.array([0.1, 0.2, 0.4, 0.3]), ids), 2)
    Scores(ids=array([0, 1]), values=array([0.1, 0.4]), images=array([0, 3]))
    """
    best = np.lexsort((scores.ids, -scores.values))
    owners, first = np.unique(scores.ids[best] % files, return_index=True)
    return Scores(owners, scores.values[best[first]], scores.ids[best[first]])


@contextmanager
def shared_processors(images: int) -> Iterator[None]:
    """Divides torch's threads among concurrent questions.

    Within the block, torch's operators use this question's share of threads, or one thread below
    `LARGE_GALLERY` images. An operator in several threads waits for the slowest, which is slow if
    other questions use the cores.
    """
    global _active
    with _lock:
        _active += 1
        share = max(1, _TORCH_THREADS // _active) if images >= LARGE_GALLERY else 1
    torch.set_num_threads(share)
    try:
        yield
    finally:
        with _lock:
            _active -= 1
        torch.set_num_threads(_TORCH_THREADS)


def single(query: Query) -> tuple[str, Views] | None:
    """Method and views of a query with one method and one term of weight 1; else None."""
    (name, terms), *others = query.items()
    return (name, terms[0][1]) if not others and [weight for weight, _ in terms] == [1] else None


def subsample(values: np.ndarray, max_items: int = SAMPLED) -> np.ndarray:
    """Every k-th of (N,) values, at most `max_items`."""
    return values[:: max(1, -(-len(values) // max_items))]


class Ranking:
    """Ranks the items in an index's galleries; `only` has the ids of the files to rank, or is None.

    Every method raises `Refusal` if nothing is searchable yet.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._samples: dict[str, tuple[int, Views]] = {}  # size of the gallery; views of a sample

    def scores(self, query: Query, texts: bool = False) -> Scores:
        """Scores of all searchable items: weighted sums over terms, averaged over methods.

        All are 0 if the terms cancel out. Each frame of a clip has its own score.
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
        if not all(np.array_equal(part_ids, ids) for part_ids, _ in parts):
            # galleries may grow meanwhile, and a later method may fail to read an image
            ids = reduce(np.intersect1d, [part_ids for part_ids, _ in parts])
            parts = [(o, v[np.intersect1d(o, ids, return_indices=True)[1]]) for o, v in parts]
        return Scores(ids, reduce(np.add, [values for _, values in parts]), ids)

    def best(
        self, query: Query, k: int, only: AbstractSet[int] | None = None, texts: bool = False
    ) -> tuple[list[Match], np.ndarray | None]:
        """The k best images or captions with their winning views, and all scores (N,) if computed.

        A view wins if it scores best for every term. Only the best frame of a clip is among the k;
        the scores include every frame.
        """
        if single_query := single(query):
            gallery = self._gallery(query, single_query[0], texts)
            if texts or not gallery.local or len(gallery) > SAMPLED:
                return self._search(gallery, single_query[1], k, only, texts), None
        ids, values, _ = self.scores(query, texts)
        selection = self._among(ids, only)
        ids, values = ids[selection], values[selection]
        best = np.argsort(-values, kind="stable")
        if not texts and self._index.clips:
            _, first = np.unique(ids[best] % self._index.files, return_index=True)
            best = best[np.sort(first)]
        best = best[:k]
        views = [None] * len(best) if texts else self._winners(query, ids[best])
        triples = zip(ids[best].tolist(), values[best].tolist(), views, strict=True)
        return [Match(*triple) for triple in triples], values

    def _search(
        self, gallery: Gallery, views: Views, k: int, only: AbstractSet[int] | None, texts: bool
    ) -> list[Match]:
        """The k best items of a gallery, at most one for each clip."""
        if texts or not self._index.clips:
            return gallery.search(views, k, only)
        ids = gallery.ids()
        frames = None if only is None else {*ids[self._among(ids, only)].tolist()}
        limit = k
        while True:
            matches, best = gallery.search(views, limit, frames), dict[int, Match]()
            for match in matches:
                best.setdefault(match.id % self._index.files, match)
            if len(best) >= k or len(matches) < limit:
                return list(best.values())[:k]
            limit *= 4

    @torch.inference_mode()
    def _winners(self, query: Query, ids: np.ndarray) -> list[int | None]:
        """For each image, its best view if it is the same for all terms, else None."""
        (name, terms), *others = query.items()
        if others or not terms or not len(ids):
            return [None] * len(ids)
        gallery = self._index.images[name]
        images, method = gallery.views(ids), gallery.method  # (n, V, D)
        scores = [method.view_scores(images, v.to(images.embeddings.device)) for _, v in terms]
        winners = torch.stack([s[..., 0].argmax(dim=0) for s in scores], dim=1)  # (n, T)
        return [row[0] if len(set(row)) == 1 else None for row in winners.tolist()]

    @torch.inference_mode()
    def sample(self, name: str, text: Views, only: AbstractSet[int] | None) -> np.ndarray:
        """Scores (S,) of an even sample of the images by a method for a text (1, W, D)."""
        gallery, (count, views) = self._index.images[name], self._samples.get(name, (-1, None))
        ids = gallery.ids()
        ids = ids[self._among(ids, only)]
        if not len(ids):
            return np.zeros(0, np.float32)
        if only is not None or views is None or count != len(ids):
            count = max(1, SAMPLE_BYTES // (4 * math.prod(gallery.shape or (1,))))
            views = gallery.views(subsample(ids, min(SAMPLED, count)))
            if only is None:
                self._samples[name] = len(ids), views
        scores = gallery.method.score(views, text.to(views.embeddings.device))
        return scores[:, 0].float().cpu().numpy()

    def extent(self, query: Query, only: AbstractSet[int] | None) -> tuple[int, int, str]:
        """The numbers of ranked images and files, and the caveat of an approximate ranking."""
        gallery = min((self._index.images[name] for name in query), key=len)
        ids = gallery.ids()
        ids = ids[self._among(ids, only)]
        files = int((ids < self._index.files).sum())  # without further frames of clips
        return len(ids), files, gallery.caveat(only) if single(query) else ""

    def _among(self, ids: np.ndarray, only: AbstractSet[int] | None) -> np.ndarray | slice:
        """Selects the images (n,) whose files are in `only`; a frame belongs to its clip."""
        return slice(None) if only is None else np.isin(ids % self._index.files, list(only))

    def _gallery(self, query: Query, name: str, texts: bool) -> Gallery:
        """A method's gallery of images or captions; waits until it is not empty."""
        index, end = self._index, time.monotonic() + _PATIENCE
        gallery, done = index.images[name], index.images_done
        if texts:
            gallery, done = index.captions[name], index.captions_done
        elif set(query) == {index.first}:
            done = index.first_done
        done.wait(_PATIENCE if texts else _BRIEF)
        while not len(gallery) and time.monotonic() < end and not done.wait(0.1):
            pass
        if not len(gallery):
            if done.is_set():
                raise Refusal(503, f"there is nothing to search ({index.progress})")
            sentence = f"nothing is searchable yet ({index.progress}); try again in a moment"
            raise Refusal(503, sentence, 5)
        return gallery
