"""Parses queries, answers questions, and remarks on how their words were read.

The scores of terms are weighted and added, as in "2: dog + 0.5: beach - people".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from PIL import Image

from polyview.app.gallery.scan import Collection
from polyview.app.search.hits import Answer, QueryTerm, Unknown
from polyview.app.search.retriever import Retriever, Term
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
_SIDES_MEASURE = "foil_replaced_relation"  # percent of captions scored above their false relation
_DISTINGUISHED = 60.0  # percent; random guesses over a thousand pairs reach less
_LONGEST_WORD = 40  # characters of a word for which others are suggested
_VALUES = 20  # values of a fact in an error message


def parse(text: str) -> list[Term]:
    """Parses a query, see the top of the module; a hyphen within a word is part of the word.

    Raises ValueError if the text is empty or too long, has too many terms or a sign without words,
    or a weight is too large.

    >>> [(t.weight, t.words) for t in parse("2: dog + t-shirt - people")]
    [(2.0, 'dog'), (1.0, 't-shirt'), (-1.0, 'people')]
    """
    if not text.strip():
        raise ValueError("the query is empty; type what the image should show")
    if len(text) > MAX_QUERY:
        raise ValueError(f"the query has {len(text):,} characters; use at most {MAX_QUERY:,}")
    pieces = _SIGN.split(text)  # words, sign, words, sign, words ...
    pieces = ["+", *pieces] if pieces[0].strip() else pieces[1:]
    if len(pieces) > 2 * MAX_TERMS:
        raise ValueError(f"the query has {len(pieces) // 2} terms; use at most {MAX_TERMS}")
    terms = []
    for sign, part in zip(pieces[::2], pieces[1::2], strict=True):
        number, words = _WEIGHT.fullmatch(part).groups()  # type: ignore[union-attr]
        weight, words = float(number or 1), words.strip()
        if not words:
            prefix, advice = f"{number}:" if number else sign, "write a word there or leave it out"
            raise ValueError(f'there are no words after "{prefix}"; {advice}')
        if weight > MAX_WEIGHT:
            raise ValueError(f"a weight must be a number of at most {MAX_WEIGHT:g}, not {weight:g}")
        terms.append(Term(words, weight=-weight if sign == "-" else weight))
    return terms


def describe(terms: Sequence[Term], typed: bool = False) -> list[str]:
    """Returns a description of each term; with `typed`, in the syntax of `parse`.

    >>> describe(parse("2: dog + beach -  people"), typed=True)
    ['2: dog', '+ beach', '- people']
    """
    minus, times = ("-", ":") if typed else ("\N{MINUS SIGN}", " \N{MULTIPLICATION SIGN}")
    parts = []
    for i, term in enumerate(terms):
        sign = f"{minus} " if term.weight < 0 else "+ " if i else ""
        factor = "" if abs(term.weight) == 1 else f"{abs(term.weight):g}{times} "
        parts.append(f"{sign}{factor}{' '.join(term.words.split()) or term.name}")
    return parts


@dataclass(frozen=True)
class Question:
    """A query of words, an image or both, with optional example images."""

    words: str = ""  # a sentence, or several terms, see `parse`
    image_id: int | None = None  # a query image of the collection
    image: Image.Image | None = None  # a decoded query image outside the collection
    weight: float = 1.0  # of the image's scores if there are also words
    more: Sequence[int] = ()  # images of the collection that hits should resemble
    less: Sequence[int] = ()  # images that hits should not resemble

    def terms(self, retriever: Retriever) -> list[Term]:
        """The terms: the image, words, then examples; raises ValueError if one is not valid.

        The positive examples together weigh as much as a sentence, the negative ones half as much.
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
    """Answers a question with `k` images other than its own; for a single image, also captions.

    `spec` is a method of the pack, or an ensemble "a+b". `filters` restrict the images, see
    `satisfying`. Raises ValueError if the question is not valid, or nothing is searchable yet.
    """
    collection, only = retriever.collection, satisfying(retriever.collection, filters or {})
    terms = question.terms(retriever)
    texts = [term.words for term in terms if term.image is None]
    is_image = len(terms) == 1 and not (texts or question.more or question.less)
    query_ids = (question.image_id, *question.more, *question.less)
    omitted = {collection.file_id(image_id) for image_id in query_ids if image_id is not None}
    result = retriever.search(terms, spec, k + len(omitted), only, captions=k if is_image else 0)
    hits = [h for h in result.hits if not omitted or collection.file_id(h.image_id) not in omitted]
    result.searched -= len(result.hits) - len(hits)
    result.hits, result.k = hits[:k], k
    relevant = known_to_satisfy(collection, terms)
    for rank, hit in enumerate(result.hits, start=1):
        hit.rank = rank
        if relevant:
            hit.satisfies = collection.file_id(hit.image_id) in relevant
    result.query, result.read_as = question.words, ", ".join(describe(terms))
    result.filters = {fact: [*dict.fromkeys(values)] for fact, values in (filters or {}).items()}
    result.terms = [QueryTerm(words=term.words, weight=term.weight) for term in terms]
    result.unfamiliar, domain = None, retriever.info.domain
    if question.image is not None and domain is not None:
        features = retriever.runtime.image_features([question.image]).cpu().numpy()
        result.unfamiliar = bool(domain.distances(features)[0] > domain.limit)
    result.unknown = []
    for original, read_as in retriever.unknown(*texts).items():
        word = original[:_LONGEST_WORD]
        words = [] if read_as else sorted(retriever.runtime.reader.known)
        nearest = get_close_matches(word.lower(), words, n=2, cutoff=0.65)
        result.unknown.append(Unknown(word=word, nearest=nearest, read_as=read_as))
    result.unsupported = unsupported_aspects(retriever.info, *texts)
    result.remark = " ".join(filter(None, (result.remark, remark(retriever, *texts))))
    return result


