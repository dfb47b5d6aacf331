"""Searches and inspects one collection of images with one pack.

The scores of terms and methods are combined, not their embeddings, because methods score views by
different rules. For an image x, score(x) = sum over terms of weight * score(x, term).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.gallery.index import MAX_SAMPLE, Gallery, Match, shared_processors, subsample
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import Collection, CollectionImage, delete_old_thumbnails
from polyview.app.refusal import Refusal
from polyview.app.search.clips import Scores, best_frames, best_of_files, nearest_frame
from polyview.app.search.computations import Computations
from polyview.app.search.hits import Answer, Caption, Hit, fingerprint
from polyview.app.search.word_forms import find_replacement, reword
from polyview.export.pack.calibration import REFERENCE_RANK
from polyview.export.runtime import Runtime
from polyview.export.texts import Tokens
from polyview.models import Views
from polyview.models.evidence import Parts
from polyview.models.views import pad_sets

MAX_HITS = 1000
_WAIT_SECONDS = 20.0  # time that a query waits for the first images, or for all captions
_SHORT_WAIT_SECONDS = 2.0  # time that a query waits for the remaining images
_MAX_PREPARED = 1000  # thumbnails that are made before they are requested
_THUMBNAIL_THREADS = 4
_MAX_UNKNOWN = 5  # unknown words that an answer lists
_CANCELLED = "The terms cancel out, so the images are in the order of the gallery."
Images = Sequence[int] | Image.Image  # ids of images of the collection, or a decoded image
Subject = str | Images  # a text or images
# an encoded query: method -> the nonzero weight and the views (1, W, D) of each distinct term
Query = Mapping[str, Sequence[tuple[float, Views]]]


@dataclass(frozen=True)
class Term:
    """A term of a query: words or an image."""

    words: str = ""  # a sentence; empty for an image
    image: CollectionImage | Image.Image | None = None  # None for words
    weight: float = 1.0  # factor of the term's scores; negative to subtract them
    name: str = "image"  # display name of the image


def combine_terms(terms: Sequence[Term]) -> list[Term]:
    """Adds up the weights of equal terms, and drops terms with a total weight of 0.

    >>> dog, cat = Term("dog"), Term("cat")
    >>> [(t.weight, t.words) for t in combine_terms([dog, cat, dog, Term("cat", weight=-1.0)])]
    [(2.0, 'dog')]
    """
    sums: dict[tuple[str, int], Term] = {}
    for term in terms:
        words, image = " ".join(term.words.split()), term.image
        key = words, image.image_id if isinstance(image, CollectionImage) else id(image)
        weight = term.weight + (sums[key].weight if key in sums else 0.0)
        sums[key] = replace(sums.get(key, term), weight=weight)
    return [term for term in sums.values() if abs(term.weight) > 1e-9]  # 0 up to rounding


def single_term(query: Query) -> tuple[str, Views] | None:
    """Returns the method and views of a query with one method and one term of weight 1, or None."""
    (name, terms), *others = query.items()
    return (name, terms[0][1]) if not others and [weight for weight, _ in terms] == [1] else None


class Retriever:
    """Searches one collection with one pack; safe to use from several threads.

    A query is a sequence of terms. `spec` names a method of the pack, or several joined by "+",
    whose scores are averaged; `name` names a single method. An unknown method or image, and a text
    without a word, raise ValueError.

    `cache` is the folder of thumbnails and encoded views. `galleries` maps each method to a gallery
    that contains the images; if None, `index` encodes the images.
    """

    def __init__(
        self,
        runtime: Runtime,
        collection: Collection,
        cache: Path,
        galleries: Mapping[str, Gallery] | None = None,
    ) -> None:
        self.runtime, self.info, self.collection = runtime, runtime.info, collection
        # (rows, columns) of maps
        self.grid = runtime.grid if runtime.regions is None else runtime.regions.grid
        self.reads_sets = runtime.info.image_encoder.frames > 1  # reads frames of clips as sets
        self.methods = runtime.methods
        self.index = Index(runtime, collection, cache, galleries)  # `index.start()` fills it
        self.computations = Computations(self.index)

    def search(
        self,
        terms: Sequence[Term],
        spec: str,
        k: int,
        file_ids: AbstractSet[int] | None = None,
        caption_count: int = 0,
    ) -> Answer:
        """Finds the k best images for a query of at least one term; ties are in gallery order.

        Equal terms are combined. The weighted scores of terms are added. The scores of methods are
        averaged. A hit has a winning view if there is one method and the same view scores best for
        every term. If the method is calibrated, the hits of a single sentence have probabilities.

        k is limited to `MAX_HITS`. `file_ids` are the files to rank; None ranks all files.
        `caption_count` is the number of captions to return. Raises ValueError if a term, a method
        or k is not valid, `Refusal` if nothing is searchable yet.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        with shared_processors(len(self.collection.images)):
            query, k = self._encode_terms(terms, spec), min(k, MAX_HITS)
            matches, scores = self._find_best(query, max(k, REFERENCE_RANK), file_ids)
            gallery = min((self.index.images[name] for name in query), key=len)
            ids = gallery.ids()
            ids = ids[self._select(ids, file_ids)]
            pair, judgement = single_term(query), None
            caveat = gallery.caveat(file_ids) if pair else ""
            calibration = pair and self.info.methods[pair[0]].calibration
            if pair and calibration and (sentence := combine_terms(terms)[0].words):
                if scores is None:
                    scores = gallery.sample_scores(pair[1], None if file_ids is None else ids)
                tokens, best_scores = self.tokenize(sentence), [match.score for match in matches]
                judgement = calibration.judge_answer(
                    np.array(best_scores), subsample(scores), len(ids), tokens.words, tokens.unknown
                )
            image_ids = self.find_best_frames([match.id for match in matches[:k]], terms, spec)
            hits = []
            for i, image_id in enumerate(image_ids):
                hit = self.hit(image_id, matches[i].score, matches[i].view, i + 1)
                hit.probability = judgement and judgement.hits[i]
                hits.append(hit)
            texts, best_texts = self.collection.captions, list[Match]()
            if caption_count and texts:
                best_texts, _ = self._find_best(query, caption_count, None, search_captions=True)
            return Answer(
                method=spec,
                k=k,
                searched=int((ids < self.index.file_count).sum()),  # a clip counts once
                exact=not caveat,
                matches=judgement and judgement.matches,
                remark=caveat if any(query.values()) else _CANCELLED,
                hits=hits,
                captions=[
                    Caption(text=texts[i][0], image_id=texts[i][1], score=score, view=view, rank=n)
                    for n, (i, score, view) in enumerate(best_texts, start=1)
                ],
            )

    def scores(self, terms: Sequence[Term], spec: str) -> Scores:
        """Scores all searchable files, in gallery order; scores are 0 if the terms cancel out."""
        scores = self._scores(self._encode_terms(terms, spec))
        return best_of_files(scores, self.index.file_count) if self.index.clips else scores

    def timeline(self, image_id: int, terms: Sequence[Term], spec: str) -> list[Hit]:
        """Scores the indexed frames of a clip, in time order.

        `image_id` is any frame of the clip; a still image has no hits. A pack that reads sets of
        frames scores windows of the clip; a hit then has the first frame of its window.
        """
        self.image(image_id)  # raises ValueError for an unknown id
        file_id = image_id % self.index.file_count
        ids, values, _ = self._scores(self._encode_terms(terms, spec))
        is_frame = (ids % self.index.file_count == file_id) & (file_id in self.index.clips)
        return [self.hit(int(ids[i]), float(values[i])) for i in np.flatnonzero(is_frame)]

    def views(self, subject: Subject, name: str, attention: bool = False) -> Views:
        """Encodes a text (n = 1) or n images to views (n, V, D), with attention if requested."""
        if isinstance(subject, str):
            return self.runtime.text_views([self.reword(subject)], name, attention)
        features, mask = self._features(subject, name)
        return self.runtime.image_views(features, name, attention, mask)

    def parts(self, subject: Subject, name: str) -> Parts:
        """Splits a subject's views over words or cells; raises ValueError if the method cannot."""
        if isinstance(subject, str):
            return self.runtime.text_parts([self.reword(subject)], name)
        features, mask = self._features(subject, name)
        return self.runtime.image_parts(features, name, mask)

    def subject(self, term: Term) -> Subject:
        """Converts a term to the argument `subject` of `views` and `parts`."""
        if not isinstance(term.image, CollectionImage):
            return term.words if term.image is None else term.image
        local_image = self.collection.images[self.collection.file_id(term.image.image_id)]
        if local_image.path != term.image.path:  # an image of another collection
            return term.image.decode()
        return [nearest_frame(self.index, term.image)]

    @torch.inference_mode()
    def find_best_frames(self, ids: Sequence[int], terms: Sequence[Term], spec: str) -> list[int]:
        """Replaces ids of windows of clips by ids of the best frames, if scores can be split."""
        if self.reads_sets and self.index.clips:
            with suppress(ValueError):  # the score cannot be split
                subjects = [(term.weight, self.subject(term)) for term in combine_terms(terms)]
                parts = {
                    name: [(weight, self.parts(subject, name)) for weight, subject in subjects]
                    for name in self.methods.names(spec)
                }
                return best_frames(self.index, self.runtime, ids, parts)
        return list(ids)

    def tokenize(self, text: str) -> Tokens:
        """Splits a text into tokens, after its unknown words are replaced."""
        return self.runtime.reader.read(self.reword(text))

    def reword(self, text: str) -> str:
        """Replaces unknown words of a text by the known words that `find_replacement` suggests."""
        tokens, text = self.runtime.reader.read(text), text.strip()
        return reword(tokens, text, self.runtime.reader.words) if tokens.unknown else text

    def unknown_words(self, *texts: str) -> dict[str, str | None]:
        """Maps at most `_MAX_UNKNOWN` unknown words of texts to their replacements or to None."""
        words = [word for text in texts for word in self.runtime.reader.read(text).unknown.values()]
        words = [word for word in dict.fromkeys(words) if any(map(str.isalnum, word))]
        known_words = self.runtime.reader.words
        return {word: find_replacement(word, known_words) for word in words[:_MAX_UNKNOWN]}

    def relevant_files(self, terms: Sequence[Term]) -> frozenset[int]:
        """Returns the ids of the right files if the query equals a caption, otherwise no ids."""
        is_sentence = len(terms) == 1 and terms[0].image is None and terms[0].weight == 1
        words = " ".join(terms[0].words.split()) if is_sentence else ""
        return self.collection.relevance.get(words, frozenset())

    def distinct_images(self) -> Sequence[CollectionImage]:
        """Returns the images of the collection without duplicates and unreadable files."""
        omitted_files = {f.file for f in self.index.refused} | {f.file for f in self.index.copies}
        return [image for image in self.collection.images if image.file not in omitted_files]

    def image(self, image_id: int) -> CollectionImage:
        """Returns an image of the collection: a file or a frame of a clip."""
        return self.index.clips.image(image_id)

    def hit(self, image_id: int, score: float = 0.0, view: int | None = None, rank: int = 0) -> Hit:
        """Returns an image of the collection as a hit, with its metadata."""
        image = self.image(image_id)
        hit = Hit(image_id=image_id, file=image.file, score=score, view=view, rank=rank)
        moment = image.moment
        hit.seconds, hit.frame = (moment.seconds, moment.frame) if moment else (None, None)
        if image.captions:
            hit.captions = list(image.captions)
        if image.objects:
            hit.objects = list(image.objects)
        return hit

    def thumbnail(self, image_id: int) -> Path:
        """Returns the path of an image's thumbnail; writes the thumbnail if it does not exist."""
        return self.image(image_id).thumbnail(self.index.encoder.thumbnails)

    def thumbnails(self, image_ids: Iterable[int]) -> dict[int, Path]:
        """Returns the paths of thumbnails by image id, without images that cannot be opened."""
        paths: dict[int, Path] = {}

        def add_path(image_id: int) -> None:
            with suppress(ValueError, OSError):
                paths[image_id] = self.thumbnail(image_id)

        with ThreadPoolExecutor(_THUMBNAIL_THREADS, "thumbnail") as pool:
            pool.map(add_path, image_ids)
        return paths

    def make_thumbnails(self) -> None:
        """Makes the first thumbnails once all captions are encoded; deletes old thumbnails."""
        self.index.captions_done.wait()
        for image in self.distinct_images()[:_MAX_PREPARED]:
            with suppress(ValueError, OSError):  # a request for the image tries again
                fingerprint(self.thumbnail(image.image_id))  # `fingerprint` caches its result
        delete_old_thumbnails(self.index.encoder.thumbnails)

    def _encode_terms(self, terms: Sequence[Term], spec: str) -> Query:
        """Encodes a query with each method; methods with the same encoder share its features."""
        subjects = [(term.weight, self.subject(term)) for term in combine_terms(terms)]
        features: dict[tuple[int, str | None], Tensor] = {}  # by term index and encoder

        def views(index: int, name: str) -> Views:  # encodes a term with a method
            subject = subjects[index][1]
            if not isinstance(subject, Image.Image):
                return self.views(subject, name)
            key = index, self.runtime.image_encoder_of(name)
            if key not in features:
                features[key] = self.runtime.image_features([subject], name)
            return self.runtime.image_views(features[key], name)

        return {
            name: [(weight, views(index, name)) for index, (weight, _) in enumerate(subjects)]
            for name in self.methods.names(spec)
        }

    def _features(self, images: Images, name: str) -> tuple[Tensor, Tensor | None]:
        """Returns features (n, N, d) and mask (n, N) of n images; no mask for a decoded image."""
        if isinstance(images, Image.Image):
            return self.runtime.image_features([images], name), None
        sets = [self.index.clips.window_of(image_id) for image_id in images]
        features = self.index.features(chain(*sets), name)
        return pad_sets([torch.cat([features[i] for i in frames]) for frames in sets])

    def _scores(self, query: Query, search_captions: bool = False) -> Scores:
        """Scores all searchable images or captions; each frame of a clip is an image."""
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        for name, terms in query.items():
            gallery = self._wait_for_gallery(name, search_captions)
            if not terms:  # they cancel out
                ids = gallery.ids()
                pairs.append((ids, np.zeros(len(ids), np.float32)))
            for weight, views in terms:
                ids, values = gallery.scores(views)
                pairs.append((ids, weight / len(query) * values))
        ids = pairs[0][0]
        if not all(np.array_equal(term_ids, ids) for term_ids, _ in pairs):
            # galleries may grow between the calls of `scores`: keep the common ids
            ids = reduce(np.intersect1d, [term_ids for term_ids, _ in pairs])
            rows = [np.intersect1d(term_ids, ids, return_indices=True)[1] for term_ids, _ in pairs]
            pairs = [(ids, values[row]) for (_, values), row in zip(pairs, rows, strict=True)]
        return Scores(ids, reduce(np.add, [values for _, values in pairs]), ids)

    def _find_best(
        self, query: Query, k: int, file_ids: AbstractSet[int] | None, search_captions: bool = False
    ) -> tuple[list[Match], np.ndarray | None]:
        """Finds the k best images or captions; a clip ranks by its best frame and counts once.

        Also returns the scores (n,) of all candidates, or None if they were not computed.
        """
        if pair := single_term(query):
            name, query_views = pair
            gallery = self._wait_for_gallery(name, search_captions)
            if search_captions:
                return gallery.search(query_views, k), None
            if not gallery.local or len(gallery) > MAX_SAMPLE:  # scoring all would be slow
                return gallery.search_files(query_views, k, file_ids, self.index.file_count), None
        ids, values, _ = self._scores(query, search_captions)
        selection = self._select(ids, file_ids)
        ids, values = ids[selection], values[selection]
        order = np.argsort(-values, kind="stable")
        if self.index.clips and not search_captions:
            _, first_rows = np.unique(ids[order] % self.index.file_count, return_index=True)
            order = order[np.sort(first_rows)]
        order = order[:k]
        views: list[int | None] = [None] * len(order)
        (name, terms), *others = query.items()
        if len(order) and terms and not (others or search_captions):
            views = self.index.images[name].best_views(ids[order], [view for _, view in terms])
        triples = zip(ids[order].tolist(), values[order].tolist(), views, strict=True)
        return [Match(*triple) for triple in triples], values

    def _select(self, ids: np.ndarray, file_ids: AbstractSet[int] | None) -> np.ndarray | slice:
        """Returns a mask (n,) of the ids (n,) whose files are in `file_ids`; None selects all."""
        files = ids % self.index.file_count
        return slice(None) if file_ids is None else np.isin(files, list(file_ids))

    def _wait_for_gallery(self, name: str, search_captions: bool) -> Gallery:
        """Waits for a gallery of images or captions; raises `Refusal` if it stays empty."""
        index, deadline = self.index, time.monotonic() + _WAIT_SECONDS
        gallery, done = index.images[name], index.images_done
        if search_captions:
            gallery, done = index.captions[name], index.captions_done
        done.wait(_WAIT_SECONDS if search_captions else _SHORT_WAIT_SECONDS)
        while not len(gallery) and time.monotonic() < deadline and not done.wait(0.1):
            pass
        if len(gallery):
            return gallery
        if done.is_set():
            message = f"there is nothing to search ({index.progress}); add images or resume reading"
        else:
            message = f"nothing is searchable yet ({index.progress}); try again in a moment"
        raise Refusal(503, message, 5)
