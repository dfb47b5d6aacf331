"""Questions and their answers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from PIL import Image

from polyview.app.gallery.scan import Collection
from polyview.app.search.hits import Answer, QueryTerm, Unknown
from polyview.app.search.query import Term, checked, describe, parse
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import PackInfo

_UNSUPPORTED = {
    "sides": "These methods do not distinguish left from right or above from below.",
    "negation": "These methods ignore negation; subtract the object instead: “dog - 0.5: cat”.",
}
_NEGATION = re.compile(r"\b(no|not(?! just| only)|without|lacks|lacking)\b", re.IGNORECASE)
_SIDES = re.compile(r"\b(left|right|above|below|beneath|higher|lower)\b", re.IGNORECASE)
_SIDES_MEASURE = "foil_replaced_relation"  # percent of true captions scored above a false relation
_DISTINGUISHED = 60.0  # percent; guessing among a thousand pairs reaches less
_NEAREST = 2  # known words suggested for an unknown one
_ALIKE = 0.65  # minimum similarity of suggested words
_LONGEST_WORD = 40  # characters of a word for which others are suggested
_VALUES = 20  # of a fact, listed in an error message


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        words: a sentence, or several terms as in `app/search/query.py`; may be empty if there is an
            image or example.
        image_id: a query image of the collection.
        image: a decoded query image from elsewhere.
        weight: weight of the image's scores if there are also words.
        more: images of the collection that results should be like.
        less: images that results should not be like.
    """

    words: str = ""
    image_id: int | None = None
    image: Image.Image | None = None
    weight: float = 1.0
    more: Sequence[int] = ()
    less: Sequence[int] = ()

    @property
    def own(self) -> frozenset[int]:
        """The images of the collection in the question, which are excluded from the answer."""
        with_image = () if self.image_id is None else (self.image_id,)
        return frozenset((*with_image, *self.more, *self.less))

    def terms(self, retriever: Retriever) -> list[Term]:
        """The terms of the question: an image first, then words, then examples.

        Examples together have the weight of a sentence, negative ones half of it.

        Raises:
            ValueError: an image is unknown, or the image or the words cannot be read.
        """

        def term(image_id: int, weight: float = 1.0, name: str = "") -> Term:
            source = retriever.image(image_id)
            name = name and f"{name} {Path(source.file).name}"
            return Term("", retriever.open(image_id), weight, name, source)

        terms = [] if self.image_id is None else [term(self.image_id)]
        if self.image is not None:
            terms = [Term(image=self.image)]
        examples = [
            term(image_id, weight / len(images), "like")
            for weight, images in ((1.0, self.more), (-0.5, self.less))
            for image_id in images
        ]
        if self.words.strip() or not (terms or examples):
            terms = [replace(term, weight=self.weight) for term in terms]
            terms += parse(checked(self.words))
        return [*terms, *examples]


def answer(
    retriever: Retriever,
    question: Question,
    spec: str,
    k: int,
    filters: Mapping[str, Sequence[str]] | None = None,
) -> Answer:
    """Answers a question.

    Args:
        retriever: the pack and the collection.
        question: the question.
        spec: a method of the pack, or an ensemble "a+b".
        k: number of images, and of captions if the question is a single image.
        filters: restricts the images, but not the captions; see `satisfying`.

    Raises:
        ValueError: the question is not valid, or nothing is searchable yet.
    """
    collection, only = retriever.collection, satisfying(retriever.collection, filters or {})
    terms = question.terms(retriever)
    texts = [term.words for term in terms if term.image is None]
    alone = len(terms) == 1 and not texts and not (question.more or question.less)
    own = {collection.file_id(image_id) for image_id in question.own}
    result = retriever.search(terms, spec, k + len(own), only, captions=k if alone else 0)
    others = [h for h in result.hits if not own or collection.file_id(h.image_id) not in own]
    result.searched -= len(result.hits) - len(others)
    result.hits, result.k = others[:k], k
    for rank, hit in enumerate(result.hits, start=1):
        hit.rank = rank
    if relevant := known_to_satisfy(collection, terms):
        for hit in result.hits:
            hit.satisfies = collection.file_id(hit.image_id) in relevant
    sent = question.image
    unlike = None if sent is None else retriever.runtime.unfamiliar([sent])
    image = "" if question.image_id is None else retriever.image(question.image_id).file
    result.query, result.read_as = question.words, ", ".join(describe(terms, image or "the image"))
    result.filters = {fact: [*dict.fromkeys(values)] for fact, values in (filters or {}).items()}
    result.terms = [QueryTerm(words=term.words, weight=term.weight) for term in terms]
    result.unfamiliar = None if unlike is None else bool(unlike.any())
    result.unknown = unknown_words(retriever, *texts)
    result.unsupported = unsupported_aspects(retriever.info, *texts)
    result.remark = " ".join(filter(None, (result.remark, remark(retriever, *texts))))
    return result


