"""Questions as people ask them, and their answers.

a dog on a beach                one term
dog + beach - people            scores are added and subtracted
2: dog + 0.5: beach             terms are weighted
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from PIL import Image

from polyview.app.gallery.scan import Collection
from polyview.app.search.hits import Answer, QueryTerm, Unknown
from polyview.app.search.ranking import Term
from polyview.app.search.retriever import Retriever
from polyview.export.pack.schema import PackInfo

MAX_QUERY = 10_000  # characters
MAX_TERMS = 16
MAX_WEIGHT = 100.0
_SIGN = re.compile(r"(?:^|(?<=\s))([+-])(?=\s|$)")  # a sign surrounded by spaces
_WEIGHT = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)\s*:(?=\s|$))?\s*(.*)", re.DOTALL)
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


def parse(text: str) -> list[Term]:
    """Parses a query; a sentence without signs is one term of weight 1.

    Args:
        text: words with " + ", " - " and "weight:" as at the top of the module. A hyphen within a
            word is part of the word.

    Raises:
        ValueError: no words, or too many; a sign without words, or a weight out of range.

    >>> [(t.weight, t.words) for t in parse("2: dog + t-shirt - people")]
    [(2.0, 'dog'), (1.0, 't-shirt'), (-1.0, 'people')]
    """
    if not text.strip():
        raise ValueError("the query is empty; type what the image should show")
    if len(text) > MAX_QUERY:
        raise ValueError(
            f"the query has {len(text):,} characters; use at most {MAX_QUERY:,}, a sentence is best"
        )
    pieces = _SIGN.split(text)  # words, sign, words, sign, words ...
    pieces = ["+", *pieces] if pieces[0].strip() else pieces[1:]
    if len(pieces) > 2 * MAX_TERMS:
        raise ValueError(
            f"the query has {len(pieces) // 2} terms; use at most {MAX_TERMS}, or write a sentence"
        )
    terms = []
    for sign, part in zip(pieces[::2], pieces[1::2], strict=True):
        number, words = _WEIGHT.fullmatch(part).groups()  # type: ignore[union-attr]
        weight, words = float(number or 1), words.strip()
        if not words:
            before = f"{number}:" if number else sign
            raise ValueError(
                f'there are no words after "{before}"; write a word there or leave it out'
            )
        if weight > MAX_WEIGHT:
            raise ValueError(f"a weight must be a number of at most {MAX_WEIGHT:g}, not {weight:g}")
        terms.append(Term(words, weight=-weight if sign == "-" else weight))
    return terms


def describe(terms: Sequence[Term], typed: bool = False) -> list[str]:
    """Describes the terms of a query; with `typed` by the signs that people type.

    >>> describe(parse("2: dog + beach -  people"), typed=True)
    ['2: dog', '+ beach', '- people']
    """
    minus, times = ("-", ":") if typed else ("\N{MINUS SIGN}", " \N{MULTIPLICATION SIGN}")
    parts = []
    for i, term in enumerate(terms):
        sign = f"{minus} " if term.weight < 0 else "+ " if i else ""
        size = "" if abs(term.weight) == 1 else f"{abs(term.weight):g}{times} "
        parts.append(f"{sign}{size}{' '.join(term.words.split()) or term.name}")
    return parts


@dataclass(frozen=True)
class Question:
    """Words, or an image, or both, and examples."""

    words: str = ""  # a sentence, or several terms, see `parse`
    image_id: int | None = None  # a query image of the collection
    image: Image.Image | None = None  # a decoded query image from elsewhere
    weight: float = 1.0  # of the image's scores if there are also words
    more: Sequence[int] = ()  # images of the collection that results should be like
    less: Sequence[int] = ()  # images that results should not be like

    def terms(self, retriever: Retriever) -> list[Term]:
        """The terms of the question: an image first, then words, then examples.

        Examples together have the weight of a sentence, negative ones half of it. Raises ValueError
        for an unknown image, and for words that cannot be read.
        """
        terms = []
        if self.image is not None:
            terms = [Term(image=self.image, name="the image")]
        elif self.image_id is not None:
            image = retriever.image(self.image_id)
            terms = [Term(image=image, name=image.file)]
        examples = [
            Term(image=image, weight=weight / len(images), name=f"like {Path(image.file).name}")
            for weight, images in ((1.0, self.more), (-0.5, self.less))
            for image in map(retriever.image, images)
        ]
        if self.words.strip() or not (terms or examples):
            terms = [replace(term, weight=self.weight) for term in terms] + parse(self.words)
        return [*terms, *examples]


def answer(
    retriever: Retriever,
    question: Question,
    spec: str,
    k: int,
    filters: Mapping[str, Sequence[str]] | None = None,
) -> Answer:
    """Answers a question; images of the collection in the question are no hits.

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
    own_ids = (question.image_id, *question.more, *question.less)
    own = {collection.file_id(image_id) for image_id in own_ids if image_id is not None}
    result = retriever.search(terms, spec, k + len(own), only, captions=k if alone else 0)
    others = [h for h in result.hits if not own or collection.file_id(h.image_id) not in own]
    result.searched -= len(result.hits) - len(others)
    result.hits, result.k = others[:k], k
    relevant = known_to_satisfy(collection, terms)
    for rank, hit in enumerate(result.hits, start=1):
        hit.rank = rank
        if relevant:
            hit.satisfies = collection.file_id(hit.image_id) in relevant
    sent = question.image
    unlike = None if sent is None else retriever.runtime.unfamiliar([sent])
    result.query, result.read_as = question.words, ", ".join(describe(terms))
    result.filters = {fact: [*dict.fromkeys(values)] for fact, values in (filters or {}).items()}
    result.terms = [QueryTerm(words=term.words, weight=term.weight) for term in terms]
    result.unfamiliar = None if unlike is None else bool(unlike.any())
    result.unknown = []
    for typed, read_as in retriever.unknown(*texts).items():
        word, known = typed[:_LONGEST_WORD], [] if read_as else retriever.runtime.reader.words()
        nearest = get_close_matches(word.lower(), known, _NEAREST, _ALIKE)
        result.unknown.append(Unknown(word=word, nearest=nearest, read_as=read_as))
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
    chosen, facts = list[frozenset[int]](), collection.facts
    for fact, values in filters.items():
        if fact not in facts:
            known = f"choose one of {', '.join(facts)}" if facts else "they have no metadata"
            raise ValueError(f'images cannot be filtered by "{fact[:80]}"; {known}')
        if lacking := [value for value in values if value not in facts[fact]]:
            some = [*list(facts[fact])[:_VALUES], *(["…"] if len(facts[fact]) > _VALUES else [])]
            raise ValueError(
                f'no image has the {fact} "{lacking[0][:80]}"; choose from {", ".join(some)}'
            )
        chosen.append(frozenset().union(*(facts[fact][value] for value in values)))
    return frozenset.intersection(*chosen) if chosen else None


