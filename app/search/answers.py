"""Answers to questions: what was found, and what is known about it."""

import time
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import BaseModel

from polyview.app.gallery.scan import Collection
from polyview.app.search.filters import Filters
from polyview.app.search.hits import Found
from polyview.app.search.query import Term, checked_k
from polyview.app.search.questions import Question, unsupported_aspects
from polyview.app.search.retriever import MAX_HITS, Retriever

CANCELLED = "The terms cancel out, so the images are in the order of the gallery."
_UNSUPPORTED = {
    "sides": "These methods do not distinguish left from right or above from below.",
    "negation": "These methods ignore negation; subtract the object instead: “dog - 0.5: cat”.",
}
_NEAREST = 2  # known words that are named for an unknown one
_ALIKE = 0.65  # share of letters in order that such words have in common
_LONGEST_WORD = 40  # characters of one for which known words are looked up
_AMONG_CAPTIONS = 100  # looked at for distinct ones: several images may share a caption


class Unknown(BaseModel):
    """A word that the pack lacks.

    Attributes:
        word: as it was typed.
        nearest: known ones that are spelled alike, where it is not read as one.
        read_as: the known word that it is read as; None where there is none.
    """

    word: str
    nearest: list[str]
    read_as: str | None


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        found: hits and more.
        terms: the question term by term, as it was read.
        remark: how words were read; see `remark`.
        satisfying: the files known to satisfy the question, a caption of the collection, by id.
        unknown: the first words that the pack does not know, those it reads as others included.
        unfamiliar: whether an image from elsewhere is unlike those that the pack was trained on;
            None where there is none, or the pack cannot tell.
        ms: milliseconds that it took.
    """

    found: Found
    terms: tuple[Term, ...]
    remark: str
    satisfying: frozenset[int]
    unknown: tuple[Unknown, ...]
    unfamiliar: bool | None
    ms: float

    @property
    def matches(self) -> bool | None:
        """Whether anything satisfies the question; None where the pack cannot tell."""
        return None if self.found.judgement is None else self.found.judgement.matches

    @property
    def probabilities(self) -> tuple[float, ...] | tuple[None, ...]:
        """How probable each hit is to satisfy the question; None where the pack cannot tell."""
        hits, judgement = self.found.hits, self.found.judgement
        return (None,) * len(hits) if judgement is None else judgement.hits[: len(hits)]


def answer(
    retriever: Retriever, question: Question, spec: str, k: int, filters: Filters | None = None
) -> Answer:
    """Answers a question.

    Args:
        retriever: what is searched.
        question: what is asked.
        spec: a method of the pack, or an ensemble "a+b".
        k: how many images, and captions where an image alone is asked with.
        filters: only images that satisfy them are ranked; captions are not filtered.

    Raises:
        ValueError: the question makes no sense, or nothing is searchable yet.
    """
    k, ids = checked_k(k), None if filters is None else filters.ids
    start = time.perf_counter()
    terms = tuple(question.terms(retriever))
    alone = question.has_image and len(terms) == 1
    captions = min(max(k, _AMONG_CAPTIONS), MAX_HITS) if alone else 0
    own = {retriever.collection.file_id(one) for one in question.own}
    result = retriever.search(terms, spec, k + len(own), ids, captions)
    result = _without(own, retriever.collection, result, k)
    ms = (time.perf_counter() - start) * 1000
    unfamiliar = None
    if question.image is not None:
        unlike = retriever.runtime.unfamiliar([question.image])
        unfamiliar = None if unlike is None else bool(unlike.any())
    texts = [term.words for term in terms if term.image is None]
    satisfying: frozenset[int] = frozenset()
    if not question.has_image and len(terms) == 1 and terms[0].weight == 1:
        satisfying = known_to_satisfy(retriever.collection, question.words)
    read, unknown = remark(retriever, *texts), unknown_words(retriever, *texts)
    return Answer(result, terms, read, satisfying, unknown, unfamiliar, ms)


def _without(own: set[int], collection: Collection, result: Found, k: int) -> Found:
    """The same without the files that were asked with, and of the others the k best."""
    if not own:
        return result
    of_others = [collection.file_id(hit.image_id) not in own for hit in result.hits]
    places = [i for i, other in enumerate(of_others) if other][:k]
    best = [result.hits[place] for place in places]
    hits = [hit.model_copy(update={"rank": rank}) for rank, hit in enumerate(best, start=1)]
    return result._replace(hits=hits, searched=result.searched - of_others.count(False))


def remark(retriever: Retriever, *texts: str) -> str:
    """What a visitor should know of how words are read; empty if there is nothing."""
    tokens = [retriever.read(text) for text in texts]
    remarks = []
    if longest := max((len(one.ids) for one in tokens if one.truncated), default=0):
        remarks.append(f"Only the first {longest} words were read.")
    named = retriever.unknown(*texts)
    if unknown := [_quoted(word) for word, known in named.items() if known is None]:
        remarks.append(f"Unknown to this pack: {', '.join(unknown)}.")
    for word, known in named.items():
        if known:
            remarks.append(f"{_quoted(word)} is read as {_quoted(known)}.")
    aspects = {name for text in texts for name in unsupported_aspects(retriever.info, text)}
    remarks += [sentence for name, sentence in _UNSUPPORTED.items() if name in aspects]
    if not retriever.index.complete:
        remarks.append(f"The gallery is not complete yet ({retriever.index.progress}).")
    return " ".join(remarks)


def unknown_words(retriever: Retriever, *texts: str) -> tuple[Unknown, ...]:
    """The first few words of texts that the pack does not know, each once."""
    unknown = []
    for typed, read_as in retriever.unknown(*texts).items():
        word, known = typed[:_LONGEST_WORD], [] if read_as else retriever.words()
        nearest = get_close_matches(word.lower(), known, _NEAREST, _ALIKE)
        unknown.append(Unknown(word=word, nearest=nearest, read_as=read_as))
    return tuple(unknown)


def known_to_satisfy(collection: Collection, words: str) -> frozenset[int]:
    """Ids of the images known to satisfy a caption of the collection; none for other words."""
    return collection.relevant.get(" ".join(words.split()), frozenset())


def _quoted(word: str) -> str:
    return f"“{word[:_LONGEST_WORD]}”"
