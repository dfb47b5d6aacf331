"""Endpoints that find images: by words, by an image, or both; comparison, lens and timeline.

A query of words has terms, whose scores are weighted and added: "2: dog + 0.5: beach - people".
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from PIL import Image

from polyview.app.api import answers
from polyview.app.api import parameters as p
from polyview.app.explain.views import Lens, search_weighted
from polyview.app.gallery.images import decode
from polyview.app.gallery.scan import Collection
from polyview.app.packs.state import AppState
from polyview.app.search import comparison
from polyview.app.search.hits import Answer, QueryTerm, Unknown, add_layout, add_size
from polyview.app.search.retriever import Retriever, Term
from polyview.export.pack.schema import PackInfo

MAX_TERMS = 16
_SIGN = re.compile(r"(?:^|(?<=\s))([+-])(?=\s|$)")  # a sign surrounded by spaces
_WEIGHT = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)\s*:(?=\s|$))?\s*(.*)", re.DOTALL)
_UNSUPPORTED = {
    "sides": "These methods do not distinguish left from right or above from below.",
    "negation": "These methods ignore negation; subtract the object instead: “dog - 0.5: cat”.",
}
_NEGATION = re.compile(r"\b(no|not(?! just| only)|without|lacks|lacking)\b", re.IGNORECASE)
_SIDES = re.compile(r"\b(left|right|above|below|beneath|higher|lower)\b", re.IGNORECASE)
_SIDES_MEASURE = "foil_replaced_relation"  # percent of captions scored above a false relation
_MIN_SIDES = 60.0  # minimum percent of a method that supports sides; guesses score less
_MAX_WORD = 40  # characters of an unknown word in an answer
_MAX_VALUES = 20  # values of a fact that an error message lists


def parse(text: str) -> list[Term]:
    """Parses a query of words into terms; a hyphen within a word is not a sign.

    Raises ValueError if the text is empty or longer than `MAX_QUERY`, has more than `MAX_TERMS`
    terms, a sign or weight without words, or a weight above `MAX_WEIGHT`.

    >>> [(t.weight, t.words) for t in parse("2: dog + t-shirt - people")]
    [(2.0, 'dog'), (1.0, 't-shirt'), (-1.0, 'people')]
    """
    if not text.strip():
        raise ValueError("the query is empty; type what the image should show")
    if len(text) > p.MAX_QUERY:
        raise ValueError(f"the query has {len(text):,} characters; use at most {p.MAX_QUERY:,}")
    pieces = _SIGN.split(text)  # words, sign, words, sign, words ...
    pieces = ["+", *pieces] if pieces[0].strip() else pieces[1:]
    if len(pieces) > 2 * MAX_TERMS:
        raise ValueError(f"the query has {len(pieces) // 2} terms; use at most {MAX_TERMS}")
    terms = []
    for sign, piece in zip(pieces[::2], pieces[1::2], strict=True):
        number, words = _WEIGHT.fullmatch(piece).groups()  # type: ignore[union-attr]
        weight, words = float(number or 1), words.strip()
        if not words:
            prefix, advice = f"{number}:" if number else sign, "add a word or remove that part"
            raise ValueError(f'there are no words after "{prefix}"; {advice}')
        if weight > p.MAX_WEIGHT:
            raise ValueError(f"a weight must be at most {p.MAX_WEIGHT:g}, not {weight:g}")
        terms.append(Term(words, weight=-weight if sign == "-" else weight))
    return terms


def describe(terms: Sequence[Term], typed: bool = False) -> list[str]:
    """Returns a description of each term; with `typed`, in the syntax of `parse`.

    >>> describe(parse("2: dog + beach -  people"), typed=True)
    ['2: dog', '+ beach', '- people']
    """
    minus, times = ("-", ":") if typed else ("\N{MINUS SIGN}", " \N{MULTIPLICATION SIGN}")
    descriptions = []
    for i, term in enumerate(terms):
        sign = f"{minus} " if term.weight < 0 else "+ " if i else ""
        factor = "" if abs(term.weight) == 1 else f"{abs(term.weight):g}{times} "
        descriptions.append(f"{sign}{factor}{' '.join(term.words.split()) or term.name}")
    return descriptions


@dataclass(frozen=True)
class Question:
    """A query of words, an image or both, with optional example images."""

    words: str = ""  # a sentence, or several terms, see `parse`
    image_id: int | None = None  # a query image of the collection
    image: Image.Image | None = None  # a decoded query image outside the collection
    weight: float = 1.0  # weight of the query image in a query with words
    more: Sequence[int] = ()  # ids of images that hits should resemble
    less: Sequence[int] = ()  # ids of images that hits should not resemble

    def terms(self, retriever: Retriever) -> list[Term]:
        """Returns the terms: the image, the words, then the examples.

        The images of `more` together have the weight 1, and those of `less` the weight -0.5.
        Raises ValueError if the words cannot be parsed, or an image is not in the collection.
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
    filters: Sequence[str] = (),
    layout: bool = False,
) -> Answer:
    """Finds the best `k` images; if the question is a single image, also the best `k` captions.

    The hits do not include images of the question. `spec` is a method of the pack, or several
    joined by "+", whose scores are averaged. `filters` are texts `fact:value`, see `filter_ids`.
    With `layout`, calls `add_layout`. Raises ValueError if the question, the method or a filter is
    not valid, `Refusal` if nothing is searchable yet.
    """
    facts = group_by_key(filters, "filter", "setting:beach")
    collection, file_ids = retriever.collection, filter_ids(retriever.collection, facts)
    terms = question.terms(retriever)
    texts = [term.words for term in terms if term.image is None]
    query_ids = (question.image_id, *question.more, *question.less)
    query_files = {collection.file_id(image_id) for image_id in query_ids if image_id is not None}
    caption_count = k if len(terms) == 1 and not (texts or question.more or question.less) else 0
    result = retriever.search(terms, spec, k + len(query_files), file_ids, caption_count)
    hits = result.hits
    if query_files:  # the images of the query itself are left out
        hits = [hit for hit in hits if collection.file_id(hit.image_id) not in query_files]
    result.searched -= len(result.hits) - len(hits)
    result.hits, result.k = hits[:k], k
    relevant = retriever.relevant_files(terms)
    for rank, hit in enumerate(result.hits, start=1):
        hit.rank = rank
        if relevant:
            hit.satisfies = collection.file_id(hit.image_id) in relevant
    result.query, result.read_as = question.words, ", ".join(describe(terms))
    result.filters = {fact: [*dict.fromkeys(values)] for fact, values in facts.items()}
    result.terms = [QueryTerm(words=term.words, weight=term.weight) for term in terms]
    result.unfamiliar, domain = None, retriever.info.domain
    if question.image is not None and domain is not None:
        features = retriever.runtime.image_features([question.image]).cpu().numpy()
        result.unfamiliar = bool(domain.distances(features)[0] > domain.limit)
    result.unknown = []
    for original, replacement in retriever.unknown_words(*texts).items():
        word = original[:_MAX_WORD]
        choices = [] if replacement else sorted(retriever.runtime.reader.words)
        nearest = get_close_matches(word.lower(), choices, n=2, cutoff=0.65)
        result.unknown.append(Unknown(word=word, nearest=nearest, read_as=replacement))
    result.unsupported = unsupported_aspects(retriever.info, *texts)
    result.remark = " ".join(filter(None, (result.remark, remark(retriever, *texts))))
    if layout:
        add_layout(result.hits, retriever.thumbnails(hit.image_id for hit in result.hits))
    return result


