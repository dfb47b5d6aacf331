"""A pack and a gallery in a few calls, for Python programs and notebooks.

>>> library = Library("scenes")
>>> best, *others = library.search("a dog left of a red car", k=3)
>>> best.rank, len(others), best.path.name.endswith(".webp")
(1, 2, True)
>>> why = library.explain("a dog left of a red car", best)
>>> bool(abs(why.base + why.cells.sum() - why.score) < 1e-4 * why.score)
True
>>> why.light("dog").mode
'RGB'
>>> sorted(library.compare("a dog", ["mv_vse", "avse"], k=1))
['avse', 'mv_vse']
>>> library.close()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from polyview.app.explain.evidence import Explained, explain
from polyview.app.explain.lighting import light
from polyview.app.gallery.images import open_image
from polyview.app.gallery.indexing import Index, Progress
from polyview.app.gallery.scan import from_pack, open_images
from polyview.app.gallery.store import cache_folder
from polyview.app.search.answers import Question, answer
from polyview.app.search.hits import Hit, Unknown
from polyview.app.search.retriever import Retriever
from polyview.app.settings import Device, Settings, bundled_pack
from polyview.export.runtime import Runtime

Query = str | Path | Image.Image


class FileHit(Hit):
    """A hit with the path of its file on this machine."""

    path: Path


class Hits(list[FileHit]):
    """Found images, best first.

    Attributes:
        matches: whether anything in the gallery satisfies the query; None where the pack cannot
            tell.
        unknown: words of the query that the pack does not know, and what it reads them as.
    """

    matches: bool | None = None
    unknown: Sequence[Unknown] = ()


@dataclass(frozen=True)
class Why:
    """What a score is made of: base + cells.sum() = score.

    Attributes:
        score: of the image for the query.
        base: what no cell brings.
        words: M words as the method's encoder reads them; "" for what cannot be split over words,
            the last where there is any, and for an image that was asked with.
        cells: (rows, columns, M) what each cell of the image finds in each word.
    """

    score: float
    base: float
    words: tuple[str, ...]
    cells: np.ndarray
    _retriever: Retriever
    _seen: Explained
    _image_id: int

    def light(self, word: str | None = None) -> Image.Image:
        """The image, lit where the score comes from; in all words, or in one of them.

        Raises:
            ValueError: there is no such word.
        """
        return light(self._retriever, self._seen, self._image_id, word)


class Library:
    """Images that can be searched; everything is read when it is made.

    What was read once is kept on this machine, and only what is new is read again.

    Args:
        pack: a bundled name, a folder, a Hub id, or a preset ("tinyclip"), which is fetched once;
            None takes the bundled one that suits.
        gallery: a folder of images, or a ZIP archive of them; None takes the pack's own.
        method: that is asked where a call names none; None takes the one that measured best.
        device: "cpu", "cuda", or "auto".
        watch: is told how far the reading is.

    Attributes:
        methods: the pack's, by name.
        method: as given, or the best.
        refused: files that are left out, and why.

    Raises:
        FileNotFoundError: there is no such pack or gallery.
        ValueError: the pack, the method, the gallery or the device cannot be used.
    """

    def __init__(
        self,
        pack: str | Path | None = None,
        gallery: str | Path | None = None,
        *,
        method: str | None = None,
        device: Device = "auto",
        watch: Callable[[Progress], None] | None = None,
    ) -> None:
        images_folder = None if gallery is None else Path(gallery).expanduser()
        settings = Settings(None if pack is None else str(pack), images_folder, device)
        cache = cache_folder()
        folder = bundled_pack(settings.first_pack)
        if folder is None:
            from polyview.app.packs.presets import (
                pack_folder,  # most starts need none of its imports
            )

            folder = pack_folder(settings.first_pack, cache)
        runtime = Runtime.load(folder, device)
        if runtime.regions is None or images_folder is not None:
            runtime.require_images()
        images = from_pack(folder) if images_folder is None else open_images(images_folder, cache)
        self._retriever = Retriever(runtime, images, cache, first=method)
        self.methods = tuple(runtime.methods)
        self.method = method or self._retriever.methods.best
        index = self._retriever.index
        # also as the program ends: torch and onnxruntime abort it while a thread is within them
        self._end = weakref.finalize(self, _end, index)
        index.start(watch)
        index.first_done.wait()
        if index.progress.stage == "failed":
            raise ValueError(index.progress.detail)
        self.refused = tuple(index.refused)

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is still being read for other methods; what was read is kept."""
        self._end()

    def search(self, query: Query, k: int = 10, method: str | None = None) -> Hits:
        """The best images, best first.

        Args:
            query: words, or terms such as "2: dog + beach - people"; or an image, or its file.
            k: how many, 1 to 1,000.
            method: of the pack, or several joined by "+", whose scores are averaged.

        Raises:
            ValueError: the query, the method or k makes no sense.
        """
        method = method or self.method
        if method != self._retriever.index.first:
            self._retriever.index.images_done.wait()
        question = self._question(query)
        result = answer(self._retriever, question, method, k)
        hits = Hits()
        for hit in result.hits:
            path = self._retriever.image(hit.image_id).path
            hits.append(FileHit(**hit.model_dump(exclude_unset=True), path=path))
        hits.matches, hits.unknown = result.matches, result.unknown
        return hits

    def explain(self, query: Query, image: Hit | int, method: str | None = None) -> Why:
        """Splits the score of a found image over its cells and the words.

        Raises:
            ValueError: as `search`; there is no such image; or the method's score is no sum.
        """
        image_id = image.image_id if isinstance(image, Hit) else image
        terms = self._question(query).terms(self._retriever)
        seen = explain(self._retriever, terms, method or self.method, [image_id])
        words: list[str] = []
        cells = []
        for term in seen.terms:
            words += term.words or ("",) * term.cells.shape[-1]
            cells.append(term.cells[0])
            if np.any(term.whole_sentence):
                words.append("")
                cells.append(term.whole_sentence[0][..., None])
        base = sum(float(term.base[0]) for term in seen.terms)
        table = np.concatenate(cells, axis=-1)
        return Why(
            float(seen.scores[0]), base, tuple(words), table, self._retriever, seen, image_id
        )

    def compare(self, query: Query, methods: Sequence[str], k: int = 10) -> dict[str, Hits]:
        """What `search` finds by each of several methods."""
        return {method: self.search(query, k, method) for method in methods}

    def _question(self, query: Query) -> Question:
        if isinstance(query, str):
            return Question(query)
        return Question(image=open_image(query) if isinstance(query, Path) else query)


def _end(index: Index) -> None:
    index.stop()
    index.wait()
