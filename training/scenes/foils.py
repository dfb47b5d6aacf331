"""Foils: pairs of a true caption of a scene and a slightly different, false one.

The kinds are those of SugarCrepe (Hsieh et al., NeurIPS 2023): something is *replaced* by something
that the scene lacks, two things are *swapped*, so that the words stay the same, or something is
*added*. The ground truth of the scene decides which sentence is true. There are no negations, since
no caption of the scenes has any. Words and sentences come from `sentences.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from polyview.training.scenes.captions import (
    NUMBERS,
    SENTENCES,
    join,
    object_groups,
    obvious_relations,
    with_article,
)
from polyview.training.scenes.classes import CLASS_INDEX, CLASSES, pluralize
from polyview.training.scenes.relevance import satisfies
from polyview.training.scenes.world import Truth

KINDS = (
    *("replaced_object", "replaced_color", "replaced_number", "replaced_place"),
    *("replaced_relation", "swapped_objects", "swapped_numbers", "added_object", "added_color"),
)
"""The differences: an object, colour, number, place or relation is replaced; two objects of a
relation or two numbers are swapped; an absent object or a wrong colour is added. Colours are not
swapped, because few scenes have two objects with exchangeable colours."""

SEED = 0
_OPPOSITES = {"left_of": "right_of", "right_of": "left_of", "above": "below", "below": "above"}

T = TypeVar("T")
Stated = dict[str, Any]
"""One of a fact's `objects`, see `training/scenes/relevance.py`."""


class Foil(NamedTuple):
    """A true and a false caption of an image.

    Attributes:
        image: its row.
        kind: the difference, one of `KINDS`.
        true: the true caption.
        false: the false caption.
    """

    image: int
    kind: str
    true: str
    false: str


@dataclass(frozen=True)
class _Sentence:
    """The content of a caption: objects, their relation, and the place."""

    objects: tuple[Stated, ...]
    relation: str = ""
    setting: str | None = None

    def fact(self) -> dict[str, Any]:
        fact: dict[str, Any] = {"objects": list(self.objects)}
        if self.relation:
            fact["relations"] = [{"kind": self.relation, "of": [0, 1]}]
        return fact | ({"setting": self.setting} if self.setting else {})

    def text(self) -> str:
        names = [_named(**stated) for stated in self.objects]
        text = join(names)
        if self.relation:
            text = SENTENCES["relations"][self.relation][0].format(
                **dict(zip("abc", names, strict=False))
            )
        return f"{text} {SENTENCES['places'][self.setting][0]}" if self.setting else text


def _named(name: str, count: int = 1, color: str = "") -> str:
    noun = name if count == 1 else pluralize(name)
    noun = f"{color} {noun}".lstrip()
    return with_article(noun) if count == 1 else f"{NUMBERS[count]} {noun}"


def make_foils(scenes: Sequence[Truth]) -> list[Foil]:
    """Writes at most one foil of each kind for each of N scenes, drawn with `SEED`."""
    foils = []
    for image, scene in enumerate(scenes):
        stated: list[Stated] = [
            {"name": group.kind.name} | ({"count": group.count} if group.count > 1 else {})
            for group in object_groups(scene)
        ]
        pairs = [(a, b) for a in stated for b in stated if a is not b]
        for number, kind in enumerate(KINDS):
            rng = np.random.default_rng([SEED, image, number])
            for place in rng.permutation(len(pairs)).tolist():
                first, second = pairs[place]
                sentences = _sentences(kind, scene, first, second, rng)
                if sentences is None:
                    continue
                true, false = sentences
                if satisfies(scene, true.fact()) and not satisfies(scene, false.fact()):
                    foils.append(Foil(image, kind, true.text(), false.text()))
                    break
    return foils


def _sentences(
    kind: str, scene: Truth, first: Stated, second: Stated, rng: np.random.Generator
) -> tuple[_Sentence, _Sentence] | None:
    """A true and a false sentence about two classes of a scene; None if impossible."""
    both = (first, second)
    if kind in ("replaced_object", "added_object"):
        other = {"name": _missing_class(scene, second["name"], rng)}
        replaced = (first, {**second, **other})
        return _Sentence(both), _Sentence(replaced if kind == "replaced_object" else (*both, other))
    if kind in ("replaced_color", "added_color"):
        colors = {item.color for item in scene.objects if item.name == second["name"]}
        color = colors.pop() if len(colors) == 1 else None
        others = [c for c in CLASSES[CLASS_INDEX[second["name"]]].colors if c != color]
        if color is None or not others:
            return None
        true = second if kind == "added_color" else {**second, "color": color}
        false = {**second, "color": _one(others, rng)}
        return _Sentence((first, true)), _Sentence((first, false))
    if kind == "replaced_place":
        setting = _one([name for name in SENTENCES["places"] if name != scene.setting], rng)
        return _Sentence((first,), setting=scene.setting), _Sentence((first,), setting=setting)
    if kind in ("replaced_relation", "swapped_objects"):
        if "count" in first or "count" in second:
            return None
        boxes = {item.name: item.box for item in scene.objects}
        obvious = obvious_relations(boxes[first["name"]], boxes[second["name"]])
        relation = next((name for name in obvious if name in _OPPOSITES), None)
        if relation is None:
            return None
        swapped, opposite = _Sentence(both[::-1], relation), _Sentence(both, _OPPOSITES[relation])
        return _Sentence(both, relation), swapped if kind == "swapped_objects" else opposite
    return _numbers(kind, first, second, rng)


def _numbers(
    kind: str, first: Stated, second: Stated, rng: np.random.Generator
) -> tuple[_Sentence, _Sentence] | None:
    both = (first, second)
    if "count" not in first:
        return None
    if kind == "replaced_number":
        near = [number for number in NUMBERS if abs(number - first["count"]) == 1]
        return _Sentence(both), _Sentence(({**first, "count": _one(near, rng)}, second))
    if second.get("count", first["count"]) == first["count"]:
        return None
    swapped_counts = {**first, "count": second["count"]}, {**second, "count": first["count"]}
    return _Sentence(both), _Sentence(swapped_counts)


def _missing_class(scene: Truth, name: str, rng: np.random.Generator) -> str:
    """A class that a scene lacks, from the group of the class `name`."""
    present, group = {item.name for item in scene.objects}, CLASSES[CLASS_INDEX[name]].group
    return _one([k.name for k in CLASSES if k.group == group and k.name not in present], rng)


def _one(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]
