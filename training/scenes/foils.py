"""Foils: of a scene a caption that is true of it, beside one that differs little and is false.

The kinds are those of SugarCrepe (Hsieh et al., NeurIPS 2023): something is *replaced* by what is
not there, two things are *swapped*, so that the words stay the same, or one is *added*. What the
scene holds says which sentence is true, so that none is wrong by accident. No caption of the scenes
denies anything, so nothing is negated either. Words and sentences are those of `templates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from training.scenes.captions import join, obvious_relations, things_of, with_article
from training.scenes.classes import CLASS_INDEX, CLASSES
from training.scenes.relevance import satisfies
from training.scenes.templates import NUMBERS, PLACES, RELATIONS
from training.scenes.world import Scene

T = TypeVar("T")

SEED = 0
_OPPOSITES = {"left_of": "right_of", "right_of": "left_of", "above": "below", "below": "above"}

Wanted = dict[str, Any]
"""One of a fact's `objects`, see `training/scenes/relevance.py`."""


class Foil(NamedTuple):
    """A true and a false caption of an image.

    Attributes:
        image: its row.
        kind: how they differ, a key of `KINDS`.
        true: the true one.
        false: the other.
    """

    image: int
    kind: str
    true: str
    false: str


@dataclass(frozen=True)
class _Sentence:
    """What a caption says: things, how they stand, and where."""

    objects: tuple[Wanted, ...]
    relation: str = ""
    setting: str = ""

    def fact(self) -> dict[str, Any]:
        fact: dict[str, Any] = {"objects": list(self.objects)}
        if self.relation:
            of = list(range(len(self.objects)))
            fact["relations"] = [{"kind": self.relation, "of": of}]
        return fact | ({"setting": self.setting} if self.setting else {})

    def text(self) -> str:
        names = [_named(**wanted) for wanted in self.objects]
        text = join(names)
        if self.relation:
            text = RELATIONS[self.relation][0].format(**dict(zip("abc", names, strict=False)))
        return f"{text} {PLACES[self.setting][0]}" if self.setting else text


def _named(name: str, count: int = 1, color: str = "") -> str:
    noun = name if count == 1 else CLASSES[CLASS_INDEX[name]].plural
    noun = f"{color} {noun}".lstrip()
    return with_article(noun) if count == 1 else f"{NUMBERS[count]} {noun}"


_Pair = tuple[_Sentence, _Sentence]
_Maker = Callable[[Scene, np.random.Generator], Iterator[_Pair]]


def _replaced_object(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for first, second in _pairs(scene, random):
        other = {**second, "name": _absent(scene, random, second["name"])}
        yield _Sentence((first, second)), _Sentence((first, other))


def _replaced_color(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for first, second in _pairs(scene, random):
        if (color := _color(scene, second)) and (others := _other_colors(second, color)):
            right, wrong = {**second, "color": color}, {**second, "color": _one(others, random)}
            yield _Sentence((first, right)), _Sentence((first, wrong))


def _replaced_number(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for first, second in _pairs(scene, random):
        if "count" in first:
            near = [n for n in NUMBERS if abs(n - first["count"]) == 1]
            other = {**first, "count": _one(near, random)}
            yield _Sentence((first, second)), _Sentence((other, second))


def _replaced_relation(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for sentence in _relations(scene, random):
        yield sentence, _Sentence(sentence.objects, _OPPOSITES[sentence.relation])


def _replaced_place(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for first, _ in _pairs(scene, random):
        other = _one([name for name in PLACES if name != scene.setting], random)
        yield _Sentence((first,), setting=scene.setting), _Sentence((first,), setting=other)


def _swapped_objects(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for sentence in _relations(scene, random):
        yield sentence, _Sentence(sentence.objects[::-1], sentence.relation)


def _swapped_numbers(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for first, second in _pairs(scene, random):
        if "count" in first and first["count"] != second.get("count", first["count"]):
            wrong = {**first, "count": second["count"]}, {**second, "count": first["count"]}
            yield _Sentence((first, second)), _Sentence(wrong)


def _added_object(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for first, second in _pairs(scene, random):
        more = {"name": _absent(scene, random, second["name"])}
        yield _Sentence((first, second)), _Sentence((first, second, more))


def _added_color(scene: Scene, random: np.random.Generator) -> Iterator[_Pair]:
    for first, second in _pairs(scene, random):
        if (color := _color(scene, second)) and (others := _other_colors(second, color)):
            wrong = {**second, "color": _one(others, random)}
            yield _Sentence((first, second)), _Sentence((first, wrong))


KINDS: dict[str, _Maker] = {
    "replaced_object": _replaced_object,
    "replaced_color": _replaced_color,
    "replaced_number": _replaced_number,
    "replaced_place": _replaced_place,
    "replaced_relation": _replaced_relation,
    "swapped_objects": _swapped_objects,
    "swapped_numbers": _swapped_numbers,
    "added_object": _added_object,
    "added_color": _added_color,
}
"""What differs: an object, colour, number, place or relation is another one; two objects of a
relation or two numbers change places; an object that is not there, or a wrong colour, is named
besides. Colours are not swapped: hardly a scene has two things that could have one another's."""


def make_foils(scenes: Sequence[Scene]) -> list[Foil]:
    """Writes at most one foil of each kind for each scene, drawn by lot with `SEED`.

    Args:
        scenes: N scenes; their captions are not looked at.
    """
    found = []
    for image, scene in enumerate(scenes):
        for number, (kind, make) in enumerate(KINDS.items()):
            random = np.random.default_rng([SEED, image, number])
            for right, wrong in make(scene, random):
                if satisfies(scene, right.fact()) and not satisfies(scene, wrong.fact()):
                    found.append(Foil(image, kind, right.text(), wrong.text()))
                    break
    return found


def _pairs(scene: Scene, random: np.random.Generator) -> Iterator[tuple[Wanted, Wanted]]:
    """Every two kinds of things of a scene, in an order drawn by lot, with their numbers."""
    things: list[Wanted] = [
        {"name": thing.kind.name} | ({"count": thing.count} if thing.count > 1 else {})
        for thing in things_of(scene)
    ]
    pairs = [(a, b) for a in things for b in things if a is not b]
    for place in random.permutation(len(pairs)).tolist():
        yield pairs[place]


def _relations(scene: Scene, random: np.random.Generator) -> Iterator[_Sentence]:
    """Two single things that stand left, right, above or below beyond doubt."""
    boxes = {item.name: item.box for item in scene.objects}
    for first, second in _pairs(scene, random):
        if "count" not in first and "count" not in second:
            for kind in obvious_relations(boxes[first["name"]], boxes[second["name"]]):
                if kind in _OPPOSITES:
                    yield _Sentence((first, second), kind)


def _absent(scene: Scene, random: np.random.Generator, name: str) -> str:
    """A kind of thing that a scene does not hold, of the group that another one is of."""
    here, group = {item.name for item in scene.objects}, CLASSES[CLASS_INDEX[name]].group
    return _one([k.name for k in CLASSES if k.group == group and k.name not in here], random)


def _color(scene: Scene, wanted: Wanted) -> str:
    """The colour that all things of a kind share; empty where colour is no part of the truth."""
    colors = {item.color or "" for item in scene.objects if item.name == wanted["name"]}
    return colors.pop() if len(colors) == 1 else ""


def _other_colors(wanted: Wanted, color: str) -> list[str]:
    return [other for other in CLASSES[CLASS_INDEX[wanted["name"]]].colors if other != color]


def _one(options: Sequence[T], random: np.random.Generator) -> T:
    return options[int(random.integers(len(options)))]
