"""Questions that find images: by words, by an image, by both; compared, weighed, over time."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict

from PIL import Image

from app.api import answers
from app.api import parameters as p
from app.explain import lens
from app.gallery.images import decode
from app.gallery.near_duplicates import fingerprint, first_alike
from app.packs.columns import Columns
from app.packs.opened import Opened
from app.search import answers as found_answers
from app.search import comparison, curated
from app.search.filters import Filters
from app.search.hits import Hit
from app.search.query import checked, describe, parse
from app.search.questions import Question, algebra_example, examples, unsupported_aspects
from app.search.retriever import Retriever

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


def asked(
    query: str,
    like: int | None = None,
    more: Sequence[int] = (),
    less: Sequence[int] = (),
    weight: float = 1.0,
    image: Image.Image | None = None,
) -> Question:
    """A question of words, of an image of the collection or one that was sent, and of examples."""
    kind = "upload" if image is not None else "words" if like is None else "image"
    name = ImageFile.name if image is not None else ""
    return Question(kind, query, "", like or 0, weight, name, tuple(more), tuple(less), image)  # type: ignore[arg-type]


def hit(retriever: Retriever, found: Hit, **known: object) -> answers.Hit:
    """A hit with what is known about its image."""
    image = retriever.image(found.image_id)
    about = {"captions": list(image.captions), "objects": list(image.objects)}
    about = {name: value for name, value in about.items() if value}
    return answers.Hit.model_validate({**vars(found), **about, **known})


def add_layout(retriever: Retriever, hits: Sequence[answers.Hit]) -> None:
    """Notes sizes of thumbnails, and which hits look nearly the same as an earlier one."""
    thumbnails, _ = retriever.thumbnails([one.image_id for one in hits])
    there = [one for one in hits if one.image_id in thumbnails]
    for one in there:
        with suppress(OSError), Image.open(thumbnails[one.image_id]) as image:
            one.width, one.height = image.size
    firsts = first_alike([fingerprint(thumbnails[one.image_id]) for one in there])
    for one, first in zip(there, firsts, strict=True):
        one.alike = None if there[first] is one else there[first].rank


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
        question = asked(query, like, more, less, weight)
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
        question = asked(query, weight=weight, image=sent_image(image))
        answer = self._answer(retriever, question, method, k, filters, layout)
        known = {name: getattr(answer, name) for name in answer.model_fields_set}
        return answers.ImageAnswer.model_construct(**known, images=answer.hits)

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
        terms = asked(query, like).terms(retriever)
        found = columns.ask(terms, methods, k, like)
        images = {image_id: retriever.image(image_id) for image_id in found.ranks}
        known = {
            image_id: {"file": image.file, "captions": list(image.captions)}
            | (asdict(image.moment) if image.moment else {})
            for image_id, image in images.items()
        }
        ranks = {str(image_id): list(places) for image_id, places in found.ranks.items()}
        return answers.Comparison(**comparison.as_json(found, known), ranks=ranks)

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
        found = lens.rank(retriever, query, method, weights, k)
        hits = [hit(retriever, each, before=before) for each, before in found.hits]
        if layout:
            add_layout(retriever, hits)
        return answers.Lens(
            query=query,
            method=method,
            weights=list(weights),
            searched=len(found.ids),
            stayed=found.stayed,
            hits=hits,
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
        frames = [hit(retriever, one) for one in retriever.timeline(image, terms, spec)]
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
        wanted = None
        if filters:
            facts = p.pairs(filters, "filter", "setting:beach")
            wanted = Filters.of(retriever.collection, facts)
        found = found_answers.answer(retriever, question, method, k, wanted)
        right, of_file = found.satisfying, retriever.collection.file_id
        hits = [
            hit(
                retriever,
                one,
                probability=probability,
                **({"satisfies": of_file(one.image_id) in right} if right else {}),
            )
            for one, probability in zip(found.hits, found.probabilities, strict=True)
        ]
        if layout:
            add_layout(retriever, hits)
        caveat = found.found.caveat
        remarks = (caveat if found.found.terms else found_answers.NOTHING_ASKED, found.remark)
        texts = [term.words for term in found.asked if term.image is None]
        unsupported = {
            aspect for text in texts for aspect in unsupported_aspects(retriever.info, text)
        }
        return answers.Answer(
            query=question.words,
            read_as=", ".join(describe(found.asked, found.image)),
            method=method,
            k=found.k,
            filters=dict(found.filters.wanted),
            searched=found.found.searched,
            ms=round(found.ms, 1),
            terms=[answers.Term(words=t.words, weight=t.weight) for t in found.asked],
            exact=not caveat,
            matches=found.matches,
            unfamiliar=found.unfamiliar,
            unknown=[answers.Unknown(**asdict(word)) for word in found.unknown],
            unsupported=sorted(unsupported),
            remark=" ".join(filter(None, remarks)),
            hits=hits,
            captions=[answers.Caption(**asdict(one)) for one in found.found.captions[: found.k]],
        )


def milliseconds(start: float) -> float:
    """Milliseconds since a reading of `time.perf_counter`, to a tenth."""
    return round((time.perf_counter() - start) * 1000, 1)


def listed(retriever: Retriever, image_ids: Iterable[int]) -> list[answers.Hit]:
    """Images of the collection as hits without a score."""
    return [hit(retriever, retriever.hit(one)) for one in image_ids]
