"""Foils: of a scene a caption that is true of it, beside one that differs little and is false.

The kinds are those of SugarCrepe (Hsieh et al., NeurIPS 2023): something is *replaced* by what the
scene lacks, two things are *swapped*, so that the words stay the same, or one is *added*. The truth
of the scene says which sentence is true, so that none is wrong by accident. No caption of the
scenes denies anything, so nothing is negated either. Words and sentences are those of `templates`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from training.scenes.captions import join, object_groups, obvious_relations, with_article
from training.scenes.classes import CLASS_INDEX, CLASSES
from training.scenes.relevance import satisfies
from training.scenes.templates import NUMBERS, PLACES, RELATIONS
from training.scenes.world import Scene

SEED = 0
_OPPOSITES = {"left_of": "right_of", "right_of": "left_of", "above": "below", "below": "above"}

T = TypeVar("T")
Stated = dict[str, Any]
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
    """What a caption says: objects, how they stand, and where."""

    objects: tuple[Stated, ...]
    relation: str = ""
    setting: str = ""

    def fact(self) -> dict[str, Any]:
        fact: dict[str, Any] = {"objects": list(self.objects)}
        if self.relation:
            fact["relations"] = [{"kind": self.relation, "of": [0, 1]}]
        return fact | ({"setting": self.setting} if self.setting else {})

    def text(self) -> str:
        names = [_named(**stated) for stated in self.objects]
        text = join(names)
        if self.relation:
            text = RELATIONS[self.relation][0].format(**dict(zip("abc", names, strict=False)))
        return f"{text} {PLACES[self.setting][0]}" if self.setting else text


def _named(name: str, count: int = 1, color: str = "") -> str:
    noun = name if count == 1 else CLASSES[CLASS_INDEX[name]].plural
    noun = f"{color} {noun}".lstrip()
    return with_article(noun) if count == 1 else f"{NUMBERS[count]} {noun}"


@dataclass(frozen=True)
class _Case:
    """Two kinds of objects of a scene, and the random numbers of a foil about them."""

    scene: Scene
    first: Stated
    second: Stated
    rng: np.random.Generator

    def one(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def missing(self) -> str:
        """A class that the scene lacks, of the group of the second one."""
        present = {item.name for item in self.scene.objects}
        group = CLASSES[CLASS_INDEX[self.second["name"]]].group
        return self.one([k.name for k in CLASSES if k.group == group and k.name not in present])

    def colors(self) -> tuple[str, str] | None:
        """The one colour of the second kind, and another that its class comes in."""
        name = self.second["name"]
        colors = {item.color for item in self.scene.objects if item.name == name}
        color = colors.pop() if len(colors) == 1 else None
        others = [other for other in CLASSES[CLASS_INDEX[name]].colors if other != color]
        return (color, self.one(others)) if color and others else None

    def relation(self) -> str | None:
        """Whether the first, single, is left, right, above or below the second beyond doubt."""
        if "count" in self.first or "count" in self.second:
            return None
        boxes = {item.name: item.box for item in self.scene.objects}
        kinds = obvious_relations(boxes[self.first["name"]], boxes[self.second["name"]])
        return next((kind for kind in kinds if kind in _OPPOSITES), None)


_Pair = tuple[_Sentence, _Sentence] | None


def _replaced_object(case: _Case) -> _Pair:
    other = {**case.second, "name": case.missing()}
    return _Sentence((case.first, case.second)), _Sentence((case.first, other))


def _replaced_color(case: _Case) -> _Pair:
    if (colors := case.colors()) is None:
        return None
    right, wrong = ({**case.second, "color": color} for color in colors)
    return _Sentence((case.first, right)), _Sentence((case.first, wrong))


def _replaced_number(case: _Case) -> _Pair:
    if "count" not in case.first:
        return None
    near = [number for number in NUMBERS if abs(number - case.first["count"]) == 1]
    other = {**case.first, "count": case.one(near)}
    return _Sentence((case.first, case.second)), _Sentence((other, case.second))


def _replaced_place(case: _Case) -> _Pair:
    other = case.one([name for name in PLACES if name != case.scene.setting])
    objects = (case.first,)
    return _Sentence(objects, setting=case.scene.setting), _Sentence(objects, setting=other)


def _replaced_relation(case: _Case) -> _Pair:
    objects = (case.first, case.second)
    if (kind := case.relation()) is None:
        return None
    return _Sentence(objects, kind), _Sentence(objects, _OPPOSITES[kind])


def _swapped_objects(case: _Case) -> _Pair:
    objects = (case.first, case.second)
    if (kind := case.relation()) is None:
        return None
    return _Sentence(objects, kind), _Sentence(objects[::-1], kind)


def _swapped_numbers(case: _Case) -> _Pair:
    first, second = case.first, case.second
    if "count" not in first or first["count"] == second.get("count", first["count"]):
        return None
    wrong = {**first, "count": second["count"]}, {**second, "count": first["count"]}
    return _Sentence((first, second)), _Sentence(wrong)


def _added_object(case: _Case) -> _Pair:
    objects = (case.first, case.second)
    return _Sentence(objects), _Sentence((*objects, {"name": case.missing()}))


def _added_color(case: _Case) -> _Pair:
    if (colors := case.colors()) is None:
        return None
    wrong = {**case.second, "color": colors[1]}
    return _Sentence((case.first, case.second)), _Sentence((case.first, wrong))


KINDS: dict[str, Callable[[_Case], _Pair]] = {
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
relation or two numbers change places; an object that the scene lacks, or a wrong colour, is named
besides. Colours are not swapped: hardly a scene has two objects that could have one another's."""


def make_foils(scenes: Sequence[Scene]) -> list[Foil]:
    """Writes at most one foil of each kind for each scene, drawn by lot with `SEED`.

    Args:
        scenes: N scenes; their captions are not looked at.
    """
    foils = []
    for image, scene in enumerate(scenes):
        stated: list[Stated] = [
            {"name": group.kind.name} | ({"count": group.count} if group.count > 1 else {})
            for group in object_groups(scene)
        ]
        pairs = [(a, b) for a in stated for b in stated if a is not b]
        for number, (kind, make) in enumerate(KINDS.items()):
            rng = np.random.default_rng([SEED, image, number])
            for place in rng.permutation(len(pairs)).tolist():
                first, second = pairs[place]
                pair = make(_Case(scene, first, second, rng))
                if pair is None:
                    continue
                true, false = pair
                if satisfies(scene, true.fact()) and not satisfies(scene, false.fact()):
                    foils.append(Foil(image, kind, true.text(), false.text()))
                    break
    return foils
