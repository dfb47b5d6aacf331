"""Searches a gallery with a pack from Python programs and notebooks.

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
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from polyview.app.api.search import Question, answer
from polyview.app.explain.evidence import draw, explain
from polyview.app.gallery.images import open_image
from polyview.app.gallery.indexing import Progress
from polyview.app.gallery.scan import from_pack, open_images
from polyview.app.gallery.store import cache_folder
from polyview.app.packs.downloads import pack_folder
from polyview.app.search.hits import Hit, Unknown
from polyview.app.search.retriever import Retriever
from polyview.app.settings import Device, Settings
from polyview.export.runtime import Runtime

Query = str | Path | Image.Image


class FileHit(Hit):
    """A hit with the path of its file on this machine."""

    path: Path


class Hits(list[FileHit]):
    """The hits of a search, best first."""

    matches: bool | None = None  # whether any image satisfies the query; None if not known
    unknown: Sequence[Unknown] = ()  # unknown words, with their replacements


@dataclass(frozen=True)
class Why:
    """A score, split over cells of the image and words of the query.

    `score` equals `base + cells.sum()`. `words` are M words as the encoder reads them. "" stands
    for a query image or one of its cells. A last "" stands for the sentence as a whole.
    """

    score: float  # the score of the image for the query
    base: float  # the contribution that has no location in the image
    words: tuple[str, ...]
    cells: np.ndarray  # (rows, columns, M), the contribution of each pair of a cell and a word
    _draw: Callable[[str | None], Image.Image]

    def light(self, word: str | None = None) -> Image.Image:
        """Draws the evidence of all words, or of one word, over the image.

        Raises ValueError if the query lacks the word, if the image is a clip that is read as a set,
        or if no contribution to the score has a location in the image.
        """
        return self._draw(word)


class Library:
    """A searchable gallery. The constructor waits until all images are read.

    Features are cached on this machine, so that only new images are read the next time.

    Args:
        pack: a bundled name, a folder, a Hub id, or a preset ("tinyclip"). Packs from the Hub are
            downloaded once. None for the bundled pack that suits the gallery.
        gallery: a folder of images, or a ZIP archive of them; None for the pack's own images.
        method: the default method of all calls; None for the method with the best metrics.
        device: "cpu", "cuda", or "auto".
        watch: a function that is called with the progress while images are read.

    Attributes:
        methods: the methods of the pack, by name.
        method: the default method.
        retriever: the pack and the gallery, with its index.
        refused: the files that are left out, with the reasons.

    Raises:
        FileNotFoundError: the pack does not exist.
        ValueError: the gallery or method does not exist; the pack or device cannot be used.
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
        folder = pack_folder(settings.first_pack, cache)
        runtime = Runtime.load(folder, device)
        if runtime.regions is None or images_folder is not None:
            runtime.require_images()
        images = from_pack(folder) if images_folder is None else open_images(images_folder, cache)
        self.retriever = Retriever(runtime, images, cache)
        self.methods = tuple(runtime.methods)
        self.method = method or self.retriever.methods.best
        self.retriever.methods.names(self.method)  # raises ValueError for an unknown method
        index = self.retriever.index

        def stop() -> None:
            index.stop()
            index.wait()

        # finalize also runs at exit, when torch and onnxruntime abort if a thread still uses them
        self._stop = weakref.finalize(self, stop)
        index.start(watch)
        index.images_done.wait()
        if index.progress.stage == "failed":
            raise ValueError(index.progress.detail)
        self.refused = tuple(index.refused)

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops encoding captions in the background; encoded captions stay in the cache."""
        self._stop()

    def search(self, query: Query, k: int = 10, method: str | None = None) -> Hits:
        """Finds the images that match a query best.

        `query` is a sentence, a sum of terms such as "2: dog + beach - people", a decoded image, or
        the path of an image file. `k` is the number of images, 1 to 1,000. `method` is a method, or
        several joined by "+", whose scores are averaged. Raises ValueError for invalid arguments.
        """
        method = method or self.method
        result = answer(self.retriever, self._question(query), method, k)
        paths = [self.retriever.image(hit.image_id).path for hit in result.hits]
        pairs = zip(result.hits, paths, strict=True)
        hits = Hits(FileHit(**hit.model_dump(exclude_unset=True), path=path) for hit, path in pairs)
        hits.matches, hits.unknown = result.matches, result.unknown
        return hits

    def explain(self, query: Query, image: Hit | int, method: str | None = None) -> Why:
        """Splits the score of an image over its cells and the words of the query.

        `image` is a hit or the id of an image. Raises ValueError for invalid arguments, and if the
        method's score cannot be split.
        """
        image_id = image.image_id if isinstance(image, Hit) else image
        terms = self._question(query).terms(self.retriever)
        evidence = explain(self.retriever, terms, method or self.method, [image_id])
        words, cells = evidence.words, evidence.cells[0]
        if evidence.whole_sentence.any():
            words = (*words, "")
            cells = np.concatenate([cells, evidence.whole_sentence[0][..., None]], axis=-1)
        draw_word = partial(draw, self.retriever, evidence, image_id)
        return Why(float(evidence.scores[0]), float(evidence.base[0]), words, cells, draw_word)

    def compare(self, query: Query, methods: Sequence[str], k: int = 10) -> dict[str, Hits]:
        """Runs `search` with each method; returns the hits by method."""
        return {method: self.search(query, k, method) for method in methods}

    def _question(self, query: Query) -> Question:
        """Converts a query to a question; opens the image if the query is a path."""
        if isinstance(query, str):
            return Question(query)
        return Question(image=open_image(query) if isinstance(query, Path) else query)
