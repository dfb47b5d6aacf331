"""Queries of several weighted terms: words to add, words to subtract, images.

    a dog on a beach                one term
    dog + beach - people            scores are added and subtracted
    2: dog + 0.5: beach             terms are weighted

*Scores* are combined, not embeddings, so that the result does not depend on a method's scoring
rule: for an image x, score(x) = sum of weight * score(x, term).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image

from polyview.app.gallery.scan import CollectionImage

MAX_QUERY = 10_000  # characters
MAX_TERMS = 16
MAX_WEIGHT = 100.0
_SIGN = re.compile(r"(?:^|(?<=\s))([+-])(?=\s|$)")  # a sign surrounded by spaces
_WEIGHT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*:(?=\s|$)\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Term:
    """One part of a query: words, or an image.

    Attributes:
        words: a sentence; empty for an image.
        image: an image, or None.
        weight: factor of its scores; negative to subtract.
        name: the name of an image, if the query has several.
        source: the image's entry in its collection, if it is from one.
    """

    words: str = ""
    image: Image.Image | None = None
    weight: float = 1.0
    name: str = ""
    source: CollectionImage | None = None


def checked(text: str) -> str:
    """Validates the words of a query.

    Raises:
        ValueError: it is empty, or longer than 10,000 characters.
    """
    if not text.strip():
        raise ValueError("the query is empty; type what the image should show")
    if len(text) > MAX_QUERY:
        raise ValueError(
            f"the query has {len(text):,} characters; use at most {MAX_QUERY:,}, a sentence is best"
        )
    return text


def checked_k(k: int) -> int:
    """Validates the number of results.

    Raises:
        ValueError: it is not a whole number of at least 1.
    """
    if type(k) is not int or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r:.80}")
    return k


def parse(text: str) -> list[Term]:
    """Parses a query; a sentence without signs is one term of weight 1.

    Args:
        text: words with " + ", " - " and "weight:" as at the top of the module. A hyphen within a
            word is part of the word.

    Raises:
        ValueError: a sign without words, too many terms, or a weight out of range.

    >>> [(t.weight, t.words) for t in parse("2: dog + t-shirt - people")]
    [(2.0, 'dog'), (1.0, 't-shirt'), (-1.0, 'people')]
    >>> [(t.weight, t.words) for t in parse("a dog on a beach")]
    [(1.0, 'a dog on a beach')]
    """
    pieces = _SIGN.split(text)  # words, sign, words, sign, words ...
    pieces = ["+", *pieces] if pieces[0].strip() else pieces[1:]
    if not pieces:
        return [Term(text)]
    if len(pieces) > 2 * MAX_TERMS:
        raise ValueError(
            f"the query has {len(pieces) // 2} terms; use at most {MAX_TERMS}, or write a sentence"
        )
    signs, words = pieces[::2], pieces[1::2]
    return [_term(sign, part) for sign, part in zip(signs, words, strict=True)]


def describe(terms: Sequence[Term], image: str = "image", typed: bool = False) -> list[str]:
    """Describes the terms of a query.

    Args:
        terms: the terms.
        image: the name of an image without a name.
        typed: use the signs that people type.

    >>> describe(parse("2: dog + beach -  people"), typed=True)
    ['2: dog', '+ beach', '- people']
    """
    minus, times = ("-", ":") if typed else ("\N{MINUS SIGN}", " \N{MULTIPLICATION SIGN}")
    parts = []
    for i, term in enumerate(terms):
        sign = f"{minus} " if term.weight < 0 else "+ " if i else ""
        size = "" if abs(term.weight) == 1 else f"{abs(term.weight):g}{times} "
        parts.append(f"{sign}{size}{' '.join(term.words.split()) or term.name or image}")
    return parts


def combined(terms: Sequence[Term]) -> list[Term]:
    """Adds up equal terms and drops terms with a total weight of 0.

    >>> [(t.weight, t.words) for t in combined(parse("dog + beach + dog - beach"))]
    [(2.0, 'dog')]
    """
    weights: dict[tuple[str, int | None], float] = {}
    first: dict[tuple[str, int | None], Term] = {}
    for term in terms:
        key = (" ".join(term.words.split()), None if term.image is None else id(term.image))
        first.setdefault(key, term)
        weights[key] = weights.get(key, 0.0) + term.weight
    # Sums of decimal weights are subject to rounding.
    left = {key: weight for key, weight in weights.items() if abs(weight) > 1e-9}
    return [replace(first[key], weight=weight) for key, weight in left.items()]


def _term(sign: str, part: str) -> Term:
    weight, words = 1.0, part.strip()
    if match := _WEIGHT.fullmatch(part):
        weight, words = float(match[1]), match[2].strip()
    if not words:
        before = f"{match[1]}:" if match else sign
        raise ValueError(f'there are no words after "{before}"; write a word there or leave it out')
    if weight > MAX_WEIGHT:
        raise ValueError(f"a weight must be a number of at most {MAX_WEIGHT:g}, not {weight:g}")
    return Term(words, weight=-weight if sign == "-" else weight)