def filter_ids(
    collection: Collection, filters: Mapping[str, Sequence[str]]
) -> frozenset[int] | None:
    """Returns the ids of the images that have, for every fact, one of its values in `filters`.

    Returns None without filters. Raises ValueError if no image has a fact or a value.
    """
    id_sets, facts = list[frozenset[int]](), collection.facts
    for fact, values in filters.items():
        if fact not in facts:
            advice = f"choose one of {', '.join(facts)}" if facts else "they have no metadata"
            raise ValueError(f'images cannot be filtered by "{fact[:80]}"; {advice}')
        if unknown_values := [value for value in values if value not in facts[fact]]:
            choices = ", ".join(list(facts[fact])[:_MAX_VALUES])
            ellipsis = ", ..." if len(facts[fact]) > _MAX_VALUES else ""
            advice = f"choose one of {choices}{ellipsis}"
            raise ValueError(f'no image has the {fact} "{unknown_values[0][:80]}"; {advice}')
        id_sets.append(frozenset().union(*(facts[fact][value] for value in values)))
    return frozenset.intersection(*id_sets) if id_sets else None


def remark(retriever: Retriever, *texts: str) -> str:
    """Returns remarks on long texts, unknown words, unsupported aspects and partial galleries."""
    tokens = [retriever.tokenize(text) for text in texts]
    remarks = []
    if limit := max((len(t.ids) for t in tokens if t.truncated), default=0):
        remarks.append(f"The query is longer than {limit} tokens; the rest is ignored.")
    replacements = retriever.unknown_words(*texts)
    readings = {f"“{word[:_MAX_WORD]}”": reading for word, reading in replacements.items()}
    if unknown := [word for word, reading in readings.items() if reading is None]:
        remarks.append(f"Unknown to this pack: {', '.join(unknown)}.")
    remarks += [f"{word} is read as “{reading}”." for word, reading in readings.items() if reading]
    aspects = unsupported_aspects(retriever.info, *texts)
    remarks += [sentence for name, sentence in _UNSUPPORTED.items() if name in aspects]
    if not retriever.index.complete:
        remarks.append(f"The gallery is not complete yet ({retriever.index.progress}).")
    return " ".join(remarks)


