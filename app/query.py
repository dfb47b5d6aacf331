"""Queries of several terms, each with a weight: words to add, words to take away, pictures.

    a dog on a beach                one term, the sentence as it is
    dog + beach - people            scores are added and subtracted
    2: dog + 0.5: beach             a weight stands before a colon

The algebra happens between *scores*, never between embeddings, so that it means the same whatever
rule a method scores by: for an image x, score(x) = sum of weight * score(x, term).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

MAX_TERMS = 16
MAX_WEIGHT = 100.0
_SIGN = re.compile(r"(?:^|(?<=\s))([+-])(?=\s|$)")  # a sign with space around it
_WEIGHT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*:(?=\s|$)\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Term:
    """One part of a query: words, or a picture.

    Attributes:
        words: a sentence; empty where the term is a picture.
        image: a picture, or None.
        weight: what its scores are multiplied by; negative to take away.
    """

    words: str = ""
    image: Image.Image | None = None
    weight: float = 1.0


def parse(text: str) -> list[Term]:
    """Reads a query as typed; a sentence without signs is one term of weight 1.

    Args:
        text: words with " + ", " - " and "weight:" as in the module's head. A hyphen within a word
            is a letter like any other.

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


def write(terms: Sequence[Term]) -> str:
    """A query as a person would type it; pictures are called "picture".

    >>> write(parse("2: dog  -   people"))
    '2: dog - people'
    """
    parts = []
    for i, term in enumerate(terms):
        sign = "-" if term.weight < 0 else "+"
        size = "" if abs(term.weight) == 1 else f"{abs(term.weight):g}: "
        lead = "" if i == 0 and sign == "+" else f"{sign} "
        parts.append(f"{lead}{size}{' '.join(term.words.split()) or 'picture'}")
    return " ".join(parts)


def _term(sign: str, part: str) -> Term:
    weight, words = 1.0, part.strip()
    if match := _WEIGHT.fullmatch(part):
        weight, words = float(match[1]), match[2].strip()
    if not words:
        raise ValueError(f'there are no words after "{sign}"; write a word there or leave it out')
    if not math.isfinite(weight) or weight > MAX_WEIGHT:
        raise ValueError(f"a weight must be at most {MAX_WEIGHT:g}, not {weight:g}")
    return Term(words, weight=-weight if sign == "-" else weight)
