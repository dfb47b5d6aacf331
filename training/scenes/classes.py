"""The object classes of the scenes world: names, synonyms, glyphs, colours (`classes.toml`).

No name belongs to two classes or is part of a name of another class, so that the words of a caption
identify classes. Tests check this.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FILE = tomllib.loads(Path(__file__).with_name("classes.toml").read_text("utf-8"))
_IRREGULAR_PLURALS: dict[str, str] = _FILE["irregular_plurals"]


@dataclass(frozen=True)
class Look:
    """An appearance of a class: an emoji of one code point."""

    glyph: str
    color: str | None = None  # None if the ground truth of the class has no colours
    hue: float | None = None  # degrees; if set, replaces the dominant hue of the glyph


@dataclass(frozen=True)
class ObjectClass:
    """A class of objects."""

    name: str  # canonical, singular
    group: str  # name of the group of classes, such as "animals"
    looks: tuple[Look, ...]
    synonyms: tuple[str, ...] = ()  # other singular names, everyday words only
    aloft: bool = False  # whether objects may float in the sky

    @cached_property
    def nouns(self) -> tuple[tuple[str, str], ...]:
        """All (singular, plural) pairs, the canonical pair first."""
        return tuple((noun, pluralize(noun)) for noun in (self.name, *self.synonyms))

    @cached_property
    def colors(self) -> tuple[str, ...]:
        """The colours of the class; empty if its ground truth has no colours."""
        return tuple(dict.fromkeys(look.color for look in self.looks if look.color))


def pluralize(noun: str) -> str:
    """Returns the plural of a singular noun.

    >>> [pluralize(noun) for noun in ("puppy", "fox", "monkey", "loaf of bread")]
    ['puppies', 'foxes', 'monkeys', 'loaves of bread']
    """
    head, preposition, complement = noun.partition(" of ")
    if preposition:
        return pluralize(head) + preposition + complement
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def _parse_class(entry: str, group: str, aloft: bool) -> ObjectClass:
    """Parses an entry of `classes.toml`: the name, the looks and, optionally, the synonyms."""
    name, glyphs, *optional = (part.strip() for part in entry.split(":"))
    looks = [Look(glyph) for glyph in glyphs]
    if "=" in glyphs:  # each look is colour=glyph or colour=glyph@hue
        parts = [re.split("[=@]", look) for look in glyphs.split()]
        looks = [Look(glyph, color, *map(float, hue)) for color, glyph, *hue in parts]
    synonyms = optional[0].split(", ") if optional else []
    return ObjectClass(name, group, tuple(looks), tuple(synonyms), aloft)


CLASSES: tuple[ObjectClass, ...] = tuple(
    _parse_class(entry, table["group"], table["aloft"])
    for table in _FILE["tables"]
    for entry in table["classes"].split(";")
)
CLASS_OF: dict[str, ObjectClass] = {kind.name: kind for kind in CLASSES}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(kind.group for kind in CLASSES))
COLORS: tuple[str, ...] = tuple(sorted({color for kind in CLASSES for color in kind.colors}))


def names_of(kind: str) -> tuple[str, ...]:
    """Returns all singular and plural names of a class; for any other noun, its two forms.

    >>> names_of("dog")
    ('dog', 'dogs', 'puppy', 'puppies', 'hound', 'hounds')
    """
    nouns = CLASS_OF[kind].nouns if kind in CLASS_OF else ((kind, pluralize(kind)),)
    return tuple(dict.fromkeys(form for pair in nouns for form in pair))
