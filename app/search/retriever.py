"""Searches and inspects one collection of images with one pack."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.gallery.images import sweep
from polyview.app.gallery.index import Gallery
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import Collection, CollectionImage
from polyview.app.search.hits import Answer, Caption, Hit, fingerprint
from polyview.app.search.ranking import (
    Query,
    Ranking,
    Scores,
    Term,
    best_of_files,
    combined,
    shared_processors,
    single,
    subsample,
)
from polyview.app.search.word_forms import read_word, reword
from polyview.export.pack.calibration import TENTH
from polyview.export.runtime import Runtime
from polyview.export.texts import Tokens
from polyview.models import Views
from polyview.models.evidence import Parts
from polyview.models.views import pad_sets

MAX_HITS = 1000
_DRAWING = 4  # thumbnails made in parallel for one answer
_AHEAD = 1000  # thumbnails made in advance
_NAMED = 5  # unknown words reported
_SETS_AT_ONCE = 16  # sets of frames whose parts are in memory at a time
_READINGS = 32  # results of long computations that are kept
_CANCELLED = "The terms cancel out, so the images are in the order of the gallery."
Subject = str | Sequence[int] | Image.Image  # a text, ids of images of the collection, any image
_turn = threading.Lock()  # held by the one long computation that runs
_log = logging.getLogger(__name__)


@dataclass
class Reading:
    """The state of a long computation: its result, progress or problem."""

    result: Any = None
    progress: str = "measuring"
    problem: str = ""


class Retriever:
    """Searches one collection with one pack; safe to use from several threads.

    A query is a sequence of terms. `spec` names a method of the pack, or several joined by "+",
    whose scores are averaged; `name` names one method. Every method raises ValueError for an
    unknown method or image, and for a text without a word.

    Args:
        runtime: the loaded pack.
        collection: the images and their captions, if any.
        cache: a folder for thumbnails and encoded views.
        ready: galleries by method that already contain the images; None to encode the images.
        first: the method whose gallery is filled first; None for the best.
    """

    def __init__(
        self,
        runtime: Runtime,
        collection: Collection,
        cache: Path,
        ready: Mapping[str, Gallery] | None = None,
        first: str | None = None,
    ) -> None:
        self.runtime, self.info, self.collection = runtime, runtime.info, collection
        # rows and columns of maps
        self.grid = runtime.grid if runtime.regions is None else runtime.regions.grid
        # whether the methods read the frames of clips as sets
        self.reads_sets = runtime.info.image_encoder.frames > 1
        self.methods = runtime.methods
        first = self.methods.names(first)[0] if first else self.methods.best
        # the searchable galleries; `index.start()` fills them
        self.index = Index(runtime, collection, cache, first, ready)
        self.readings: OrderedDict[Hashable, Reading] = OrderedDict()  # see `compute`
        self._ranking, self._lock = Ranking(self.index), threading.Lock()

    def search(
        self,
        terms: Sequence[Term],
        spec: str,
        k: int,
        only: AbstractSet[int] | None = None,
        captions: int = 0,
    ) -> Answer:
        """Finds the best images for a query, with ties in gallery order.

        Scores of terms are multiplied by their weights and added; methods of an ensemble are
        averaged. A hit has a winning view if there is one method and the same view scores best for
        every term. If the method is calibrated, the hits of a single sentence have probabilities.

        Args:
            terms: at least one; equal terms are combined.
            spec: a method, or several joined by "+".
            k: at least 1; at most 1,000 images are returned.
            only: ids of the files to rank; None ranks all.
            captions: number of captions to find as well; 0 for none.

        Raises:
            ValueError: a term, a method or k is not valid.
            Refusal: nothing is searchable yet.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        with shared_processors(len(self.collection.images)):
            query, k = self._encoded(terms, spec), min(k, MAX_HITS)
            matches, scores = self._ranking.best(query, max(k, TENTH), only)
            image_count, searched, caveat = self._ranking.extent(query, only)
            judgement, pair = None, single(query)
            calibration = pair and self.info.methods[pair[0]].calibration
            sentence = pair and combined(terms)[0].words
            if pair and calibration and sentence:
                best, tokens = np.array([match.score for match in matches]), self.read(sentence)
                sample = self._ranking.sample(*pair, only) if scores is None else subsample(scores)
                judgement = calibration.judge_answer(
                    best, sample, image_count, tokens.words, tokens.unknown
                )
            image_ids = self.moments([match.id for match in matches[:k]], terms, spec)
            hits = []
            for index, image_id in enumerate(image_ids):
                hit = self.hit(image_id, matches[index].score, matches[index].view, index + 1)
                hit.probability = judgement and judgement.hits[index]
                hits.append(hit)
            return Answer(
                method=spec,
                k=k,
                searched=searched,
                exact=not caveat,
                matches=judgement and judgement.matches,
                remark=caveat if any(query.values()) else _CANCELLED,
                hits=hits,
                captions=self._captions(query, captions) if captions else [],
            )

    def scores(self, terms: Sequence[Term], spec: str) -> Scores:
        """Scores of all searchable files for a query, in gallery order; 0 if all terms cancel."""
        scores = self._ranking.scores(self._encoded(terms, spec))
        return best_of_files(scores, self.index.files) if self.index.clips else scores

    def timeline(self, image_id: int, terms: Sequence[Term], spec: str) -> list[Hit]:
        """The indexed frames of a clip with their scores, in time order; empty for a still image.

        `image_id` is the id of any of these frames. If the methods read frames as sets, only the
        first frame of each window is returned, with the score of the window.
        """
        file_id = self.collection.file_id(self.image(image_id).image_id)
        ids, values, _ = self._ranking.scores(self._encoded(terms, spec))
        frames = np.flatnonzero(ids % self.index.files == file_id).tolist()
        clip = file_id in self.index.clips
        return [self.hit(int(ids[i]), float(values[i])) for i in frames if clip]

    def views(self, subject: Subject, name: str, attention: bool = False) -> Views:
        """The views (n, V, D) of a text or of images; with `attention` also their maps."""
        if isinstance(subject, str):
            return self.runtime.text_views([self.reworded(subject)], name, attention)
        features, mask = self._features(subject, name)
        return self.runtime.image_views(features, name, attention, mask)

    def parts(self, subject: Subject, name: str) -> Parts:
        """The contributions of words, or of images' features, to views; see `Parts`.

        Raises ValueError if the method's score cannot be split.
        """
        if isinstance(subject, str):
            return self.runtime.text_parts([self.reworded(subject)], name)
        features, mask = self._features(subject, name)
        return self.runtime.image_parts(features, name, mask)

    def subject(self, term: Term) -> Subject:
        """Converts a term to the subject that `views` and `parts` take."""
        if not isinstance(term.image, CollectionImage):
            return term.words if term.image is None else term.image
        local_image = self.collection.images[self.collection.file_id(term.image.image_id)]
        if local_image.path != term.image.path:  # an image of another collection
            return term.image.decode()
        return [self.local_image_id(term.image)]  # packs may choose other frames of a clip

    @torch.inference_mode()
    def moments(self, image_ids: Sequence[int], terms: Sequence[Term], spec: str) -> list[int]:
        """Replaces each window of a clip by the frame that contributes most to its score.

        If the methods read frames as sets, a score belongs to a window. The frame with the most
        evidence (`models/evidence.py`), summed over words, represents the window; the first frame
        if the score cannot be split, or if features of the window would have to be computed.
        """
        if not (self.reads_sets and self.index.clips):
            return list(image_ids)
        frame_ids, names, distinct = list(image_ids), self.methods.names(spec), combined(terms)
        with suppress(ValueError):  # the score cannot be split
            query = {
                name: [(term.weight, self.parts(self.subject(term), name)) for term in distinct]
                for name in names
            }
            for start in range(0, len(frame_ids), _SETS_AT_ONCE):
                part = slice(start, start + _SETS_AT_ONCE)
                frame_ids[part] = self._moments(frame_ids[part], query)
        return frame_ids

    def _moments(
        self, windows: Sequence[int], query: Mapping[str, Sequence[tuple[float, Parts]]]
    ) -> list[int]:
        """For each window, the frame that contributes most, or the window's id; see `moments`."""
        sets = {window: self.index.clips.read_with(window) for window in windows}
        rows = {name: self._frames(sets.values(), name, at_hand=True) for name in query}
        sets = {w: s for w, s in sets.items() if all(f.keys() >= {*s} for f in rows.values())}
        if not sets:
            return list(windows)
        curves = torch.zeros(len(sets), max(map(len, sets.values())))  # (B, T)
        for name, terms in query.items():
            padded = pad_sets([torch.cat([rows[name][i] for i in s]) for s in sets.values()])
            images = self.runtime.image_parts(padded[0], name, padded[1])
            for weight, term in terms:
                part = self.methods[name].evidence(images, term).scaled(weight)
                cells = part.cells.sum(dim=2) + part.whole_sentence  # (B, N)
                curves += cells.unflatten(1, (curves.shape[1], -1)).sum(dim=2).float().cpu()
        for curve, (window, frames) in zip(curves, list(sets.items()), strict=True):
            sets[window] = [frames[int(curve[: len(frames)].argmax())]]
        return [sets.get(window, [window])[0] for window in windows]

    def gallery(self, name: str) -> Gallery:
        """The gallery of the images that are searchable so far."""
        return self.index.images[name]

    def read(self, text: str) -> Tokens:
        """Splits text into tokens as the encoders read it, with unknown words replaced."""
        return self.runtime.tokenize(self.reworded(text))

    def reworded(self, text: str) -> str:
        """Replaces unknown words of a text by known ones; applied to every question."""
        tokens, text = self.runtime.tokenize(text), text.strip()
        return reword(tokens, text, self.runtime.reader.known) if tokens.unknown else text

    def unknown(self, *texts: str) -> dict[str, str | None]:
        """The first few unknown words of texts, as typed, and their replacements."""
        typed = [word for text in texts for word in self.runtime.tokenize(text).unknown.values()]
        words = [word for word in dict.fromkeys(typed) if any(map(str.isalnum, word))]
        return {word: read_word(word, self.runtime.reader.known) for word in words[:_NAMED]}

    def shown_images(self) -> Sequence[CollectionImage]:
        """The images without duplicates and unreadable files."""
        left_out = {refusal.file for refusal in self.index.refused}
        left_out |= {copy.file for copy in self.index.copies}
        return [image for image in self.collection.images if image.file not in left_out]

    def image(self, image_id: int) -> CollectionImage:
        """An image of the collection: a file or a frame of a clip."""
        return self.index.clips.image(image_id)

    def hit(self, image_id: int, score: float = 0.0, view: int | None = 0, rank: int = 0) -> Hit:
        """An image of the collection as a hit, with its metadata."""
        image = self.image(image_id)
        hit = Hit(image_id=image_id, file=image.file, score=score, view=view, rank=rank)
        hit.seconds = image.moment and image.moment.seconds
        hit.frame = image.moment and image.moment.frame
        if image.captions:
            hit.captions = list(image.captions)
        if image.objects:
            hit.objects = list(image.objects)
        return hit

    def local_image_id(self, image: CollectionImage) -> int:
        """Maps an image of the same collection to its id in this index.

        Packs may choose different frames of a clip: a frame is mapped to the nearest in time.
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
        """The path of an image's thumbnail, which is written if it does not exist."""
        return self.image(image_id).thumbnail(self.index.encoder.thumbnails)

    def thumbnails(self, image_ids: Sequence[int]) -> dict[int, Path]:
        """The paths of thumbnails by image id, without images that cannot be opened."""
        paths: dict[int, Path] = {}

        def make(image_id: int) -> None:
            with suppress(ValueError, OSError):
                paths[image_id] = self.thumbnail(image_id)

        with ThreadPoolExecutor(_DRAWING, "thumbnail") as pool:
            pool.map(make, image_ids)
        return paths

    def make_thumbnails(self) -> None:
        """Makes thumbnails and fingerprints of the first images after everything is read."""
        self.index.captions_done.wait()
        for image in self.shown_images()[:_AHEAD]:
            with suppress(ValueError, OSError):  # answers work without it
                fingerprint(self.thumbnail(image.image_id))
        sweep(self.index.encoder.thumbnails)

    def compute(self, key: Hashable, function: Callable[[Reading], Any], failure: str) -> Reading:
        """Starts a long computation in a thread, once for each key, and returns its state.

        Args:
            key: identifies the result.
            function: returns the result, and may set the `progress` of the reading.
            failure: the beginning of the error message.
        """
        progress = self.index.progress
        if not progress.finished:
            return Reading(progress=f"waits for the gallery ({progress})")

        def run(reading: Reading) -> None:
            try:
                with _turn:
                    reading.result = function(reading)
            except Exception as error:  # the page shows the sentence
                _log.exception(failure)
                reading.problem = f"{failure}: {error}"

        with self._lock:
            if key not in self.readings:
                reading = self.keep(key, Reading())
                threading.Thread(target=run, args=(reading,), daemon=True).start()
            return self.readings[key]

    def keep(self, key: Hashable, reading: Reading) -> Reading:
        """Adds a reading to `readings`, and removes the oldest finished ones if there are many."""
        self.readings[key] = reading
        finished = [k for k, r in self.readings.items() if r.problem or r.result is not None]
        for oldest in finished[: max(0, len(self.readings) - _READINGS)]:
            del self.readings[oldest]
        return reading

    def _encoded(self, terms: Sequence[Term], spec: str) -> Query:
        """Encodes a query with each method of an ensemble."""
        distinct = [(term.weight, self.subject(term)) for term in combined(terms)]
        features: dict[tuple[int, str | None], Tensor] = {}  # of images outside the collection

        def views(place: int, name: str) -> Views:
            subject = distinct[place][1]
            if not isinstance(subject, Image.Image):
                return self.views(subject, name)
            key = place, self.runtime.image_encoder_of(name)
            if key not in features:
                features[key] = self.runtime.image_features([subject], name)
            return self.runtime.image_views(features[key], name)

        return {
            name: [(weight, views(place, name)) for place, (weight, _) in enumerate(distinct)]
            for name in self.methods.names(spec)
        }

    def _features(
        self, subject: Sequence[int] | Image.Image, name: str
    ) -> tuple[Tensor, Tensor | None]:
        """The features (n, N, d) of images for a method, and the mask (n, N) if sizes differ."""
        if isinstance(subject, Image.Image):
            return self.runtime.image_features([subject], name), None
        sets = [self.index.clips.read_with(image_id) for image_id in subject]
        features = self._frames(sets, name)
        return pad_sets([torch.cat([features[i] for i in frames]) for frames in sets])

    def _frames(
        self, sets: Iterable[Sequence[int]], name: str, *, at_hand: bool = False
    ) -> dict[int, Tensor]:
        """Features (n, d) of all frames in sets, by id; with `at_hand`, only stored features."""
        images = [self.image(image_id).reached() for image_id in dict.fromkeys(chain(*sets))]
        return self.index.features(images, name, at_hand=at_hand)

    def _captions(self, query: Query, k: int) -> list[Caption]:
        """The k best captions; empty if the collection has none."""
        captions = self.collection.captions
        matches = self._ranking.best(query, k, texts=True)[0] if captions else []
        return [
            Caption(text=text, image_id=image_id, score=match.score, view=match.view, rank=rank)
            for rank, match in enumerate(matches, start=1)
            for text, image_id in [captions[match.id]]
        ]
