"""Known words that replace an unknown one: another form of it, or a synonym.

A pack with word vectors knows only the words of its training captions. People may type "puppies"
where captions say "puppy", or "automobile" where they say "car". English has few endings, so a few
rules find other forms of a word; a short hand-written list, `words.txt`, has synonyms of common
subjects. A proposal of either is used only if the pack knows it.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polyview.export.pack.calibration import SMALL_WORDS
from polyview.export.texts import Tokens

_MIN_LETTERS, _MAX_LETTERS = 3, 30  # of a word, and of a verb's stem: "king" is no form of "k"
_NO_PLURALS = {"news", "means", "goods"}  # of "new", "mean", "good"
_DOUBLED = re.compile(r"[^aeiou]*[aeiou][bdgklmnprt]")  # "run", whose "n" is doubled in "running"


@cache
def _groups(name: str) -> list[list[str]]:
    """The groups of words of a section of words.txt."""
    text = Path(__file__).with_name("words.txt").read_text("utf-8")
    section = text.partition(f"[{name}]")[2].partition("[")[0]
    return [line.split() for line in section.splitlines()[1:] if line]


@dataclass(frozen=True)
class Reworded:
    """A text whose unknown words are replaced by known ones where possible.

    Attributes:
        text: the new text.
        corrections: word as typed -> the known word in its place.
    """

    text: str
    corrections: Mapping[str, str]


def reword(tokens: Tokens, text: str, known_words: Container[str]) -> Reworded:
    """Replaces the unknown words of a text by known ones of the same meaning, see `read_word`.

    Evaluation on captions does not reword: it compares vocabularies, too.

    Args:
        tokens: of the text.
        text: stripped.
        known_words: of the pack.
    """
    corrections, parts, end_of_last = dict[str, str](), list[str](), 0
    for place, typed in tokens.unknown.items():
        if known := read_word(typed, known_words):
            start, end = tokens.spans[place]
            parts += [text[end_of_last:start], known]
            corrections[typed], end_of_last = known, end
    return Reworded("".join([*parts, text[end_of_last:]]), corrections)


def read_word(word: str, known: Container[str]) -> str | None:
    """The known word that replaces an unknown one; None without any.

    >>> vocabulary = {"dogs", "dog", "run", "cat", "bike", "riding", "leaf", "sofas", "man"}
    >>> [read_word(word, vocabulary) for word in ("Leaves", "running", "bikes", "rides", "men")]
    ['leaf', 'run', 'bike', 'riding', 'man']
    >>> [read_word(word, vocabulary) for word in ("puppies", "puppy", "kittens", "couches")]
    ['dogs', 'dog', 'cat', 'sofas']
    >>> [read_word(word, vocabulary) for word in ("zebra", "cute", "x" * 1000, "dog's", "7")]
    [None, None, None, None, None]
    """
    word = word.lower()
    if not word.isalpha() or not _MIN_LETTERS <= len(word) <= _MAX_LETTERS:
        return None
    proposals = (p for p in _proposals(word) if p in known and p not in SMALL_WORDS)
    return next(proposals, None)


def forms(word: str) -> list[str]:
    """Other forms of a word, likely ones first; many are not words.

    >>> forms("puppies")[0], forms("dog")[0], "ran" in forms("running"), "staring" in forms("star")
    ('puppy', 'dogs', True, False)
    >>> [forms(w)[0] for w in ("boxes", "wolves", "cookies", "fishermen", "hiking", "hopped")]
    ['box', 'wolf', 'cooky', 'fisherman', 'hike', 'hop']
    """
    candidates: list[str] = []
    for base in (*_bases(word), word):
        candidates += [base, *_plurals(base), *_inflected(base)]
    return [form for form in dict.fromkeys(candidates) if form != word]


def _proposals(word: str) -> Iterator[str]:
    yield from forms(word)
    for base in (word, *_bases(word)):
        names = [name for group in _groups("synonyms") if base in group for name in group]
        names += [name for name, *kinds in _groups("kinds") if base in kinds]
        for name in names:
            candidates = [name, *forms(name)]
            if base != word:  # prefer the same ending: "cats" rather than "cat" for "kittens"
                ending = next((end for end in ("ing", "ed", "s") if word.endswith(end)), "")
                candidates.sort(key=lambda form: not form.endswith(ending))
            yield from candidates


def _bases(word: str) -> list[str]:
    """Words that a plural or a verb's form may come from, likely ones first."""
    bases = [base for base, *others in _groups("irregular") if word in others]
    if word.endswith("men"):
        bases.append(f"{word[:-3]}man")
    if word.endswith("s") and not word.endswith("ss") and word not in _NO_PLURALS:
        if word.endswith("ies"):
            bases.append(f"{word[:-3]}y")
        if word.endswith("ves"):
            bases += [f"{word[:-3]}f", f"{word[:-3]}fe"]
        if word.endswith(("ses", "xes", "zes", "ches", "shes", "oes")):
            bases.append(word[:-2])
        bases.append(word[:-1])
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _MIN_LETTERS:
            bases += _unstemmed(stem)
    return [base for base in bases if len(base) > 1]


def _unstemmed(stem: str) -> list[str]:
    """Verbs that have this stem before "ing" or "ed".

    >>> [_unstemmed(stem) for stem in ("runn", "fall", "rid", "sleep", "carri")]
    [['run', 'runn'], ['fall', 'fal'], ['ride'], ['sleep', 'sleepe'], ['carry']]
    """
    if stem.endswith("i"):
        return [f"{stem[:-1]}y"]
    if stem[-1] == stem[-2]:
        verbs = [stem[:-1], stem]
        return verbs[::-1] if stem[-1] in "lsfz" else verbs
    return [f"{stem}e"] if _DOUBLED.fullmatch(stem) else [stem, f"{stem}e"]


def _plurals(word: str) -> list[str]:
    plurals = [form for base, *others in _groups("irregular") if word == base for form in others]
    if word.endswith("man"):
        plurals.append(f"{word[:-3]}men")
    if word[-1] == "y" and word[-2:-1] not in tuple("aeiou"):
        return [*plurals, f"{word[:-1]}ies"]
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return [*plurals, f"{word}es"]
    if word.endswith("o"):
        plurals.append(f"{word}es")
    if word.endswith(("f", "fe")):
        plurals.append(f"{word.removesuffix('e')[:-1]}ves")
    return [*plurals, f"{word}s"]


def _inflected(verb: str) -> list[str]:
    """A verb with "ing" and "ed".

    >>> [_inflected(verb) for verb in ("run", "ride", "carry", "jump")]
    [['running', 'runned'], ['riding', 'rided'], ['carrying', 'carried'], ['jumping', 'jumped']]
    """
    if verb.endswith("e"):
        return [f"{verb[:-1]}ing", f"{verb}d"]
    if verb.endswith("y"):
        return [f"{verb}ing", f"{verb[:-1]}ied"]
    stem = verb + verb[-1] if _DOUBLED.fullmatch(verb) else verb
    return [f"{stem}ing", f"{stem}ed"]