def unsupported_aspects(pack: PackInfo, *texts: str) -> list[str]:
    """Returns the aspects of texts, "negation" and "sides", that no method of the pack handles.

    No method of this project handles negation (docs/results.md). Sides (left, right, above, below)
    are unsupported if methods of the pack were measured with `evaluate --foils`, and none of them
    scored at least 60 % of the true captions above captions with the opposite relation.
    """
    values = [method.metrics.values for method in pack.methods.values() if method.metrics]
    percentages = [metrics[_SIDES_MEASURE] for metrics in values if _SIDES_MEASURE in metrics]
    aspects = ["negation"] if any(map(_NEGATION.search, texts)) else []
    if any(map(_SIDES.search, texts)) and percentages and max(percentages) < _MIN_SIDES:
        aspects.append("sides")
    return aspects


def decode_image(content: bytes | None) -> Image.Image | None:
    """Decodes an uploaded image; returns None without content. Raises ImageError for a bad file."""
    return decode(io.BytesIO(content), "the image") if content else None


def search_text(
    retriever: Retriever,
    query: p.Words = "",
    method: p.Method = "",
    k: p.Count = 10,
    filters: p.Facts = p.NONE,
    like: p.Like = None,
    more: p.ImageIds = p.NONE,
    less: p.ImageIds = p.NONE,
    weight: p.Weight = 1.0,
    layout: p.Layout = False,
) -> Answer:
    """Finds the images that best match words, an image of the collection, or example images."""
    question = Question(query, like, None, weight, more, less)
    return answer(retriever, question, method, k, filters, layout)


def search_image(
    retriever: Retriever,
    image: p.Content,
    method: p.Method = "",
    k: p.Count = 10,
    query: p.Words = "",
    weight: p.Weight = 1.0,
    filters: p.Facts = p.NONE,
    layout: p.Layout = False,
) -> Answer:
    """Finds the images that best match an image, with or without words.

    Without words, also finds the best captions of the collection.
    """
    question = Question(query, image=decode_image(image), weight=weight)
    result = answer(retriever, question, method, k, filters, layout)
    result.images = result.hits
    return result


def compare(
    state: AppState,
    retriever: Retriever,
    query: p.Words,
    methods: p.Methods,
    k: p.CompareCount = 10,
    like: p.Like = None,
) -> comparison.Comparison:
    """Ranks the images by several methods and measures how far the methods agree."""
    terms = Question(query, like).terms(retriever)
    result = comparison.compare(retriever, state.peers(retriever), terms, methods, k, like)
    texts = [term.words for term in terms if term.image is None]
    result.query = " ".join(describe(terms, typed=True))
    result.remark = remark(retriever, *texts) if texts else ""
    thumbnails = retriever.thumbnails(list(result.ranks))
    for hit in (hit for column in result.columns for hit in column.hits):
        image = retriever.image(hit.image_id)
        hit.file, hit.captions = image.file, list(image.captions)
        if image.moment is not None:
            hit.seconds, hit.frame = image.moment.seconds, image.moment.frame
        add_size(hit, thumbnails)
    return result


def lens(
    retriever: Retriever,
    query: p.Words,
    method: p.Method,
    weights: p.Weights,
    k: p.Count = 10,
    layout: p.Layout = False,
) -> Lens:
    """Finds the images that best match a sentence, with a weight for each view of an image."""
    result = search_weighted(retriever, query, method, weights, k)
    if layout:
        add_layout(result.hits, retriever.thumbnails(hit.image_id for hit in result.hits))
    result.remark = remark(retriever, query)
    return result


def timeline(
    retriever: Retriever, image: p.ImageId, query: p.Words, method: p.Method = ""
) -> answers.Hits:
    """Scores the indexed frames of a clip, in time order."""
    frames = retriever.timeline(image, parse(query), method)
    return answers.Hits(total=len(frames), hits=frames)


def group_by_key(texts: Sequence[str], name: str, example: str) -> dict[str, list[str]]:
    """Groups `key:value` texts by key; raises ValueError if a text has no colon.

    >>> group_by_key(["setting:beach", "setting:sea"], "filter", "setting:beach")
    {'setting': ['beach', 'sea']}
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        key, colon, value = text.partition(":")
        if not colon:
            raise ValueError(f'{name} must be key:value, such as {example}, not "{text[:80]}"')
        values.setdefault(key, []).append(value)
    return values
