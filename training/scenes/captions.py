"""Writes five captions for a scene, each about a different aspect, and the fact that each asserts.

The `fact` of a caption asserts exactly what the text asserts.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from polyview.training.scenes.classes import CLASS_OF, ObjectClass
from polyview.training.scenes.motion import Clip
from polyview.training.scenes.relevance import Box, holds
from polyview.training.scenes.world import Caption, Scene, Truth

_FILE = Path(__file__).with_name("sentences.toml")
SENTENCES: dict[str, Any] = tomllib.loads(_FILE.read_text("utf-8"))
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
_VERBS = (("appears", "appear"), ("is visible", "are visible"), ("can be seen", "can be seen"))


@dataclass(frozen=True)
class ObjectGroup:
    """All objects of one class in a scene."""

    kind: ObjectClass
    indices: tuple[int, ...]  # into the objects of the scene
    color: str | None  # None if the class has no colours

    @property
    def count(self) -> int:
        """The number of objects."""
        return len(self.indices)


@dataclass
class Draft:
    """An unfinished caption: the groups named so far, and the fact with their assertions."""

    rng: np.random.Generator
    groups: list[ObjectGroup] = field(default_factory=list)
    fact: dict[str, Any] = field(default_factory=dict)

    def chance(self, share: float) -> bool:
        """Returns True with probability `share`."""
        return bool(self.rng.random() < share)

    def pick(self, options: Sequence[str]) -> str:
        """Draws one of the options."""
        return options[int(self.rng.integers(len(options)))]

    def name(self, group: ObjectGroup, *, exact: bool = False) -> str:
        """Names a group, such as "two red cars", and extends the fact; `exact` forces a number."""
        entry: dict[str, Any] = {"name": group.kind.name}
        nouns = group.kind.nouns
        is_canonical = self.chance(0.55) or len(nouns) == 1
        singular, plural = nouns[0 if is_canonical else int(self.rng.integers(1, len(nouns)))]
        if group.color is not None and self.chance(0.8):
            entry["color"] = group.color
            singular, plural = f"{group.color} {singular}", f"{group.color} {plural}"
        self.groups.append(group)
        self.fact.setdefault("objects", []).append(entry)
        if group.count == 1:
            return with_article(singular)
        if exact or self.chance(0.7):
            entry["count"] = group.count
            return f"{group.count if self.chance(0.08) else NUMBERS[group.count]} {plural}"
        phrases = [("some", 2), ("a few", 3), ("several", 3), ("a group of", 3)]
        phrase, entry["min"] = phrases[int(self.rng.integers(4)) if group.count > 2 else 0]
        return f"{phrase} {plural}"

    def names(self, groups: Sequence[ObjectGroup], *, exact: bool = False) -> list[str]:
        """Names groups in random order, with `exact` as in `name`."""
        return [self.name(groups[i], exact=exact) for i in self.rng.permutation(len(groups))]

    def describe(self, scene: Scene | Clip, *, time: bool = False, weather: bool = False) -> str:
        """Describes the setting, and time and weather if requested and known; extends the fact."""
        period = sky = ""
        self.fact["setting"] = scene.setting
        place = self.pick(SENTENCES["places"][scene.setting])
        if time and scene.time:
            self.fact["time"] = scene.time
            period = self.pick(SENTENCES["time_phrases"][scene.time])
        if weather and scene.weather:
            self.fact["weather"] = scene.weather
            sky = self.pick(SENTENCES["weather_phrases"][scene.weather])
        if period and sky and self.chance(0.6):
            word = self.pick(SENTENCES["weather_words"][scene.weather])
            if (scene.weather, scene.time) == ("clear", "day"):
                word = self.pick(("clear", "sunny"))
            period, sky = f"on a {word} {self.pick(SENTENCES['time_words'][scene.time])}", ""
        period = f"{period} {sky}".strip()
        is_period_first = period.startswith("on a ") and self.chance(0.4)
        return f"{period} {place}" if is_period_first else f"{place} {period}".strip()

    def mentions(self) -> tuple[int, ...]:
        """Returns the sorted indices of the named objects."""
        return tuple(sorted({index for group in self.groups for index in group.indices}))

    def fill(self, template: str, view: str, **slots: str | list[str]) -> Caption:
        """Fills the slots of a template; a list of names also fills verb slots such as `x_are`."""
        words: dict[str, Any] = dict(slots)
        for slot, names in slots.items():
            if isinstance(names, list):
                is_first_singular = re.match("an? (?!few )", names[0]) is not None  # not "a few"
                is_plural = not is_first_singular or len(names) > 1
                words[slot] = join_names(names)
                words[f"{slot}_are"] = "are" if is_plural else "is"
                words[f"{slot}_there"] = "there is" if is_first_singular else "there are"
                words[f"{slot}_verb"] = _VERBS[int(self.rng.integers(len(_VERBS)))][is_plural]
        text = " ".join(template.format(**words).split())
        return Caption(text, view, self.mentions(), self.fact)


def with_article(noun: str) -> str:
    """Puts "a" or "an" before a noun phrase.

    >>> [with_article(noun) for noun in ("orange book", "umbrella", "unicorn", "ufo")]
    ['an orange book', 'an umbrella', 'a unicorn', 'a ufo']
    """
    takes_an = noun[0] in "aeio" or (noun[0] == "u" and not noun.startswith(("uni", "ufo")))
    return f"{'an' if takes_an else 'a'} {noun}"


def join_names(names: Sequence[str]) -> str:
    """Joins names with commas and "and".

    >>> join_names(["a dog", "a cat", "a car"])
    'a dog, a cat and a car'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def object_groups(scene: Truth) -> list[ObjectGroup]:
    """Groups the objects of a scene by class, in the order of each group's first object."""
    items: Sequence[Any] = scene.objects
    members: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        members.setdefault(item.name, []).append(index)
    return [
        ObjectGroup(CLASS_OF[name], tuple(indices), items[indices[0]].color)
        for name, indices in members.items()
    ]


