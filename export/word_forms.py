"""Known words to read an unknown one as: another form of it, or a plain word for the same thing.

A pack of word vectors knows the words of its training captions and no others. A person types
"puppies" where the captions say "puppy", or "automobile" where they say "car". English has few
endings, so a handful of rules finds the other forms of a word; a short list written by hand has
other names of what people photograph. Both only propose: what counts is that the pack lacks the
word and knows the proposal.
"""

import re
from collections.abc import Container, Iterator

from export.pack.calibration import SMALL_WORDS

_SHORTEST, _LONGEST = 3, 30  # letters of a word; of a verb's stem, too: "king" is no form of "k"
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

# Names of the same, each read as any other.
_SAME = (
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
# The general name, and things that are one.
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


def read_word(word: str, known: Container[str]) -> str | None:
    """The known word that an unknown one is read as; None where there is none.

    >>> vocabulary = {"dogs", "dog", "run", "cat", "bike", "riding", "leaf", "sofas", "man"}
    >>> [read_word(one, vocabulary) for one in ("Leaves", "running", "bikes", "rides", "men")]
    ['leaf', 'run', 'bike', 'riding', 'man']
    >>> [read_word(one, vocabulary) for one in ("puppies", "puppy", "kittens", "couches")]
    ['dogs', 'dog', 'cat', 'sofas']
    >>> [read_word(one, vocabulary) for one in ("zebra", "cute", "x" * 1000, "dog's", "7")]
    [None, None, None, None, None]
    """
    word = word.lower()
    if not word.isalpha() or not _SHORTEST <= len(word) <= _LONGEST:
        return None
    return next((one for one in _proposed(word) if one in known and one not in SMALL_WORDS), None)


def forms(word: str) -> list[str]:
    """Other forms of a word, likely ones first; many are no words.

    >>> forms("puppies")[0], forms("dog")[0], "ran" in forms("running"), "staring" in forms("star")
    ('puppy', 'dogs', True, False)
    >>> [forms(one)[0] for one in ("boxes", "wolves", "cookies", "fishermen", "hiking", "hopped")]
    ['box', 'wolf', 'cooky', 'fisherman', 'hike', 'hop']
    """
    found: list[str] = []
    for base in (*_bases(word), word):
        found += [base, *_plurals(base), *_inflected(base)]
    return [one for one in dict.fromkeys(found) if one != word]


def _proposed(word: str) -> Iterator[str]:
    yield from forms(word)
    for base in (word, *_bases(word)):
        names = [one for same in _SAME if base in same.split() for one in same.split()]
        names += [one for one, kinds in _KINDS.items() if base in kinds.split()]
        for name in names:
            alike = [name, *forms(name)]
            if base != word:  # "kittens" are rather "cats" than a "cat"
                ending = next((end for end in ("ing", "ed", "s") if word.endswith(end)), "")
                alike.sort(key=lambda one: not one.endswith(ending))
            yield from alike


def _bases(word: str) -> list[str]:
    """What a plural or a verb's form may be made of, likely ones first."""
    found = [group.split()[0] for group in _IRREGULAR if word in group.split()[1:]]
    if word.endswith("men"):
        found.append(f"{word[:-3]}man")
    if word.endswith("s") and not word.endswith("ss") and word not in _NO_PLURALS:
        if word.endswith("ies"):
            found.append(f"{word[:-3]}y")
        if word.endswith("ves"):
            found += [f"{word[:-3]}f", f"{word[:-3]}fe"]
        if word.endswith(("ses", "xes", "zes", "ches", "shes", "oes")):
            found.append(word[:-2])
        found.append(word[:-1])
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _SHORTEST:
            found += _unstemmed(stem)
    return [one for one in found if len(one) > 1]


def _unstemmed(stem: str) -> list[str]:
    """The verbs that are left as a stem before "ing" or "ed".

    >>> [_unstemmed(stem) for stem in ("runn", "fall", "rid", "sleep", "carri")]
    [['run', 'runn'], ['fall', 'fal'], ['ride'], ['sleep', 'sleepe'], ['carry']]
    """
    if stem.endswith("i"):
        return [f"{stem[:-1]}y"]
    if stem[-1] == stem[-2]:
        found = [stem[:-1], stem]
        return found[::-1] if stem[-1] in "lsfz" else found
    return [f"{stem}e"] if _DOUBLED.fullmatch(stem) else [stem, f"{stem}e"]


def _plurals(word: str) -> list[str]:
    irregular = [group.split()[1:] for group in _IRREGULAR if word == group.split()[0]]
    found = [one for group in irregular for one in group]
    if word.endswith("man"):
        found.append(f"{word[:-3]}men")
    if word[-1] == "y" and word[-2:-1] not in tuple("aeiou"):
        return [*found, f"{word[:-1]}ies"]
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return [*found, f"{word}es"]
    if word.endswith("o"):
        found.append(f"{word}es")
    if word.endswith(("f", "fe")):
        found.append(f"{word.removesuffix('e')[:-1]}ves")
    return [*found, f"{word}s"]


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