def remark(retriever: Retriever, *texts: str) -> str:
    """Remarks about how the words were read; empty if there are none."""
    tokens = [retriever.read(text) for text in texts]
    remarks = []
    if longest := max((len(read.ids) for read in tokens if read.truncated), default=0):
        remarks.append(f"Only the first {longest} words were read.")
    named = {f"“{w[:_LONGEST_WORD]}”": known for w, known in retriever.unknown(*texts).items()}
    if unknown := [word for word, known in named.items() if known is None]:
        remarks.append(f"Unknown to this pack: {', '.join(unknown)}.")
    remarks += [f"{word} is read as “{known}”." for word, known in named.items() if known]
    aspects = unsupported_aspects(retriever.info, *texts)
    remarks += [sentence for name, sentence in _UNSUPPORTED.items() if name in aspects]
    if not retriever.index.complete:
        remarks.append(f"The gallery is not complete yet ({retriever.index.progress}).")
    return " ".join(remarks)


def known_to_satisfy(collection: Collection, terms: Sequence[Term]) -> frozenset[int]:
    """Ids of the images known to satisfy a query that is a caption of the collection."""
    plain = len(terms) == 1 and terms[0].image is None and terms[0].weight == 1
    words = " ".join(terms[0].words.split()) if plain else ""
    return collection.relevant.get(words, frozenset())


def unsupported_aspects(pack: PackInfo, *texts: str) -> list[str]:
    """Query aspects in texts, "negation" and "sides", that no method handles.

    Negation is unsupported in every pack: for captions that deny an object, no method of this
    project ranks the right image above one with that object in more than half of the cases
    (docs/results.md). Sides and heights are unsupported in packs whose methods were measured with
    `training.evaluate --foils` and scored fewer than 60 % of the true captions above those with the
    opposite relation.
    """
    values = [method.metrics.values for method in pack.methods.values() if method.metrics]
    measured = [metrics[_SIDES_MEASURE] for metrics in values if _SIDES_MEASURE in metrics]
    aspects = ["negation"] if any(map(_NEGATION.search, texts)) else []
    if any(map(_SIDES.search, texts)) and measured and max(measured) < _DISTINGUISHED:
        aspects.append("sides")
    return aspects
