"""Answers to questions: what was found, and what is known about it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np

from app.gallery.collection import Collection
from app.search.filters import Filters
from app.search.hits import CaptionHit, Found, Hit
from app.search.query import Term, checked_k, describe
from app.search.questions import Question, unsupported_aspects
from app.search.retriever import MAX_HITS, Retriever

MAX_CAPTIONS = 8
UNFAMILIAR = (
    "This picture is unlike those that this pack was trained on, so what it finds may mean little."
)
NOTHING_ASKED = (
    "The terms cancel out, so nothing was asked: these are pictures in the order of the gallery."
)
_UNSUPPORTED = {
    "sides": "These methods do not distinguish left from right or above from below.",
    "negation": "These methods ignore negation; subtract the object instead: “dog - 0.5: cat”.",
}
_NEAREST = 2  # known words that are named for an unknown one
_ALIKE = 0.65  # share of letters in order that such words have in common
_LONGEST_WORD = 40  # characters of one for which known words are looked up
_LONGEST_SHOWN = 80  # characters of a sentence or term as repeated in an answer
_AMONG_CAPTIONS = 100  # looked at for distinct ones: several images may share a caption
_SAMPLE = 12


@dataclass(frozen=True)
class Unknown:
    """A word that the pack lacks.

    Attributes:
        word: as it was typed.
        nearest: known ones that are spelled alike, where it is not read as one.
        read_as: the known word that it is read as; None where there is none.
    """

    word: str
    nearest: tuple[str, ...]
    read_as: str | None = None


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        question: what was asked.
        summary: how much, for what.
        details: smaller remarks.
        found: hits and more; those of a sample have rank 0.
        filters: as they were understood.
        k: how many images were wanted.
        asked: the question term by term, as it was read.
        image: what the image that is part of the question is called; may be empty.
        remark: how words were read; see `remark`.
        satisfying: the files known to satisfy the question, a caption of the collection, by id.
        unknown: the first words that the pack does not know, those it reads as others included.
        unfamiliar: whether an uploaded image is unlike those that the pack was trained on; None
            where there is none, or the pack cannot tell.
        ms: milliseconds that it took.
    """

    question: Question
    summary: str
    details: tuple[str, ...]
    found: Found
    filters: Filters
    k: int
    asked: tuple[Term, ...] = ()
    image: str = ""
    remark: str = ""
    satisfying: frozenset[int] = frozenset()
    unknown: tuple[Unknown, ...] = ()
    unfamiliar: bool | None = None
    ms: float = 0.0

    @property
    def matches(self) -> bool | None:
        """Whether anything satisfies the question; None where the pack cannot tell."""
        return None if self.found.judgement is None else self.found.judgement.matches

    @property
    def probabilities(self) -> tuple[float, ...] | tuple[None, ...]:
        """How probable each hit is to satisfy the question; None where the pack cannot tell."""
        judgement = self.found.judgement
        return (None,) * len(self.hits) if judgement is None else judgement.hits[: len(self.hits)]

    @property
    def hits(self) -> list[Hit]:
        """Images, best first."""
        return self.found.hits

    @property
    def winners(self) -> Mapping[str, np.ndarray]:
        """For each method, the winning view (T, n) for each of T `terms` and n hits."""
        return self.found.winners

    @property
    def terms(self) -> tuple[str, ...]:
        """What `winners` speaks of, in words."""
        return tuple(_short(term.words) or self.image for term in self.found.terms)

    @property
    def reading(self) -> tuple[str, ...]:
        """How a question of several terms was read; the summary ends where they follow."""
        if len(self.asked) > 1 or any(term.weight != 1 for term in self.asked):
            return tuple(map(_short, describe(self.asked, self.image)))
        return ()

    @property
    def captions(self) -> list[CaptionHit]:
        """A few captions, best first and each once."""
        best: dict[str, CaptionHit] = {}
        for caption in self.found.captions:
            best.setdefault(caption.text, caption)
        return list(best.values())[: min(self.k, MAX_CAPTIONS)]