def obvious_relations(first: Box, second: Box) -> list[str]:
    """Returns the relations of the first box to the second that hold with a clear margin."""
    dx = (first[0] + first[2] - second[0] - second[2]) / 2
    dy = (first[1] + first[3] - second[1] - second[3]) / 2
    relations = []
    if abs(dx) >= 0.14 and abs(dx) >= 0.8 * abs(dy):
        relations.append("left_of" if dx < 0 else "right_of")
    if abs(dy) >= 0.14 and abs(dy) >= 1.2 * abs(dx):
        relations.append("above" if dy < 0 else "below")
    gap = max(first[0], second[0]) - min(first[2], second[2])
    if gap <= 0.07 and abs(dy) <= 0.11 and abs(dx) >= 0.12:
        relations.append("next_to")
    return relations


def write_captions(scene: Scene, rng: np.random.Generator) -> tuple[Caption, ...]:
    """Writes a caption for each view: animal, things, relation, setting, counting.

    The scene must have an animal, two other classes, a group of several objects and two single
    objects, as all sampled scenes do. `rng` draws the objects, details and words.
    """
    groups = object_groups(scene)
    animals = [group for group in groups if group.kind.group == "animals"]
    others = [group for group in groups if group.kind.group != "animals"]
    animal = _write_animal(scene, animals, others, Draft(rng))
    things, relation = _write_things(others, Draft(rng)), _write_relation(scene, groups, Draft(rng))
    setting = _write_setting(scene, groups, Draft(rng))
    return animal, things, relation, setting, _write_counting(groups, Draft(rng))


def _draw_groups(groups: Sequence[ObjectGroup], count: int, draft: Draft) -> list[ObjectGroup]:
    """Draws at most `count` groups without replacement, in random order."""
    indices = draft.rng.choice(len(groups), min(count, len(groups)), replace=False)
    return [groups[index] for index in indices.tolist()]


def _write_animal(
    scene: Scene, animals: list[ObjectGroup], others: list[ObjectGroup], draft: Draft
) -> Caption:
    """Writes a caption about one or two kinds of animals, often with other objects or the place."""
    subjects = _draw_groups(animals, 2, draft)
    if len(subjects) == 2 and draft.chance(0.5):
        return draft.fill(draft.pick(SENTENCES["list"]), "animal", x=draft.names(subjects))
    if len(subjects) == 2 and draft.chance(0.2):
        subjects = subjects[:1]
    is_paired = draft.chance(0.6)
    names = draft.names(subjects)
    if is_paired:
        extra = _draw_groups(others, 2 if len(subjects) == 1 and draft.chance(0.3) else 1, draft)
        return draft.fill(draft.pick(SENTENCES["paired"]), "animal", x=names, y=draft.names(extra))
    has_detail, is_time = draft.chance(0.4), draft.chance(0.5)
    place = draft.describe(scene, time=has_detail and is_time, weather=has_detail and not is_time)
    return draft.fill(draft.pick(SENTENCES["placed"]), "animal", x=names, s=place)


