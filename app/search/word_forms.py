"""Known words that replace an unknown one: another form of it, or a synonym.

A pack of word vectors knows the words of its training captions and no others. A person types
"puppies" where the captions say "puppy", or "automobile" where they say "car". English has few
endings, so a few rules find the other forms of a word; a short hand-written list has synonyms of
what people photograph. Both only propose: a proposal is used if the pack knows it.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from polyview.export.pack.calibration import SMALL_WORDS
from polyview.export.texts import Tokens

_MIN_LETTERS, _MAX_LETTERS = 3, 30  # of a word, and of a verb's stem: "king" is no form of "k"
_IRREGULAR = (
    "man men", "woman women", "child children", "person people", "foot feet", "tooth teeth",
    "goose geese", "mouse mice", "ox oxen", "run ran", "sit sat", "stand stood", "swim swam swum",
    "ride rode ridden", "drive drove driven", "eat ate eaten", "hold held", "throw threw thrown",
    "catch caught", "wear wore worn", "fly flew flown", "fall fell fallen", "sleep slept",
    "lie lay lying", "lead led", "sing sang sung", "drink drank drunk", "fight fought",
    "build built", "write wrote written", "draw drew drawn", "blow blew blown", "tie tying",
)  # fmt: skip
_NO_PLURALS = {"news", "means", "goods"}  # of "new", "mean", "good"
_DOUBLED = re.compile(r"[^aeiou]*[aeiou][bdgklmnprt]")  # "run", whose "n" is doubled in "running"

# Groups of synonyms.
_SYNONYMS = (
    "bicycle bike", "airplane aeroplane plane aircraft", "television tv", "couch sofa",
    "car automobile", "truck lorry", "taxi cab", "refrigerator fridge", "motorcycle motorbike",
    "phone telephone cellphone smartphone", "sidewalk pavement", "street road", "sea ocean",
    "beach shore seashore seaside", "forest woods woodland", "stream creek",
    "sweater jumper pullover", "pants trousers slacks", "backpack rucksack", "stroller pram",
    "doughnut donut", "hamburger burger", "cookie biscuit", "photo photograph picture image pic",
    "mother mom mum mommy", "father dad daddy", "child kid", "big large huge",
    "small little tiny", "gray grey", "sunset sundown", "running jogging",
    "walking strolling", "jumping leaping", "rabbit bunny",
)  # fmt: skip
# A general name, and its kinds, which it replaces.
_KINDS = {
    "dog": "puppy pup doggy hound labrador husky chihuahua corgi",
    "cat": "kitten kitty",
    "horse": "pony foal",
    "cow": "calf cattle",
    "sheep": "lamb",
    "pig": "piglet",
    "chicken": "hen rooster",
    "bird": "seagull sparrow parrot crow dove eagle duck goose",
    "fish": "goldfish trout",
    "man": "guy gentleman dude grandpa",
    "woman": "lady grandma grandmother",
    "baby": "infant newborn",
    "people": "folks",
    "car": "taxi jeep minivan suv",
    "train": "tram locomotive",
    "boat": "ship ferry yacht",
    "computer": "laptop",
    "cup": "mug",
    "house": "cottage",
    "lake": "pond",
    "mountain": "hill",
    "grass": "lawn",
    "flower": "tulip rose daisy blossom",
    "coat": "jacket",
    "shoe": "sneaker trainer",
    "bag": "handbag purse",
    "dress": "gown",
    "red": "scarlet",
    "purple": "violet",
}


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
        names = [name for group in _SYNONYMS if base in group.split() for name in group.split()]
        names += [name for name, kinds in _KINDS.items() if base in kinds.split()]
        for name in names:
            candidates = [name, *forms(name)]
            if base != word:  # prefer the same ending: "cats" rather than "cat" for "kittens"
                ending = next((end for end in ("ing", "ed", "s") if word.endswith(end)), "")
                candidates.sort(key=lambda form: not form.endswith(ending))
            yield from candidates


def _bases(word: str) -> list[str]:
    """Words that a plural or a verb's form may come from, likely ones first."""
    bases = [group.split()[0] for group in _IRREGULAR if word in group.split()[1:]]
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
    plurals = [form for g in _IRREGULAR if word == g.split()[0] for form in g.split()[1:]]
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