def answer(
    retriever: Retriever, question: Question, spec: str, k: int, filters: Filters | None = None
) -> Answer:
    """Answers a question.

    Args:
        retriever: what is searched.
        question: what is asked.
        spec: a method of the pack, or an ensemble "a+b"; a sample needs none.
        k: how many images, and captions where an image alone is asked about.
        filters: only images that satisfy them are ranked; captions are not filtered.

    Raises:
        ValueError: the question makes no sense, or nothing is searchable yet.
    """
    filters, k = filters or Filters(), checked_k(k)
    if question.kind == "sample":
        return _sample(retriever, filters, k)
    start = time.perf_counter()
    asked = tuple(question.terms(retriever))
    alone = question.has_image and len(asked) == 1
    captions = min(max(k, _AMONG_CAPTIONS), MAX_HITS) if alone else 0
    own = {retriever.collection.file_id(one) for one in question.own}
    found = retriever.search(asked, spec, k + len(own), filters.ids, captions)
    found = _without(own, retriever.collection, found, k)
    ms = (time.perf_counter() - start) * 1000
    image = question.file(retriever)
    strange = _unfamiliar(retriever, asked) if question.kind == "upload" else None
    texts = [term.words for term in asked if term.image is None]
    read = remark(retriever, *texts)
    several = len(asked) > 1 or asked[0].weight != 1
    subject = "for" if several else f"like {image}" if alone else f"for “{_short(question.words)}”"
    satisfying: frozenset[int] = frozenset()
    if question.kind == "words" and not several:
        satisfying = known_to_satisfy(retriever.collection, question.words)
    details = (
        retriever.methods.title(spec),
        f"{ms:.0f} ms" if found.caveat else f"{ms:.0f} ms, exact",
        str(filters) if filters.wanted else "",
        _truth(
            satisfying if filters.ids is None else satisfying & filters.ids,
            retriever.collection,
            found.hits,
        ),
        "" if found.terms else NOTHING_ASKED,
        UNFAMILIAR if strange else "",
        found.caveat,
        _out_of_reach(retriever, found.hits),
        "This gallery has no captions." if alone and not found.captions else "",
        read,
    )
    images = "picture" if found.searched == 1 else "pictures"
    summary = f"{len(found.hits)} of {found.searched:,} {images} {subject}"
    if found.judgement is not None and not found.judgement.matches and found.hits:
        summary = "Nothing here matches; the nearest are:"
    return Answer(
        question,
        summary,
        details,
        found,
        filters,
        k,
        asked,
        image,
        read,
        satisfying,
        unknown_words(retriever, *texts),
        strange,
        ms,
    )


def _without(own: set[int], collection: Collection, found: Found, k: int) -> Found:
    """The same without the files that were asked with, and of the others the k best."""
    if not own:
        return found
    of_others = [collection.file_id(hit.image_id) not in own for hit in found.hits]
    places = [i for i, other in enumerate(of_others) if other][:k]
    hits = [replace(found.hits[place], rank=rank) for rank, place in enumerate(places, start=1)]
    winners = {name: won[:, places] for name, won in found.winners.items()}
    left_out = of_others.count(False)
    return found._replace(hits=hits, winners=winners, searched=found.searched - left_out)


def remark(retriever: Retriever, *texts: str) -> str:
    """What a visitor should know of how words are read; empty if there is nothing."""
    read = [retriever.read(text) for text in texts]
    remarks = []
    if longest := max((len(tokens.ids) for tokens in read if tokens.truncated), default=0):
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
    found = []
    for typed, read_as in retriever.unknown(*texts).items():
        word, known = typed[:_LONGEST_WORD], [] if read_as else retriever.words()
        nearest = get_close_matches(word.lower(), known, _NEAREST, _ALIKE)
        found.append(Unknown(word, tuple(nearest), read_as))
    return tuple(found)


def _quoted(word: str) -> str:
    return f"“{word[:_LONGEST_WORD]}”"


def known_to_satisfy(collection: Collection, words: str) -> frozenset[int]:
    """Ids of the images known to satisfy a caption of the collection; none for other words."""
    return collection.relevant.get(" ".join(words.split()), frozenset())


def _sample(retriever: Retriever, filters: Filters, k: int) -> Answer:
    """Images from all over the collection, or of what the filters leave of it."""
    left = filters.ids
    images = [p for p in retriever.shown_images() if left is None or p.image_id in left]
    step, count = max(1, len(images) // _SAMPLE), len(images)
    hits = [retriever.hit(p.image_id) for p in images[::step][:_SAMPLE]]
    summary = "One picture to search" if count == 1 else f"{count:,} pictures to search"
    invitation = "Type what you look for, or choose one to look inside."
    found = Found(hits, [], {}, (), count)
    return Answer(Question(), summary, (str(filters), invitation), found, filters, k)


def _unfamiliar(retriever: Retriever, asked: Sequence[Term]) -> bool | None:
    """Whether an image that is asked about is unlike the pack's own."""
    images = [term.image for term in asked if term.image is not None]
    unfamiliar = retriever.runtime.unfamiliar(images)
    return None if unfamiliar is None else bool(unfamiliar.any())


def _out_of_reach(retriever: Retriever, hits: Sequence[Hit]) -> str:
    """Which found images' files lie where this machine cannot read them, and what to do."""
    reasons = []
    for hit in hits:
        try:
            retriever.image(hit.image_id).reached()
        except ValueError as error:
            reasons.append(str(error))
    if not reasons:
        return ""
    return f"Not shown: {len(reasons)} of these pictures. For one, {reasons[0]}."


def _truth(satisfying: frozenset[int], collection: Collection, hits: Sequence[Hit]) -> str:
    """How many images are known to satisfy a caption, and how many of them were found."""
    if not satisfying:
        return ""
    count = len(satisfying)
    found = sum(collection.file_id(hit.image_id) in satisfying for hit in hits)
    if count == 1:
        known = "the one picture known to satisfy it"
        return f"Ticked: {known}." if found else f"Not among these: {known}."
    return f"Ticked: {found} of the {count} pictures known to satisfy it."


def _short(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= _LONGEST_SHOWN else f"{words[: _LONGEST_SHOWN - 1]}…"
