"""Questions a visitor can ask, whatever tab they are asked in, and their answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from app import filters
from app.filters import Wanted
from app.hits import CaptionHit, Hit
from app.pictures import open_picture
from app.query import Term, checked, describe, parse
from app.retriever import Retriever

MAX_CAPTIONS = 8
NOTHING_ASKED = (
    "The terms cancel out, so nothing was asked: these are pictures in the order of the gallery."
)
_LONGEST_EXAMPLE = 40  # characters
_LONGEST_SHOWN = 80  # characters of a sentence or term as repeated in an answer
_AMONG_CAPTIONS = 100  # looked at for distinct ones: several pictures may share a caption
_SAMPLE = 12
# For collections that bring no captions to choose examples from.
_EXAMPLES = ("a dog", "people at a table", "a street at night", "flowers", "the sea")
_ALGEBRA_EXAMPLE = "2: a dog + grass - people"


@dataclass(frozen=True)
class Ask:
    """A question, kept so that it can be asked again of another method.

    Attributes:
        kind: "sample" asks for some pictures to begin with, "words" by words, "upload" by an
            uploaded picture, "picture" by one of the collection.
        words: a sentence, or several terms as `app/query.py` reads them; beside a picture they
            may be empty.
        path: the uploaded file.
        image_id: the collection's picture.
        weight: what the picture's scores are multiplied by where there are words beside it.
    """

    kind: Literal["sample", "words", "upload", "picture"] = "sample"
    words: str = ""
    path: str = ""
    image_id: int = 0
    weight: float = 1.0

    @property
    def pictured(self) -> bool:
        """Whether a picture is part of the question."""
        return self.kind in ("upload", "picture")


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        summary: how much, for what.
        details: smaller remarks.
        hits: pictures, best first; those of a sample have rank 0.
        captions: captions, best first and each once, where a picture alone was asked about.
        reading: how a question of several terms was read, term by term; the summary ends where
            they follow. Empty for one plain sentence or one picture.
        terms: what `winners` speaks of, in words.
        winners: for each method, the winning view (T, n) for each of T terms and n hits.
        satisfying: ids of the pictures known to satisfy the question, a caption of the collection.
    """

    summary: str
    details: tuple[str, ...]
    hits: list[Hit]
    captions: list[CaptionHit] = field(default_factory=list)
    reading: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    winners: Mapping[str, np.ndarray] = field(default_factory=dict)
    satisfying: frozenset[int] = frozenset()


def answer(
    retriever: Retriever, ask: Ask, spec: str, count: int, wanted: Wanted | None = None
) -> Answer:
    """Answers a question.

    Args:
        retriever: what is searched.
        ask: the question.
        spec: a method of the pack, or an ensemble "a+b"; a sample needs none.
        count: how many pictures.
        wanted: filters; only pictures that satisfy them are ranked.

    Raises:
        ValueError: the question makes no sense, or nothing is searchable yet.
    """
    wanted = filters.checked(retriever.collection, wanted)
    only = filters.allowed(retriever.collection, wanted)
    if ask.kind == "sample":
        return _sample(retriever, only, wanted)
    start = time.perf_counter()
    terms = _terms(retriever, ask)
    question = retriever.question(terms, spec)
    hits, winners = retriever.find(question, count, only)
    alone = ask.pictured and len(terms) == 1
    captions = retriever.find_captions(question, _AMONG_CAPTIONS) if alone else []
    spent = f"{(time.perf_counter() - start) * 1000:.0f} ms"
    picture = _picture_name(retriever, ask) if ask.pictured else ""
    reading = describe(terms, picture) if len(terms) > 1 or terms[0].weight != 1 else []
    subject = "for" if reading else f"like {picture}" if alone else f"for “{_short(ask.words)}”"
    plain = ask.kind == "words" and not reading
    satisfying = retriever.satisfying(ask.words, only) if plain else frozenset()
    caveat = retriever.caveat(question, only)
    remarks = (
        _truth(satisfying, hits),
        "" if question.terms else NOTHING_ASKED,
        caveat,
        _out_of_reach(retriever, hits),
        "This gallery has no captions." if alone and not captions else "",
        retriever.remark(*(term.words for term in terms if term.image is None)),
    )
    searched = retriever.searchable(spec, only)
    pictures = "picture" if searched == 1 else "pictures"
    return Answer(
        f"{len(hits)} of {searched:,} {pictures} {subject}",
        (
            retriever.title_of(spec),
            spent if caveat else f"{spent}, exact",
            filters.describe(wanted),
            *remarks,
        ),
        hits,
        _distinct(captions)[: min(count, MAX_CAPTIONS)],
        tuple(_short(part) for part in reading),
        tuple(_short(term.words) or picture for term in question.terms),
        winners,
        satisfying,
    )


