"""Everything the app can ask of one pack and one collection of pictures."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from app.collection import Collection, Picture
from app.gallery import Match
from app.hits import CaptionHit, Found, Hit, Scores
from app.index import Index
from app.pictures import make_thumbnail, open_picture
from app.query import Question, Term, checked, combined
from app.searchable import Searchable
from export.fields import MAX_WHOLE
from export.runtime import Runtime
from models import Views

MAX_HITS = 1000
UNKNOWN = "[UNK]"
_PATIENCE = 20.0  # seconds a query waits for the gallery before it answers with what there is


class NotReadyError(ValueError):
    """Nothing can be searched yet; the message says how far the gallery is."""


class Retriever:
    """Searches one collection with one pack; safe to use from several threads.

    Args:
        runtime: the loaded pack.
        collection: the pictures, and their captions where there are any.
        cache: the user's cache folder.

    Attributes:
        runtime: as given.
        collection: as given.
        index: what is searchable so far; `index.start()` begins to fill it.
    """

    def __init__(self, runtime: Runtime, collection: Collection, cache: Path) -> None:
        self.runtime = runtime
        self.collection = collection
        self.index = Index(runtime, collection, cache, self.default_method)
        self._thumbnails = thumbnail_folder(cache)

    @property
    def default_method(self) -> str:
        """The method that measured best, or the pack's last where none was measured."""
        return self._best_first()[0]

    def ensembles(self, count: int) -> list[str]:
        """The pairs "a+b" of the methods that measured best, at most `count`."""
        return ["+".join(pair) for pair in islice(combinations(self._best_first(), 2), count)]

    def search_text(self, text: str, method: str, k: int) -> list[Hit]:
        """The pictures that fit a sentence best.

        Args:
            text: 1 to 10,000 characters; the pack's tokenizer cuts it at its own length.
            method: a method of the pack.
            k: at least 1; at most 1,000 pictures are returned.

        Raises:
            ValueError: a query, method or k that makes no sense, or nothing is searchable yet.
        """
        return self.images_for(self.text_query(text, method), method, k)

    def search_image(self, image: Image.Image, method: str, k: int) -> list[CaptionHit]:
        """The captions that fit a picture best; none where the collection has no captions."""
        return self.captions_for(self.image_query(image, method), method, k)

    def similar_images(self, image: Image.Image, method: str, k: int) -> list[Hit]:
        """The pictures whose views are closest to a picture's."""
        return self.images_for(self.image_query(image, method), method, k)

    def text_query(self, text: str, method: str) -> Views:
        """A sentence's views (1, W, D), for `images_for`."""
        self._check_method(method)
        return self.runtime.text_views([checked(text)], method)

    def image_query(self, image: Image.Image, method: str) -> Views:
        """A picture's views (1, V, D), for `images_for` and `captions_for`."""
        self._check_method(method)
        return self.runtime.image_views(self.runtime.image_features([image], method), method)

    def images_for(
        self, query: Views, method: str, k: int, only: AbstractSet[int] | None = None
    ) -> list[Hit]:
        """The best pictures for a query's views, among those with an id in `only`."""
        self._check_method(method)
        k = _checked_k(k)
        images, done = self.index.images[method], self.index.done([method])
        found = self._search(images, done, query, method, k, only)
        pictures = self.collection.pictures
        return [
            Hit(match.id, pictures[match.id].file, match.score, match.view, rank)
            for rank, match in enumerate(found, start=1)
        ]

    def captions_for(self, query: Views, method: str, k: int) -> list[CaptionHit]:
        """The best captions for a picture's views; see `search_image`."""
        self._check_method(method)
        k = _checked_k(k)
        if not self.collection.captions:
            return []
        found = self._search(
            self.index.captions[method], self.index.captions_done, query, method, k
        )
        return [
            CaptionHit(*self.collection.captions[match.id], match.score, match.view, rank)
            for rank, match in enumerate(found, start=1)
        ]

    def question(self, terms: Sequence[Term], spec: str) -> Question:
        """Reads a query of several terms with one method or several.

        Args:
            terms: at least one; terms that say the same are read as one.
            spec: a method of the pack, or several joined by "+", whose scores are averaged.

        Raises:
            ValueError: no term, a term that cannot be read, or an unknown method.
        """
        methods = self.methods_of(spec)
        if not terms:
            raise ValueError("the query is empty; type what the picture should show")
        for term in terms:
            if term.image is None:
                checked(term.words)
        kept = combined(terms)
        views: dict[str, list[Views]] = {name: [] for name in methods}
        for term in kept:
            seen = {}
            if term.image is not None:
                seen = self.runtime.features_by_method([term.image], methods)
            for name in methods:
                views[name].append(
                    self.runtime.image_views(seen[name], name)
                    if seen
                    else self.runtime.text_views([term.words], name)
                )
        return Question(tuple(kept), {name: tuple(part) for name, part in views.items()})

    def find(self, question: Question, k: int, only: AbstractSet[int] | None = None) -> Found:
        """The best pictures for a query of several terms; ties in the order of the gallery.

        A term's score is multiplied by its weight, the terms are added, and the methods of an
        ensemble averaged. A view won where one method was asked and the same view of the picture
        scores best for every term.

        Args:
            question: from `question`.
            k: at least 1; at most 1,000 pictures are returned.
            only: ids of the pictures to rank; None ranks all.

        Raises:
            ValueError: a k that makes no sense, or nothing is searchable yet.
        """
        k = _checked_k(k)
        if (plain := question.plain) is not None:
            name, query = plain
            hits = self.images_for(query, name, k, only)
            return Found(hits, {name: np.array([[hit.view for hit in hits]], np.int64)})
        images = self.index.images
        ids, values = self._totals(question, images, self.index.done(question.views))
        if only is not None:
            kept = np.isin(ids, list(only))
            ids, values = ids[kept], values[kept]
        best = np.argsort(-values, kind="stable")[:k]
        ids, values = ids[best], values[best]
        winners = {
            name: np.array(
                [images[name].winners(query, self.runtime.methods[name], ids) for query in queries]
            ).reshape(len(queries), len(ids))
            for name, queries in question.views.items()
        }
        one = next(iter(winners.values())) if len(winners) == 1 else np.empty((0, 0))
        alone = (
            [int(place[0]) if (place == place[0]).all() else None for place in one.T]
            if len(one)
            else [None] * len(ids)
        )
        pictures = self.collection.pictures
        found = zip(ids.tolist(), values.tolist(), alone, strict=True)
        hits = [
            Hit(image_id, pictures[image_id].file, score, view, rank)
            for rank, (image_id, score, view) in enumerate(found, start=1)
        ]
        return Found(hits, winners)

    def find_captions(self, question: Question, k: int) -> list[CaptionHit]:
        """The best captions for a picture that one method or several look at; see `find`."""
        k = _checked_k(k)
        if (plain := question.plain) is not None:
            name, query = plain
            return self.captions_for(query, name, k)
        if not self.collection.captions:
            return []
        ids, values = self._totals(question, self.index.captions, self.index.captions_done)
        best = np.argsort(-values, kind="stable")[:k]
        found = []
        for rank, (caption, score) in enumerate(zip(ids[best], values[best], strict=True), start=1):
            text, image_id = self.collection.captions[int(caption)]
            found.append(CaptionHit(text, image_id, float(score), None, rank))
        return found

    def scores(self, terms: Sequence[Term], spec: str) -> Scores:
        """Scores of every searchable picture for a query of several terms; see `question`.

        Returns:
            Ids and scores (N,), in the order of the gallery; all 0 where the terms cancel out.

        Raises:
            ValueError: no term, an unknown method, or nothing is searchable yet.
        """
        question = self.question(terms, spec)
        return self._totals(question, self.index.images, self.index.done(question.views))

    def term_query(self, term: Term, method: str) -> Views:
        """A term's views (1, W, D)."""
        if term.image is not None:
            return self.image_query(term.image, method)
        return self.text_query(term.words, method)

    def methods_of(self, spec: str) -> tuple[str, ...]:
        """The methods of "a" or of the ensemble "a+b".

        Raises:
            ValueError: one is unknown or named twice.
        """
        names = tuple(part.strip() for part in str(spec).split("+"))
        for name in names:
            self._check_method(name)
        if len(set(names)) < len(names):
            raise ValueError(f'the ensemble "{spec}" names a method twice; name each once')
        return names

    def title_of(self, spec: str) -> str:
        """What people call a method or an ensemble."""
        return " + ".join(self.runtime.methods[name].title for name in self.methods_of(spec))

    def heatmap(self, image: int | Image.Image, method: str) -> np.ndarray:
        """What each view of a picture is made of; `Method.attention_is` says in what sense.

        Args:
            image: a picture of the collection by id, or any picture.
            method: a method of the pack.

        Returns:
            (V, rows, columns) float32 on the grid of the pack's encoder; shares of 1, or cosines
            where `Method.attention_sums_to_one` is False.
        """
        self._check_method(method)
        if isinstance(image, int):
            picture = self.picture(image).reached()
            found, refused = self.index.encoder.features([picture], method)
            if refused:
                raise ValueError(refused[0].reason)
            features = next(iter(found.values()))[None]  # (1, N, d)
        else:
            features = self.runtime.image_features([image], method)  # (1, N, d)
        attention = self.runtime.image_views(features, method, attention=True).attention
        if attention is None:
            raise ValueError(f"{self.runtime.methods[method].title} has no attention to show")
        return self.runtime.on_grid(attention[0]).float().cpu().numpy()

    def picture(self, image_id: int) -> Picture:
        """A picture of the collection.

        Raises:
            ValueError: there is none with this id.
        """
        pictures = self.collection.pictures
        if not 0 <= image_id < len(pictures):
            raise ValueError(
                f"there is no picture {image_id}; ids go from 0 to {len(pictures) - 1}"
            )
        return pictures[image_id]

    def open(self, image_id: int) -> Image.Image:
        """A picture of the collection, decoded."""
        picture = self.picture(image_id).reached()
        return open_picture(picture.path, picture.file)

    def thumbnail(self, image_id: int) -> Path:
        """A small copy of a picture, in a folder that holds nothing else."""
        picture = self.picture(image_id)
        return make_thumbnail(picture.path, self._thumbnails, picture.thumbnail_name())

    def searchable(self, spec: str, only: AbstractSet[int] | None = None) -> int:
        """How many pictures a method or an ensemble ranks, of all or of those in `only`."""
        galleries = [self.index.images[name] for name in self.methods_of(spec)]
        fewest = min(galleries, key=len)
        if only is None or not len(fewest):
            return len(fewest)
        return sum(image_id in only for image_id in fewest.ids())

    def satisfying(self, words: str, only: AbstractSet[int] | None = None) -> frozenset[int]:
        """Ids of the pictures known to satisfy a caption of the collection; none for others."""
        known = self.collection.relevant.get(" ".join(words.split()), frozenset())
        return known if only is None else known & only

    def caveat(self, question: Question, only: AbstractSet[int] | None = None) -> str:
        """In what way the best pictures for a question are not exact; empty where they are."""
        if (plain := question.plain) is None:
            return ""  # everything is scored
        name, _ = plain
        return self.index.images[name].caveat(self.runtime.methods[name], only)

    def remark(self, *texts: str) -> str:
        """What a visitor should know about how words were read; empty if there is nothing."""
        read = [self.runtime.tokenize(text) for text in texts]
        remarks = []
        if longest := max((len(tokens.ids) for tokens in read if tokens.truncated), default=0):
            remarks.append(f"Only the first {longest} words were read.")
        if unknown := sum(tokens.words.count(UNKNOWN) for tokens in read):
            count = "One word is" if unknown == 1 else f"{unknown} words are"
            remarks.append(f"{count} unknown to this pack.")
        if not self.index.complete:
            remarks.append(f"The gallery is not complete yet ({self.index.progress}).")
        return " ".join(remarks)

    def _best_first(self) -> list[str]:
        """The pack's methods by what they measured, the last of those not measured first.

        Best is what finds most of the pictures that satisfy a text (R-precision); where that is
        not known, or equal, the higher rsum.
        """
        methods = self.runtime.info.methods
        values = {name: m.metrics.values for name, m in methods.items() if m.metrics}
        reached = {n: (v.get("t2i_rprecision", 0), v.get("rsum", 0)) for n, v in values.items()}
        measured = sorted(reached, key=lambda name: reached[name], reverse=True)
        return measured + [name for name in reversed(methods) if name not in reached]

    def _totals(
        self, question: Question, galleries: Mapping[str, Searchable], done: threading.Event
    ) -> Scores:
        """Weighted sums of the terms' scores, averaged over the methods."""
        done.wait(_PATIENCE)
        parts: list[tuple[list[int], np.ndarray]] = []
        for name, queries in question.views.items():
            gallery = galleries[name]
            self._check_filled(gallery, done)
            if not queries:
                ids = gallery.ids()
                parts.append((ids, np.zeros(len(ids), np.float32)))
            for term, query in zip(question.terms, queries, strict=True):
                ids, scores = gallery.scores(query, self.runtime.methods[name])
                parts.append((ids, term.weight / len(question.views) * scores.numpy()))
        return Scores.summed(parts)

    def _search(
        self,
        gallery: Searchable,
        done: threading.Event,
        query: Views,
        method: str,
        k: int,
        only: AbstractSet[int] | None = None,
    ) -> list[Match]:
        done.wait(_PATIENCE)
        self._check_filled(gallery, done)
        return gallery.search(query, k, self.runtime.methods[method], only)

    def _check_filled(self, gallery: Searchable, done: threading.Event) -> None:
        if not len(gallery) and done.is_set():
            raise NotReadyError(f"there is nothing to search ({self.index.progress})")
        if not len(gallery):
            raise NotReadyError(
                f"nothing can be searched yet ({self.index.progress}); try again in a moment"
            )

    def _check_method(self, method: str) -> None:
        if not isinstance(method, str) or method not in self.runtime.methods:
            known = ", ".join(self.runtime.methods)
            raise ValueError(f'there is no method "{method}" in this pack; choose one of {known}')


def thumbnail_folder(cache: Path) -> Path:
    """Where thumbnails lie in a cache folder, and nothing else."""
    return cache / "thumbnails"


def _checked_k(k: Any) -> int:
    whole = isinstance(k, int) or (isinstance(k, float) and k.is_integer())
    if isinstance(k, bool) or not whole or not 1 <= k <= MAX_WHOLE:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r:.80}")
    return min(int(k), MAX_HITS)