def satisfying(
    collection: Collection, filters: Mapping[str, Sequence[str]]
) -> frozenset[int] | None:
    """Ids of the images that have, for each fact, one of the values; None without filters.

    Images for which a fact is unknown do not satisfy it.

    Raises:
        ValueError: no image has such a fact or value.
    """
    if not filters:
        return None
    chosen, known = list[frozenset[int]](), collection.facts
    for fact, values in filters.items():
        if not known:
            raise ValueError("these images have no metadata to filter by")
        if fact not in known:
            facts = ", ".join(known)
            raise ValueError(f'images cannot be filtered by "{fact[:80]}"; choose one of {facts}')
        if lacking := [value for value in values if value not in known[fact]]:
            some = [*list(known[fact])[:_VALUES], *(["…"] if len(known[fact]) > _VALUES else [])]
            raise ValueError(
                f'no image has the {fact} "{lacking[0][:80]}"; choose from {", ".join(some)}'
            )
        chosen.append(frozenset().union(*(known[fact][value] for value in values)))
    return frozenset.intersection(*chosen)


def remark(retriever: Retriever, *texts: str) -> str:
    """Remarks about how the words were read; empty if there are none."""
    tokens = [retriever.read(text) for text in texts]
    remarks = []
    if longest := max((len(read.ids) for read in tokens if read.truncated), default=0):
        remarks.append(f"Only the first {longest} words were read.")
    named = retriever.unknown(*texts)
    if unknown := [_quoted(word) for word, known in named.items() if known is None]:
        remarks.append(f"Unknown to this pack: {', '.join(unknown)}.")
    for word, known in named.items():
        if known:
            remarks.append(f"{_quoted(word)} is read as {_quoted(known)}.")
    aspects = unsupported_aspects(retriever.info, *texts)
    remarks += [sentence for name, sentence in _UNSUPPORTED.items() if name in aspects]
    if not retriever.index.complete:
        remarks.append(f"The gallery is not complete yet ({retriever.index.progress}).")
    return " ".join(remarks)


def unknown_words(retriever: Retriever, *texts: str) -> list[Unknown]:
    """The first few distinct words that the pack does not know."""
    unknown = []
    for typed, read_as in retriever.unknown(*texts).items():
        word, known = typed[:_LONGEST_WORD], [] if read_as else retriever.runtime.reader.words()
        nearest = get_close_matches(word.lower(), known, _NEAREST, _ALIKE)
        unknown.append(Unknown(word=word, nearest=nearest, read_as=read_as))
    return unknown


def known_to_satisfy(collection: Collection, terms: Sequence[Term]) -> frozenset[int]:
    """Ids of the images known to satisfy a query that is a caption of the collection."""
    plain = len(terms) == 1 and terms[0].image is None and terms[0].weight == 1
    words = " ".join(terms[0].words.split()) if plain else ""
    return collection.relevant.get(words, frozenset())


def unsupported_aspects(pack: PackInfo, *texts: str) -> list[str]:
    """Query aspects (negation, left/right) that no method handles.

    Negation is unsupported in every pack: for captions that deny an object, no method of this
    project ranks the right image above one with that object in more than half of the cases
    (docs/results.md). Sides and heights are unsupported in packs whose methods were measured with
    `training.evaluate --foils` and scored fewer than 60 % of the true captions above those with the
    opposite relation.

    Returns:
        Those of "negation" and "sides" that occur in the texts.
    """
    values = [method.metrics.values for method in pack.methods.values() if method.metrics]
    measured = [metrics[_SIDES_MEASURE] for metrics in values if _SIDES_MEASURE in metrics]
    aspects = ["negation"] if any(map(_NEGATION.search, texts)) else []
    if any(map(_SIDES.search, texts)) and measured and max(measured) < _DISTINGUISHED:
        aspects.append("sides")
    return aspects


def _quoted(word: str) -> str:
    return f"“{word[:_LONGEST_WORD]}”"
