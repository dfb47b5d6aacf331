"""Finds a known word to replace an unknown word: another form of the word, or a synonym.

A pack with word vectors knows only the words of its training captions, such as "puppy" but not
"puppies". Two words are forms of each other if they may derive from the same base word; a few rules
find the bases of English words. `words.txt` has irregular forms and synonyms of common subjects.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from polyview.export.pack.calibration import SMALL_WORDS
from polyview.export.texts import Tokens

_MIN_LETTERS = 3  # minimum for a word and for a verb's stem: "king" is not a form of "k"
_MAX_LETTERS = 30  # maximum for a word
_NOT_PLURAL = {"news", "means", "goods"}  # words that do not derive from "new", "mean", "good"
_PLURALS = (  # the ending of a plural, and the ending of its singular
    ("men", "man"), ("ies", "y"), ("ves", "f"), ("ves", "fe"), ("ses", "s"), ("xes", "x"),
    ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("oes", "o"), ("s", ""),
)  # fmt: skip
# stems that double their last letter before "ing", such as "run" in "running"
_DOUBLED = re.compile(r"[^aeiou]*[aeiou][bdgklmnprt]")


def reword(tokens: Tokens, text: str, known_words: frozenset[str]) -> str:
    """Replaces the unknown words of a text by known words; `tokens` are the text's tokens."""
    pieces, last_end = list[str](), 0
    for index, original in tokens.unknown.items():
        if word := find_replacement(original, known_words):
            start, end = tokens.spans[index]
            pieces += [text[last_end:start], word]
            last_end = end
    return "".join([*pieces, text[last_end:]])


def find_replacement(word: str, known_words: frozenset[str]) -> str | None:
    """Returns the known word that replaces an unknown word; None if no known word is related.

    >>> known = frozenset("dogs dog run cat bike riding leaf sofas man".split())
    >>> [find_replacement(word, known) for word in ("Leaves", "running", "bikes", "rides", "men")]
    ['leaf', 'run', 'bike', 'riding', 'man']
    >>> [find_replacement(word, known) for word in ("puppies", "puppy", "kittens", "couches")]
    ['dogs', 'dog', 'cat', 'sofas']
    >>> [find_replacement(word, known) for word in ("zebra", "cute", "x" * 1000, "dog's", "7")]
    [None, None, None, None, None]
    """
    word = word.lower()
    if not word.isalpha() or not _MIN_LETTERS <= len(word) <= _MAX_LETTERS:
        return None
    # prefer a word with the same ending: "cats" rather than "cat" for "kittens"
    ending = next((end for end in ("ing", "ed", "s") if word.endswith(end)), "")
    for base in (*_bases(word), *_synonyms(word)):
        if words := _words_by_base(known_words).get(base):
            return min(words, key=lambda form: (not form.endswith(ending), len(form), form))
    return None


@cache
def _words_by_base(known_words: frozenset[str]) -> dict[str, list[str]]:
    """Maps each base word to the known words that may derive from it."""
    words: dict[str, list[str]] = {}
    for word in known_words - SMALL_WORDS:
        for base in _bases(word):
            words.setdefault(base, []).append(word)
    return words


@cache
def _groups(name: str) -> list[list[str]]:
    """Returns the groups of words in a section of words.txt, which has a group on each line."""
    text = Path(__file__).with_name("words.txt").read_text("utf-8")
    section = text.partition(f"[{name}]")[2].partition("[")[0]
    return [line.split() for line in section.splitlines()[1:] if line]


def _synonyms(word: str) -> Iterator[str]:
    """Yields synonyms and generalisations of a word, each followed by its base words."""
    for base in (word, *_bases(word)):
        names = [name for group in _groups("synonyms") if base in group for name in group]
        names += [name for name, *kinds in _groups("kinds") if base in kinds]
        for name in names:
            yield from (name, *_bases(name))


def _bases(word: str) -> list[str]:
    """Returns the words that a word may derive from, the most likely first, then the word itself.

    >>> [_bases(word)[0] for word in ("puppies", "wolves", "boxes", "fishermen", "grass")]
    ['puppy', 'wolf', 'box', 'fisherman', 'grass']
    >>> [_bases(word)[0] for word in ("running", "falling", "hiking", "carried", "news")]
    ['run', 'fall', 'hike', 'carry', 'news']
    """
    bases = [base for base, *others in _groups("irregular") if word in others]
    if not word.endswith("ss") and word not in _NOT_PLURAL:
        bases += [word.removesuffix(end) + base for end, base in _PLURALS if word.endswith(end)]
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem == word or len(stem) < _MIN_LETTERS:
            continue
        if stem.endswith("i"):
            bases.append(f"{stem[:-1]}y")
        elif stem[-1] == stem[-2]:  # "falling" derives from "fall", "running" from "run"
            bases += [stem, stem[:-1]] if stem[-1] in "lsfz" else [stem[:-1], stem]
        else:  # "hiking" derives only from "hike": "hik" would double its "k"
            bases += [f"{stem}e"] if _DOUBLED.fullmatch(stem) else [stem, f"{stem}e"]
    return [*(base for base in bases if len(base) > 1), word]