def satisfying(
    collection: Collection, filters: Mapping[str, Sequence[str]]
) -> frozenset[int] | None:
    """Ids of the images that have one of the values for every fact; None without filters.

    Raises ValueError if no image has the value.
    """
    id_sets, facts = list[frozenset[int]](), collection.facts
    for fact, values in filters.items():
        if fact not in facts:
            advice = f"choose one of {', '.join(facts)}" if facts else "they have no metadata"
            raise ValueError(f'images cannot be filtered by "{fact[:80]}"; {advice}')
        if unknown := [value for value in values if value not in facts[fact]]:
            known = ", ".join(list(facts[fact])[:_VALUES])
            more = ", ..." if len(facts[fact]) > _VALUES else ""
            advice = f"choose one of {known}{more}"
            raise ValueError(f'no image has the {fact} "{unknown[0][:80]}"; {advice}')
        id_sets.append(frozenset().union(*(facts[fact][value] for value in values)))
    return frozenset.intersection(*id_sets) if id_sets else None


def remark(retriever: Retriever, *texts: str) -> str:
    """Remarks on how the words were read and on an incomplete gallery; empty for none."""
    tokens = [retriever.read(text) for text in texts]
    remarks = []
    if longest := max((len(t.ids) for t in tokens if t.truncated), default=0):
        remarks.append(f"Only the first {longest} words were read.")
    words = {f"“{w[:_LONGEST_WORD]}”": known for w, known in retriever.unknown(*texts).items()}
    if unknown := [word for word, known in words.items() if known is None]:
        remarks.append(f"Unknown to this pack: {', '.join(unknown)}.")
    remarks += [f"{word} is read as “{known}”." for word, known in words.items() if known]
    aspects = unsupported_aspects(retriever.info, *texts)
    remarks += [sentence for name, sentence in _UNSUPPORTED.items() if name in aspects]
    if not retriever.index.complete:
        remarks.append(f"The gallery is not complete yet ({retriever.index.progress}).")
    return " ".join(remarks)


def known_to_satisfy(collection: Collection, terms: Sequence[Term]) -> frozenset[int]:
    """Ids of the images known to satisfy a query that is a caption of the collection."""
    is_sentence = len(terms) == 1 and terms[0].image is None and terms[0].weight == 1
    words = " ".join(terms[0].words.split()) if is_sentence else ""
    return collection.relevant.get(words, frozenset())


def unsupported_aspects(pack: PackInfo, *texts: str) -> list[str]:
    """The aspects of texts, "negation" and "sides", that no method of the pack handles.

    No method of this project handles negation (docs/results.md). Sides and heights are unsupported
    in packs whose methods were measured with `evaluate --foils` and scored fewer than 60 % of the
    true captions above those with the opposite relation.
    """
    values = [method.metrics.values for method in pack.methods.values() if method.metrics]
    measured = [metrics[_SIDES_MEASURE] for metrics in values if _SIDES_MEASURE in metrics]
    aspects = ["negation"] if any(map(_NEGATION.search, texts)) else []
    if any(map(_SIDES.search, texts)) and measured and max(measured) < _DISTINGUISHED:
        aspects.append("sides")
    return aspects
