"""Searches and inspects one collection of images with one pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from polyview.app.gallery.images import sweep
from polyview.app.gallery.index import Gallery, Match
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import Collection, CollectionImage
from polyview.app.search.duplicates import fingerprint
from polyview.app.search.hits import Answer, Caption, Hit
from polyview.app.search.query import Term, checked, checked_k, combined
from polyview.app.search.ranking import (
    SAMPLED,
    Query,
    Ranking,
    Scores,
    best_of_files,
    shared_processors,
    single,
    subsample,
)
from polyview.app.search.sets import Sets
from polyview.app.search.word_forms import Reworded, reword
from polyview.export.pack.calibration import TENTH, Judgement
from polyview.export.runtime import Runtime
from polyview.export.texts import Tokens
from polyview.models import Views
from polyview.models.evidence import Parts

MAX_HITS = 1000
_DRAWING = 4  # thumbnails made in parallel for one answer
_AHEAD = 1000  # thumbnails made in advance
_NAMED = 5  # unknown words reported
_CANCELLED = "The terms cancel out, so the images are in the order of the gallery."


class Retriever:
    """Searches one collection with one pack; safe to use from several threads.

    Args:
        runtime: the loaded pack.
        collection: the images and their captions, if any.
        cache: the user's cache folder.
        ready: ready-made galleries of the images by method, if there are any.
        encoded: folder for encoded views; None for the cache folder.
        first: the method whose gallery is filled first; None for the best.

    Attributes:
        runtime: the loaded pack; use the methods below rather than the runtime.
        info: the content of pack.json.
        methods: the methods of the pack, by name.
        device: the device of the methods.
        providers: the providers of its ONNX sessions, see `Runtime`.
        grid: rows and columns of maps.
        reads_sets: whether the methods read the frames of clips as sets.
        collection: the images.
        index: the searchable galleries; `index.start()` fills them.
    """

    def __init__(
        self,
        runtime: Runtime,
        collection: Collection,
        cache: Path,
        ready: Mapping[str, Gallery] | None = None,
        encoded: Path | None = None,
        first: str | None = None,
    ) -> None:
        self.runtime = runtime
        self.info, self.device, self.providers = runtime.info, runtime.device, runtime.providers
        self.grid = runtime.grid if runtime.regions is None else runtime.regions.grid
        self.reads_sets = runtime.info.image_encoder.frames > 1
        self.methods = runtime.methods
        self.collection = collection
        first = self.methods.names(first)[0] if first else self.methods.best
        self.index = Index(runtime, collection, encoded or cache, first, ready)
        self._ranking = Ranking(self.index)
        self._sets = Sets(runtime, self.index, self.image)

    def search(
        self,
        terms: Sequence[Term],
        spec: str,
        k: int,
        only: AbstractSet[int] | None = None,
        captions: int = 0,
    ) -> Answer:
        """Finds the best images for a query of several terms; ties in gallery order.

        Scores of terms are multiplied by their weights and added; methods of an ensemble are
        averaged. A hit has a winning view if there is one method and the same view scores best for
        every term.

        Args:
            terms: at least one; equal terms are combined.
            spec: a method of the pack, or several joined by "+", whose scores are averaged.
            k: at least 1; at most 1,000 images are returned.
            only: ids of the images to rank; None ranks all.
            captions: number of captions to find as well; 0 for none.

        Raises:
            ValueError: a term, a method or k is not valid, or nothing is searchable yet.
        """
        with shared_processors(len(self.collection.images)):
            query, k = self._encoded(terms, spec), min(checked_k(k), MAX_HITS)
            matches, scores = self._ranking.best(query, max(k, TENTH), only)
            counted, searched, caveat = self._ranking.extent(query, only)
            judgement = self._judgement(query, terms, matches, scores, only, counted)
            image_ids = self.moments([match.id for match in matches[:k]], terms, spec)
            hits = []
            for place, image_id in enumerate(image_ids):
                hit = self.hit(image_id, matches[place].score, matches[place].view, place + 1)
                hit.probability = judgement and judgement.hits[place]
                hits.append(hit)
            return Answer(
                method=spec,
                k=k,
                searched=searched,
                exact=not caveat,
                matches=judgement and judgement.matches,
                remark=caveat if any(query.values()) else _CANCELLED,
                hits=hits,
                captions=self._captions(query, captions),
            )

    def scores(self, terms: Sequence[Term], spec: str) -> Scores:
        """Scores of all searchable images for a query of several terms; see `search`.

        Returns:
            Ids and scores (N,) in gallery order; all 0 if the terms cancel out.

        Raises:
            ValueError: there is no term, the method is unknown, or nothing is searchable yet.
        """
        scores = self._ranking.scores(self._encoded(terms, spec))
        return best_of_files(scores, self.index.files) if self.index.clips else scores

    def timeline(self, image_id: int, terms: Sequence[Term], spec: str) -> list[Hit]:
        """The chosen frames of a clip with their scores, in time order.

        Frames of a set have no scores of their own: only the first of each window is returned.

        Args:
            image_id: the id of any of its frames; the result is empty for a still image.
            terms: see `search`.
            spec: a method of the pack, or several joined by "+".

        Raises:
            ValueError: as in `search`, or the image is unknown.
        """
        file_id = self.collection.file_id(self.image(image_id).image_id)
        scores = self._ranking.scores(self._encoded(terms, spec))
        known = dict(zip(scores.ids.tolist(), scores.values.tolist(), strict=True))
        count, files = len(self.index.clips.get(file_id, ())), self.index.files
        ids = range(file_id, file_id + count * files, files)
        return [self.hit(frame_id, known[frame_id]) for frame_id in ids if frame_id in known]

    def views(self, subject: str | int | Image.Image, name: str, attention: bool = False) -> Views:
        """The views (1, V, D) of one text or image.

        Args:
            subject: a sentence, the id of an image of the collection, or any image.
            name: a method of the pack.
            attention: also compute maps over words, or over the image's features.

        Raises:
            ValueError: the method or image is unknown, or the subject cannot be read.
        """
        self.methods.one(name)
        if isinstance(subject, str):
            return self.runtime.text_views([self.reworded(subject).text], name, attention)
        features, _ = self._features([subject] if isinstance(subject, int) else subject, name)
        return self.runtime.image_views(features, name, attention)

    def parts(self, subject: str | Sequence[int] | Image.Image, name: str) -> Parts:
        """The contributions of words, or of images' features, to views: see `Parts`.

        Args:
            subject: a sentence, ids of images of the collection, or any image.
            name: a method of the pack.

        Raises:
            ValueError: as in `views`, or the method's score cannot be split.
        """
        self.methods.one(name)
        if isinstance(subject, str):
            return self.runtime.text_parts([self.reworded(subject).text], name)
        features, mask = self._features(subject, name)
        return self.runtime.image_parts(features, name, mask)

    def subject(self, term: Term) -> str | list[int] | Image.Image:
        """The argument of `parts` for a term: its words or its image.

        If features are ready-made or read as sets, an image of the collection is given by its id.

        Raises:
            ValueError: the term has no words.
        """
        if term.image is None:
            return checked(term.words)
        if term.source is None or (self.runtime.regions is None and not self.reads_sets):
            return term.image
        own, source = self.local_image_id(term.source), term.source  # maybe from another pack
        image = self.image(own)
        return [own] if (image.path, image.file) == (source.path, source.file) else term.image

    def moments(self, image_ids: Sequence[int], terms: Sequence[Term], spec: str) -> list[int]:
        """The images that represent results; for a set, the frame that contributes most."""
        if self.reads_sets and self.index.clips:
            names, distinct = self.methods.names(spec), combined(terms)
            with suppress(ValueError):  # the score cannot be split: keep the first frames
                parts = {
                    n: [(t.weight / len(names), self.parts(self.subject(t), n)) for t in distinct]
                    for n in names
                }
                return self._sets.moments(image_ids, parts)
        return list(image_ids)

    def gallery(self, name: str) -> Gallery:
        """The gallery of the images that are searchable so far."""
        return self.index.images[name]

    def read(self, text: str) -> Tokens:
        """Splits text into tokens as the encoders read it."""
        return self.runtime.tokenize(self.reworded(text).text)

    def reworded(self, text: str) -> Reworded:
        """Replaces words that the pack does not know; applied to every question.

        Raises:
            ValueError: it is not a text, or has no word.
        """
        tokens = self.runtime.tokenize(checked(text))
        if not tokens.unknown:
            return Reworded(text.strip(), {})
        return reword(tokens, text.strip(), self.runtime.reader.known)

    def unknown(self, *texts: str) -> dict[str, str | None]:
        """The first few unknown words of texts, and their replacements."""
        corrections: dict[str, str | None] = {}
        for text in texts:
            corrections.update(dict.fromkeys(self.read(text).unknown.values()))
            corrections.update(self.reworded(text).corrections)
        named = [word for word in corrections if any(map(str.isalnum, word))]
        return {word: corrections[word] for word in named[:_NAMED]}

    def shown_images(self) -> Sequence[CollectionImage]:
        """The images without duplicates and unreadable files."""
        index = self.index
        out = {refusal.file for refusal in index.refused} | {copy.file for copy in index.copies}
        images = self.collection.images
        return [image for image in images if image.file not in out] if out else images

    def image(self, image_id: int) -> CollectionImage:
        """An image of the collection: a file or a frame of a clip.

        Raises:
            ValueError: no image has this id.
        """
        return self.index.clips.image(image_id)

    def hit(self, image_id: int, score: float = 0.0, view: int | None = 0, rank: int = 0) -> Hit:
        """An image of the collection as a hit, with its metadata."""
        image = self.image(image_id)
        seconds, frame = (getattr(image.moment, name, None) for name in ("seconds", "frame"))
        hit = Hit(
            image_id=image_id, file=image.file, score=score, view=view, rank=rank,
            seconds=seconds, frame=frame,
        )  # fmt: skip
        if image.captions:
            hit.captions = list(image.captions)
        if image.objects:
            hit.objects = list(image.objects)
        return hit

    def local_image_id(self, image: CollectionImage) -> int:
        """Maps an image of the same collection to its id in this index.

        Packs may choose different frames of a clip; the nearest in time is taken.
        """
        file_id = self.collection.file_id(image.image_id)
        moment, moments = image.moment, self.index.clips.get(file_id)
        if moment is None or not moments:
            return file_id
        distances = [abs(other.seconds - moment.seconds) for other in moments]
        return file_id + distances.index(min(distances)) * self.index.files

    def open(self, image_id: int) -> Image.Image:
        """Decodes an image of the collection."""
        return self.image(image_id).decode()

    def thumbnail(self, image_id: int) -> Path:
        """The thumbnail of an image, in the folder of thumbnails."""
        return self.image(image_id).thumbnail(self.index.encoder.thumbnails)

    def thumbnails(self, image_ids: Sequence[int]) -> dict[int, Path]:
        """Thumbnails of images by id, without those that cannot be opened."""

        def make(image_id: int) -> Path | None:
            with suppress(ValueError, OSError):
                return self.thumbnail(image_id)
            return None

        with ThreadPoolExecutor(_DRAWING, "thumbnail") as pool:
            made = zip(image_ids, pool.map(make, image_ids), strict=True)
            return {image_id: file for image_id, file in made if file is not None}

    def make_thumbnails(self) -> None:
        """Makes thumbnails and fingerprints of the first images after everything is read."""
        self.index.captions_done.wait()
        for image in self.shown_images()[:_AHEAD]:
            with suppress(ValueError, OSError):  # answers do without it
                fingerprint(self.thumbnail(image.image_id))
        sweep(self.index.encoder.thumbnails)

    def _encoded(self, terms: Sequence[Term], spec: str) -> Query:
        """Encodes a query with each method of an ensemble."""
        names = self.methods.names(spec)
        if not terms:
            raise ValueError("the query is empty; type what the image should show")
        query: dict[str, list[tuple[float, Views]]] = {name: [] for name in names}
        for term in combined(terms):
            subject = self.subject(term)
            if isinstance(subject, Image.Image):
                features = self.runtime.features_by_method([subject], names)
                views = {name: self.runtime.image_views(features[name], name) for name in names}
            elif isinstance(subject, str):
                read = [self.reworded(subject).text]
                views = {name: self.runtime.text_views(read, name) for name in names}
            else:
                views = {name: self.views(subject[0], name) for name in names}
            for name in names:
                query[name].append((term.weight, views[name]))
        return query

    def _features(
        self, subject: Sequence[int] | Image.Image, name: str
    ) -> tuple[Tensor, Tensor | None]:
        """The features (n, N, d) of images for a method, and the mask (n, N) if sizes differ."""
        if isinstance(subject, Image.Image):
            return self.runtime.image_features([subject], name), None
        return self._sets.features(subject, name)

    def _captions(self, query: Query, k: int) -> list[Caption]:
        """The k best captions; empty if the collection has none."""
        captions = self.collection.captions
        if not k or not captions:
            return []
        matches, _ = self._ranking.best(query, k, texts=True)
        return [
            Caption(
                text=captions[match.id][0],
                image_id=captions[match.id][1],
                score=match.score,
                view=match.view,
                rank=rank,
            )
            for rank, match in enumerate(matches, start=1)
        ]

    def _judgement(
        self,
        query: Query,
        terms: Sequence[Term],
        matches: Sequence[Match],
        scores: Scores | None,
        only: AbstractSet[int] | None,
        count: int,
    ) -> Judgement | None:
        """The calibrated judgement of the hits of a single sentence; None for other queries."""
        plain, words = single(query), next((term.words for term in combined(terms)), "")
        calibration = plain and self.info.methods[plain[0]].calibration
        if plain is None or calibration is None or not words:
            return None
        if scores is None:
            sample = self._ranking.sample(*plain, only)
        else:
            sample = subsample(scores.values, SAMPLED)
        best, read = np.array([match.score for match in matches]), self.read(words)
        return calibration.judge_answer(best, sample, count, read.words, read.unknown)
