"""Questions that find images: by words, by an image, by both; compared, weighed, over time."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache

from PIL import Image

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.explain import lens
from polyview.app.gallery.images import decode
from polyview.app.packs.columns import Columns
from polyview.app.packs.opened import Opened
from polyview.app.search import answers as found_answers
from polyview.app.search import comparison, curated
from polyview.app.search.duplicates import fingerprint, first_alike
from polyview.app.search.filters import Filters
from polyview.app.search.hits import Hit
from polyview.app.search.query import checked, describe, parse
from polyview.app.search.questions import Question, algebra_example, examples, unsupported_aspects
from polyview.app.search.retriever import Retriever

EXAMPLES = 6


class ImageFile(io.BytesIO):
    """An image that was sent, as the decoder takes files."""

    name = "the image"


def sent_image(content: bytes) -> Image.Image:
    """Decodes an image that was sent.

    Raises:
        ImageError: it is too large, damaged or no image.
    """
    return decode(ImageFile(content), ImageFile.name)


def known(retriever: Retriever, hits: Sequence[Hit], layout: bool = False) -> list[Hit]:
    """Hits with what is known about their images, and with sizes where `layout` wants them."""
    described = []
    for hit in hits:
        image = retriever.image(hit.image_id)
        about = {"captions": list(image.captions), "objects": list(image.objects)}
        described.append(hit.model_copy(update={name: one for name, one in about.items() if one}))
    if layout:
        add_layout(retriever, described)
    return described


def add_layout(retriever: Retriever, hits: Sequence[Hit]) -> None:
    """Adds the sizes of thumbnails, and which hits look nearly the same as an earlier one."""
    thumbnails = retriever.thumbnails([one.image_id for one in hits])
    present = [one for one in hits if one.image_id in thumbnails]
    for one in present:
        with suppress(OSError):
            one.width, one.height = image_size(str(thumbnails[one.image_id]))
    firsts = first_alike([fingerprint(thumbnails[one.image_id]) for one in present])
    for one, first in zip(present, firsts, strict=True):
        one.alike = None if present[first] is one else present[first].rank


@lru_cache(50_000)
def image_size(file: str) -> tuple[int, int]:
    """Width and height of an image in pixels.

    Raises:
        OSError: the file cannot be read.
    """
    with Image.open(file) as image:
        return image.size


class SearchQuestions:
    """The questions, over whatever is open."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def search_text(
        self,
        query: p.Words = "",
        method: p.Method = "",
        k: p.Count = 10,
        filters: p.Facts = p.NONE,
        like: p.Like = None,
        more: p.ImageIds = p.NONE,
        less: p.ImageIds = p.NONE,
        weight: p.Weight = 1.0,
        layout: p.Layout = False,
        pack: p.Pack = "",
        collection: p.Collection = "",
    ) -> answers.Answer:
        """Finds the images that fit words best; or an image of the collection, or examples."""
        retriever = self._opened.retriever(pack, collection)
        question = Question(query, like, None, weight, tuple(more), tuple(less))
        return self._answer(retriever, question, method, k, filters, layout)

    def search_image(
        self,
        image: p.Content,
        method: p.Method = "",
        k: p.Count = 10,
        query: p.Words = "",
        weight: p.Weight = 1.0,
        filters: p.Facts = p.NONE,
        layout: p.Layout = False,
        pack: p.Pack = "",
        collection: p.Collection = "",
    ) -> answers.ImageAnswer:
        """Finds the images, and captions, that fit an image best, or an image and words."""
        retriever = self._opened.retriever(pack, collection)
        question = Question(query, image=sent_image(image), weight=weight)
        answer = self._answer(retriever, question, method, k, filters, layout)
        fields = {name: getattr(answer, name) for name in answer.model_fields_set}
        return answers.ImageAnswer.model_construct(**fields, images=answer.hits)

    def compare(
        self,
        query: p.Words,
        methods: p.Methods,
        k: p.CompareCount = 10,
        like: p.Like = None,
        pack: p.Pack = "",
        collection: p.Collection = "",
    ) -> answers.Comparison:
        """Ranks the images by several methods and says how far they agree."""
        retriever = self._opened.retriever(pack, collection)
        columns = Columns(retriever, self._opened.beside(retriever))
        terms = Question(query, like).terms(retriever)
        compared = columns.ask(terms, methods, k, like)
        images = {image_id: retriever.image(image_id) for image_id in compared.ranks}
        about: dict[int, dict[str, object]] = {
            image_id: {"file": image.file, "captions": list(image.captions)}
            | (asdict(image.moment) if image.moment else {})
            for image_id, image in images.items()
        }
        for image_id, thumbnail in retriever.thumbnails(list(images)).items():
            with suppress(OSError):
                sizes = zip(("width", "height"), image_size(str(thumbnail)), strict=True)
                about[image_id].update(sizes)
        ranks = {str(image_id): list(places) for image_id, places in compared.ranks.items()}
        return answers.Comparison(**comparison.as_json(compared, about), ranks=ranks)

    def lens(
        self,
        query: p.Words,
        method: p.Method,
        weights: p.Weights,
        k: p.Count = 10,
        layout: p.Layout = False,
        pack: p.Pack = "",
        collection: p.Collection = "",
    ) -> answers.Lens:
        """Finds images while some of their views count less, or not at all."""
        start = time.perf_counter()
        retriever = self._opened.retriever(pack, collection)
        method = method or retriever.methods.best
        ranking = lens.rank(retriever, query, method, weights, k)
        hits = [one.model_copy(update={"before": before}) for one, before in ranking.hits]
        return answers.Lens(
            query=query,
            method=method,
            weights=list(weights),
            searched=len(ranking.ids),
            stayed=ranking.stayed,
            hits=known(retriever, hits, layout),
            remark=found_answers.remark(retriever, query),
            ms=milliseconds(start),
        )

    def timeline(
        self,
        image: p.ImageId,
        query: p.Words,
        method: p.Method = "",
        pack: p.Pack = "",
        collection: p.Collection = "",
    ) -> answers.Hits:
        """Scores every frame that was chosen of a clip, in the order they are shown."""
        retriever = self._opened.retriever(pack, collection)
        terms, spec = parse(checked(query)), method or retriever.methods.best
        retriever.methods.names(spec)
        frames = known(retriever, retriever.timeline(image, terms, spec))
        return answers.Hits(total=len(frames), hits=frames)

    def examples(self, pack: p.Pack = "", collection: p.Collection = "") -> answers.Examples:
        """Queries to try: captions that one method alone answers well, sentences, and a sum."""
        retriever = self._opened.retriever(pack, collection)
        chosen = curated.load(retriever.info, retriever.collection)
        return answers.Examples(
            curated=[asdict(one) for one in chosen],
            queries=[text for text in examples(retriever, EXAMPLES) if text],
            algebra=algebra_example(retriever),
        )

    def _answer(
        self,
        retriever: Retriever,
        question: Question,
        method: str,
        k: int,
        filters: list[str],
        layout: bool,
    ) -> answers.Answer:
        method = method or retriever.methods.best
        facts = p.pairs(filters, "filter", "setting:beach")
        chosen = Filters.of(retriever.collection, facts) if facts else Filters()
        answered = found_answers.answer(retriever, question, method, k, chosen)
        hits = known(retriever, answered.found.hits, layout)
        for hit, probability in zip(hits, answered.probabilities, strict=True):
            hit.probability = probability
            if answered.satisfying:
                file_id = retriever.collection.file_id(hit.image_id)
                hit.satisfies = file_id in answered.satisfying
        caveat = answered.found.caveat
        first = caveat if answered.found.terms else found_answers.CANCELLED
        texts = [term.words for term in answered.terms if term.image is None]
        aspects = {name for text in texts for name in unsupported_aspects(retriever.info, text)}
        image = "" if question.image_id is None else retriever.image(question.image_id).file
        return answers.Answer(
            query=question.words,
            read_as=", ".join(describe(answered.terms, image or ImageFile.name)),
            method=method,
            k=k,
            filters=dict(chosen.wanted),
            searched=answered.found.searched,
            ms=round(answered.ms, 1),
            terms=[answers.Term(words=t.words, weight=t.weight) for t in answered.terms],
            exact=not caveat,
            matches=answered.matches,
            unfamiliar=answered.unfamiliar,
            unknown=list(answered.unknown),
            unsupported=sorted(aspects),
            remark=" ".join(filter(None, (first, answered.remark))),
            hits=hits,
            captions=answered.found.captions[:k],
        )


def milliseconds(start: float) -> float:
    """Milliseconds since a reading of `time.perf_counter`, to a tenth."""
    return round((time.perf_counter() - start) * 1000, 1)
