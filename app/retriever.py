"""Everything the app can ask of one pack and one collection of pictures."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from app.collection import Collection, Picture
from app.gallery import Gallery, Match
from app.index import Index
from app.pictures import make_thumbnail, open_picture
from app.query import Term
from export.runtime import Runtime
from models import Views

MAX_QUERY = 10_000  # characters
MAX_HITS = 1000
UNKNOWN = "[UNK]"
_PATIENCE = 20.0  # seconds a query waits for the gallery before it answers with what there is


class NotReadyError(ValueError):
    """Nothing can be searched yet; the message says how far the gallery is."""


@dataclass(frozen=True)
class Hit:
    """A found picture.

    Attributes:
        image_id: its place in the collection.
        file: its name there.
        score: the method's score, higher is better.
        view: which of the picture's views won, counted from 0.
        rank: 1 for the best.
    """

    image_id: int
    file: str
    score: float
    view: int
    rank: int


@dataclass(frozen=True)
class CaptionHit:
    """A found caption, and the picture it was written for; see `Hit`."""

    text: str
    image_id: int
    score: float
    view: int
    rank: int


class Scores(NamedTuple):
    """Scores (N,) float32 of pictures and their ids (N,), in the order of the gallery."""

    ids: np.ndarray
    values: np.ndarray


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
        self.index = Index(runtime, collection, cache)
        self._thumbnails = thumbnail_folder(cache)

    @property
    def default_method(self) -> str:
        """The method that measured best, or the pack's last where none was measured.

        Best is what finds most of the pictures that satisfy a text (R-precision); where that is
        not known, or equal, the higher rsum.
        """
        methods = self.runtime.info.methods
        values = {name: m.metrics.values for name, m in methods.items() if m.metrics}
        reached = {n: (v.get("t2i_rprecision", 0), v.get("rsum", 0)) for n, v in values.items()}
        return max(reached, key=lambda name: reached[name]) if reached else list(methods)[-1]

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
        return self.runtime.text_views([_checked_text(text)], method)

    def image_query(self, image: Image.Image, method: str) -> Views:
        """A picture's views (1, V, D), for `images_for` and `captions_for`."""
        self._check_method(method)
        return self.runtime.image_views(self.runtime.image_features([image]), method)

    def images_for(self, query: Views, method: str, k: int) -> list[Hit]:
        """The best pictures for a query's views; see `search_text`."""
        self._check_method(method)
        k = _checked_k(k)
        found = self._search(self.index.images[method], self.index.images_done, query, method, k)
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

    def scores(self, terms: Sequence[Term], spec: str) -> Scores:
        """Scores of every searchable picture for a query of several terms.

        Args:
            terms: at least one; their scores are multiplied by their weights and added.
            spec: a method of the pack, or several joined by "+", whose scores are averaged.

        Returns:
            Ids and scores (N,), in the order of the gallery.

        Raises:
            ValueError: no term, an unknown method, or nothing is searchable yet.
        """
        if not terms:
            raise ValueError("the query is empty; type what the picture should show")
        methods = self.methods_of(spec)
        self.index.images_done.wait(_PATIENCE)
        parts = []
        for name in methods:
            method, gallery = self.runtime.methods[name], self.index.images[name]
            self._check_filled(gallery, self.index.images_done)
            for term in terms:
                ids, scores = gallery.scores(self.term_query(term, name), method)
                parts.append((ids, term.weight / len(methods) * scores.numpy()))
        count = min(len(ids) for ids, _ in parts)  # pictures may arrive meanwhile
        total = np.stack([scores[:count] for _, scores in parts]).sum(axis=0, dtype=np.float32)
        return Scores(np.asarray(parts[0][0][:count]), total)

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
            found, refused = self.index.encoder.features([self.picture(image)])
            if refused:
                raise ValueError(refused[0].reason)
            features = next(iter(found.values()))[None]  # (1, N, d)
        else:
            features = self.runtime.image_features([image])  # (1, N, d)
        attention = self.runtime.image_views(features, method, attention=True).attention
        if attention is None:
            raise ValueError(f"{self.runtime.methods[method].title} has no attention to show")
        return attention[0].reshape(-1, *self.runtime.grid).float().cpu().numpy()

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
        picture = self.picture(image_id)
        return open_picture(picture.path, picture.file)

    def thumbnail(self, image_id: int) -> Path:
        """A small copy of a picture, in a folder that holds nothing else."""
        picture = self.picture(image_id)
        return make_thumbnail(picture.path, self._thumbnails, picture.thumbnail_name())

    def remark(self, text: str) -> str:
        """What a visitor should know about how a sentence was read; empty if there is nothing."""
        tokens = self.runtime.tokenize(text)
        remarks = []
        if tokens.truncated:
            remarks.append(f"Only the first {len(tokens.ids)} words were read.")
        if unknown := tokens.words.count(UNKNOWN):
            count = "One word is" if unknown == 1 else f"{unknown} words are"
            remarks.append(f"{count} unknown to this pack.")
        if not self.index.images_done.is_set():
            remarks.append(f"The gallery is not complete yet ({self.index.progress}).")
        return " ".join(remarks)

    def _search(
        self, gallery: Gallery, done: threading.Event, query: Views, method: str, k: int
    ) -> list[Match]:
        done.wait(_PATIENCE)
        self._check_filled(gallery, done)
        return gallery.search(query, k, self.runtime.methods[method])

    def _check_filled(self, gallery: Gallery, done: threading.Event) -> None:
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


def _checked_text(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"the query must be a text, not {type(text).__name__}")
    if not text.strip():
        raise ValueError("the query is empty; type what the picture should show")
    if len(text) > MAX_QUERY:
        raise ValueError(
            f"the query has {len(text):,} characters; use at most {MAX_QUERY:,}, a sentence is best"
        )
    return text


def _checked_k(k: Any) -> int:
    whole = isinstance(k, int) or (isinstance(k, float) and k.is_integer())
    if isinstance(k, bool) or not whole or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r}")
    return min(int(k), MAX_HITS)