def _write_things(others: list[ObjectGroup], draft: Draft) -> Caption:
    """Writes a caption that names two or three groups of objects that are not animals."""
    sample = _draw_groups(others, 3 if draft.chance(0.3) else 2, draft)
    if draft.chance(0.4):
        first_name, other_names = draft.names(sample[:1]), draft.names(sample[1:])
        return draft.fill(draft.pick(SENTENCES["paired"]), "things", x=first_name, y=other_names)
    return draft.fill(draft.pick(SENTENCES["list"]), "things", x=draft.names(sample))


def _write_relation(scene: Scene, groups: list[ObjectGroup], draft: Draft) -> Caption:
    """Writes a caption about an obvious relation of two or three single objects."""
    singles = [(group, scene.objects[group.indices[0]].box) for group in groups if group.count == 1]
    options: dict[str, list[list[ObjectGroup]]] = {}
    for (first, box), (second, box_2) in permutations(singles, 2):
        for kind in obvious_relations(box, box_2):
            options.setdefault(kind, []).append([first, second])
        for third, box_3 in singles:
            is_apart = min(box[0] - box_2[2], box_3[0] - box[2]) > -0.02  # second, first, third
            if third not in (first, second) and is_apart and holds("between", box, box_2, box_3):
                sides = [second, third] if draft.chance(0.5) else [third, second]
                options.setdefault("between", []).append([first, *sides])
    if not options:  # nothing is obvious: the first two objects are diagonal and close together
        (first, box), (second, box_2) = singles[:2]
        kinds = ("left_of", "right_of", "above", "below")
        options = {kind: [[first, second]] for kind in kinds if holds(kind, box, box_2)}
    weights = np.array([{"next_to": 1.6, "between": 1.2}.get(kind, 1.0) for kind in options])
    kind = list(options)[int(draft.rng.choice(len(options), p=weights / weights.sum()))]
    members = options[kind][int(draft.rng.integers(len(options[kind])))]
    names = [draft.name(group, exact=True) for group in members]
    draft.fact["relations"] = [{"kind": kind, "of": list(range(len(members)))}]
    text = draft.pick(SENTENCES["relations"][kind]).format(**dict(zip("abc", names, strict=False)))
    if draft.chance(0.12):
        text += f", {draft.describe(scene)}"
    return Caption(text, "relation", draft.mentions(), draft.fact)


def _write_setting(scene: Scene, groups: list[ObjectGroup], draft: Draft) -> Caption:
    """Writes a caption about the place, often with time, weather and objects."""
    has_time, has_weather = scene.time is not None, scene.weather is not None
    if has_time and has_weather and draft.chance(0.08):
        place = draft.describe(scene, time=True, weather=True)
        return draft.fill(draft.pick(SENTENCES["bare_place"]), "setting", s=place)
    with_time, with_weather = draft.chance(0.55), draft.chance(0.55)
    detail_count = int(with_time and has_time) + int(with_weather and has_weather)
    count = 2 if draft.chance((0.55, 0.25, 0.12)[detail_count]) else 1
    names = draft.names(_draw_groups(groups, count, draft))
    place = draft.describe(scene, time=with_time, weather=with_weather)
    return draft.fill(draft.pick(SENTENCES["placed"]), "setting", x=names, s=place)


def _write_counting(groups: list[ObjectGroup], draft: Draft) -> Caption:
    """Writes a caption about a counted group, usually with another group."""
    plural_groups = [group for group in groups if group.count > 1]
    counted_group = _draw_groups(plural_groups, 1, draft)[0]
    name = draft.name(counted_group, exact=True)
    number, _, plural = name.partition(" ")
    words: dict[str, str | list[str]] = {"x": [name], "n": number, "plural": plural}
    if draft.chance(0.12):
        return draft.fill(draft.pick(SENTENCES["counted_alone"]), "counting", **words)
    candidates = plural_groups if len(plural_groups) > 1 and draft.chance(0.6) else groups
    other = _draw_groups([group for group in candidates if group is not counted_group], 1, draft)
    words["y"] = draft.names(other, exact=True)
    return draft.fill(draft.pick(SENTENCES["counted"]), "counting", **words)