def examples(retriever: Retriever, count: int) -> list[str]:
    """Sentences to try: short captions from all over the collection, padded with empty ones."""
    captions = [text for text, _ in retriever.collection.captions if len(text) <= _LONGEST_EXAMPLE]
    if not captions:
        return list(_EXAMPLES[:count])
    chosen = list(dict.fromkeys(captions[:: max(1, len(captions) // count)]))[:count]
    return chosen + [""] * (count - len(chosen))


def algebra_example(retriever: Retriever) -> str:
    """A query of several terms to try, from what the collection shows most often."""
    things = Counter(name for p in retriever.collection.pictures for name in set(p.objects))
    common = [name for name, _ in things.most_common(3)]
    return "2: {} + {} - {}".format(*common) if len(common) == 3 else _ALGEBRA_EXAMPLE


def _sample(retriever: Retriever, only: frozenset[int] | None, wanted: Wanted) -> Answer:
    """Pictures from all over the collection, or of what the filters leave of it."""
    pictures = [p for p in retriever.collection.pictures if only is None or p.image_id in only]
    step = max(1, len(pictures) // _SAMPLE)
    hits = [Hit(p.image_id, p.file, 0.0, 0, 0) for p in pictures[::step][:_SAMPLE]]
    count = len(pictures)
    summary = "One picture to search" if count == 1 else f"{count:,} pictures to search"
    invitation = "Type what you look for, or choose one to look inside."
    return Answer(summary, (filters.describe(wanted), invitation), hits)


def _out_of_reach(retriever: Retriever, hits: Sequence[Hit]) -> str:
    """Which found pictures' files lie where this machine cannot read them, and what to do."""
    reasons = []
    for hit in hits if retriever.collection.store is not None else ():
        try:
            retriever.picture(hit.image_id).reached()
        except ValueError as error:
            reasons.append(str(error))
    if not reasons:
        return ""
    return f"Not shown: {len(reasons)} of these pictures. For one, {reasons[0]}."


def _terms(retriever: Retriever, ask: Ask) -> list[Term]:
    """What a question asks for, term by term; a picture comes first."""
    if not ask.pictured:
        return parse(checked(ask.words))
    picture = _asked_picture(retriever, ask)
    if not ask.words.strip():
        return [Term(image=picture)]
    return [Term(image=picture, weight=ask.weight), *parse(checked(ask.words))]


def _truth(satisfying: frozenset[int], hits: list[Hit]) -> str:
    """How many pictures are known to satisfy a caption, and how many of them were found."""
    if not satisfying:
        return ""
    count, found = len(satisfying), sum(hit.image_id in satisfying for hit in hits)
    if count == 1:
        known = "the one picture known to satisfy it"
        return f"Ticked: {known}." if found else f"Not among these: {known}."
    return f"Ticked: {found} of the {count} pictures known to satisfy it."


def _distinct(captions: list[CaptionHit]) -> list[CaptionHit]:
    """The best hit of each text."""
    best: dict[str, CaptionHit] = {}
    for caption in captions:
        best.setdefault(caption.text, caption)
    return list(best.values())


def _asked_picture(retriever: Retriever, ask: Ask) -> Image.Image:
    if ask.kind == "picture":
        return retriever.open(ask.image_id)
    if not ask.path:
        raise ValueError("there is no picture; upload one first")
    return open_picture(Path(ask.path))


def _picture_name(retriever: Retriever, ask: Ask) -> str:
    return Path(ask.path).name if ask.kind == "upload" else retriever.picture(ask.image_id).file


def _short(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= _LONGEST_SHOWN else f"{words[: _LONGEST_SHOWN - 1]}…"
