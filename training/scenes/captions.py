"""Writes five captions for a scene, each from another view, with their exact meaning.

Captions are partial: each speaks of one to three things, a place, a relation or a number, never of
everything. A caption's `fact` asserts what its words say and nothing else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from training.scenes import templates
from training.scenes.classes import CLASS_INDEX, CLASSES, ObjectClass
from training.scenes.relevance import holds
from training.scenes.world import Caption, Scene

VIEWS = ("animal", "things", "relation", "setting", "counting")


@dataclass(frozen=True)
class Thing:
    """All objects of one class in a scene."""

    kind: ObjectClass
    indices: tuple[int, ...]
    color: str | None

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.indices)


@dataclass
class Draft:
    """A caption in the making: what it has asserted so far."""

    rng: np.random.Generator
    things: list[Thing] = field(default_factory=list)
    fact: dict[str, Any] = field(default_factory=dict)

    def chance(self, share: float) -> bool:
        """True in the given share of cases."""
        return bool(self.rng.random() < share)

    def pick(self, options: Sequence[str]) -> str:
        """One of several strings."""
        return options[int(self.rng.integers(len(options)))]

    def name(self, thing: Thing, *, exact: bool = False) -> str:
        """Names a thing, such as "two red cars", and asserts it."""
        wanted: dict[str, Any] = {"name": thing.kind.name}
        nouns = thing.kind.nouns
        known = self.chance(0.55) or len(nouns) == 1
        singular, plural = nouns[0 if known else int(self.rng.integers(1, len(nouns)))]
        if thing.color is not None and self.chance(0.8):
            wanted["color"] = thing.color
            singular, plural = f"{thing.color} {singular}", f"{thing.color} {plural}"
        self.things.append(thing)
        self.fact.setdefault("objects", []).append(wanted)
        if thing.count == 1:
            return with_article(singular)
        if exact or self.chance(0.7):
            wanted["count"] = thing.count
            return f"{self.number(thing.count)} {plural}"
        phrases = [("some", 2), ("a few", 3), ("several", 3), ("a group of", 3)]
        word, least = phrases[int(self.rng.integers(4)) if thing.count > 2 else 0]
        wanted["min"] = least
        return f"{word} {plural}"

    def number(self, count: int) -> str:
        """Spells a number, now and then as a digit."""
        return str(count) if self.chance(0.08) else templates.NUMBERS[count]

    def names(self, things: Sequence[Thing], *, exact: bool = False) -> list[str]:
        """Names things in an order drawn by lot."""
        order = self.rng.permutation(len(things))
        return [self.name(things[index], exact=exact) for index in order]

    def place(self, scene: Scene, *, setting: bool, time: bool, weather: bool) -> str:
        """Describes the place, the time and the weather as asked, and asserts them."""
        time = time and scene.time is not None
        weather = weather and scene.weather is not None
        where = self.pick(templates.PLACES[scene.setting]) if setting else ""
        if setting:
            self.fact["setting"] = scene.setting
        when = ""
        if time:
            self.fact["time"] = scene.time
            when = self.pick(templates.TIME_PHRASES[scene.time or ""])
        if weather:
            self.fact["weather"] = scene.weather
            air = self.pick(templates.WEATHER_PHRASES[scene.weather or ""])
            if not time:
                when = air
            elif self.chance(0.6):
                word = self.pick(templates.WEATHER_WORDS[scene.weather or ""])
                if (scene.weather, scene.time) == ("clear", "day"):
                    word = self.pick(("clear", "sunny"))
                noun = self.pick(templates.TIME_WORDS[scene.time or ""])
                when = f"on a {word} {noun}"
            else:
                when = f"{when} {air}"
        parts = [where, when]
        if where and when.startswith("on a ") and self.chance(0.4):
            parts = [when, where]
        return " ".join(part for part in parts if part)

    def finish(self, text: str, view: str) -> Caption:
        """Returns the caption."""
        mentions = sorted({index for thing in self.things for index in thing.indices})
        return Caption(text, view, tuple(mentions), self.fact)


def with_article(noun: str) -> str:
    """Puts "a" or "an" before a noun phrase.

    >>> [with_article(noun) for noun in ("orange book", "umbrella", "unicorn", "ufo")]
    ['an orange book', 'an umbrella', 'a unicorn', 'a ufo']
    """
    vowel = noun[0] in "aeio" or (noun[0] == "u" and not noun.startswith(("uni", "ufo")))
    return f"{'an' if vowel else 'a'} {noun}"


def join(names: Sequence[str]) -> str:
    """Joins names into a list.

    >>> join(["a dog", "a cat", "a car"])
    'a dog, a cat and a car'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _agree(slot: str, names: Sequence[str], draft: Draft) -> dict[str, str]:
    """Returns a list and the verbs that agree with it, as template slots."""
    singular_first = names[0].startswith(("a ", "an ")) and not names[0].startswith("a few ")
    singular = singular_first and len(names) == 1
    verb = templates.VERBS[int(draft.rng.integers(len(templates.VERBS)))]
    return {
        slot: join(names),
        f"{slot}_are": "is" if singular else "are",
        f"{slot}_there": "there is" if singular_first else "there are",
        f"{slot}_verb": verb[0 if singular else 1],
    }


def things_of(scene: Scene) -> list[Thing]:
    """Returns the things of a scene in the order of their first object."""
    members: dict[str, list[int]] = {}
    for index, item in enumerate(scene.objects):
        members.setdefault(item.name, []).append(index)
    return [
        Thing(CLASSES[CLASS_INDEX[name]], tuple(indices), scene.objects[indices[0]].color)
        for name, indices in members.items()
    ]


def _some(things: Sequence[Thing], count: int, rng: np.random.Generator) -> list[Thing]:
    chosen = rng.choice(len(things), min(count, len(things)), replace=False)
    return [things[index] for index in chosen.tolist()]


def _animal(scene: Scene, things: list[Thing], draft: Draft) -> Caption:
    animals = [thing for thing in things if thing.kind.group == "animals"]
    others = [thing for thing in things if thing.kind.group != "animals"]
    chosen = _some(animals, 2, draft.rng)
    if len(chosen) == 2 and draft.chance(0.5):
        text = draft.pick(templates.LIST)
        return filled(text, "animal", draft, x=draft.names(chosen))
    if len(chosen) == 2 and draft.chance(0.2):
        chosen = chosen[:1]
    if draft.chance(0.6):
        first = draft.names(chosen)
        extra = _some(others, 2 if len(chosen) == 1 and draft.chance(0.3) else 1, draft.rng)
        return filled(draft.pick(templates.PAIRED), "animal", draft, x=first, y=draft.names(extra))
    names = draft.names(chosen)
    detail = draft.chance(0.4)
    night = draft.chance(0.5)
    place = draft.place(scene, setting=True, time=detail and night, weather=detail and not night)
    return filled(draft.pick(templates.PLACED), "animal", draft, x=names, s=place)


def _objects(scene: Scene, things: list[Thing], draft: Draft) -> Caption:
    del scene
    others = [thing for thing in things if thing.kind.group != "animals"]
    chosen = _some(others, 3 if draft.chance(0.3) else 2, draft.rng)
    if draft.chance(0.4):
        first, rest = draft.names(chosen[:1]), draft.names(chosen[1:])
        return filled(draft.pick(templates.PAIRED), "things", draft, x=first, y=rest)
    return filled(draft.pick(templates.LIST), "things", draft, x=draft.names(chosen))


def relation_caption(scene: Scene, things: list[Thing], draft: Draft) -> Caption:
    """How two or three single things of a scene stand."""
    kind, chosen = _clear_relation(scene, things, draft)
    names = [draft.name(thing, exact=True) for thing in chosen]
    draft.fact["relations"] = [{"kind": kind, "of": list(range(len(chosen)))}]
    text = draft.pick(templates.RELATIONS[kind])
    text = text.format(**dict(zip("abc", names, strict=False)))
    if draft.chance(0.12):
        text += ", " + draft.place(scene, setting=True, time=False, weather=False)
    return draft.finish(text, "relation")


def _clear_relation(scene: Scene, things: list[Thing], draft: Draft) -> tuple[str, list[Thing]]:
    """Draws a relation of single objects that is obvious to the eye."""
    single = [thing for thing in things if thing.count == 1]
    boxes = {thing.kind.name: scene.objects[thing.indices[0]].box for thing in single}
    options: dict[str, list[list[Thing]]] = {}
    for first in single:
        for second in single:
            if first is second:
                continue
            one, two = boxes[first.kind.name], boxes[second.kind.name]
            for kind in obvious_relations(one, two):
                options.setdefault(kind, []).append([first, second])
            for third in single:
                if third in (first, second):
                    continue
                three = boxes[third.kind.name]
                aside = min(one[0] - two[2], three[0] - one[2]) > -0.02
                if aside and holds("between", one, two, three):
                    flank = [second, third] if draft.chance(0.5) else [third, second]
                    options.setdefault("between", []).append([first, *flank])
    if not options:  # two small objects, close and askew
        first, second = single[:2]
        kinds = ("left_of", "right_of", "above", "below")
        one, two = boxes[first.kind.name], boxes[second.kind.name]
        options = {kind: [[first, second]] for kind in kinds if holds(kind, one, two)}
    weights = [{"next_to": 1.6, "between": 1.2}.get(kind, 1.0) for kind in options]
    odds = np.array(weights) / np.sum(weights)
    kind = list(options)[int(draft.rng.choice(len(options), p=odds))]
    return kind, options[kind][int(draft.rng.integers(len(options[kind])))]


def obvious_relations(
    one: tuple[float, float, float, float], two: tuple[float, float, float, float]
) -> list[str]:
    """Returns the relations that hold beyond doubt, not merely by the margin."""
    across = (one[0] + one[2] - two[0] - two[2]) / 2
    down = (one[1] + one[3] - two[1] - two[3]) / 2
    kinds = []
    if abs(across) >= 0.14 and abs(across) >= 0.8 * abs(down):
        kinds.append("left_of" if across < 0 else "right_of")
    if abs(down) >= 0.14 and abs(down) >= 1.2 * abs(across):
        kinds.append("above" if down < 0 else "below")
    gap = max(one[0], two[0]) - min(one[2], two[2])
    if gap <= 0.07 and abs(down) <= 0.11 and abs(across) >= 0.12:
        kinds.append("next_to")
    return kinds


def _setting(scene: Scene, things: list[Thing], draft: Draft) -> Caption:
    dated, aired = scene.time is not None, scene.weather is not None
    if dated and aired and draft.chance(0.08):
        place = draft.place(scene, setting=True, time=True, weather=True)
        return filled(draft.pick(templates.BARE_PLACE), "setting", draft, s=place)
    timed, weathered = draft.chance(0.55), draft.chance(0.55)
    details = int(timed and dated) + int(weathered and aired)
    count = 2 if draft.chance({0: 0.55, 1: 0.25, 2: 0.12}[details]) else 1
    names = draft.names(_some(things, count, draft.rng))
    place = draft.place(scene, setting=True, time=timed, weather=weathered)
    return filled(draft.pick(templates.PLACED), "setting", draft, x=names, s=place)


def counting_caption(scene: Scene, things: list[Thing], draft: Draft) -> Caption:
    """A counted group of a scene, mostly with something else."""
    del scene
    groups = [thing for thing in things if thing.count > 1]
    counted = _some(groups, 1, draft.rng)[0]
    name = draft.name(counted, exact=True)
    number, _, plural = name.partition(" ")
    slots = {"n": number, "plural": plural}
    if draft.chance(0.12):
        alone = draft.pick(templates.COUNTED_ALONE)
        return filled(alone, "counting", draft, x=[name], extra=slots)
    rest = [thing for thing in things if thing is not counted]
    more = groups if len(groups) > 1 and draft.chance(0.6) else rest
    other = draft.names(_some([t for t in more if t is not counted], 1, draft.rng), exact=True)
    text = draft.pick(templates.COUNTED)
    return filled(text, "counting", draft, x=[name], y=other, extra=slots)


def filled(
    template: str,
    view: str,
    draft: Draft,
    *,
    x: list[str] | None = None,
    y: list[str] | None = None,
    s: str = "",
    extra: dict[str, str] | None = None,
) -> Caption:
    """A caption of what a draft has named: lists of names `x` and `y`, a place `s`."""
    slots = {"s": s, **(extra or {})}
    for slot, names in (("x", x), ("y", y)):
        if names:
            slots |= _agree(slot, names, draft)
    text = re.sub(r"\s+", " ", template.format(**slots)).strip()
    return draft.finish(text, view)


_WRITERS = (_animal, _objects, relation_caption, _setting, counting_caption)


def write_captions(scene: Scene, rng: np.random.Generator) -> tuple[Caption, ...]:
    """Writes one caption per view, in the order of `VIEWS`.

    Args:
        scene: ground truth from the renderer; it has an animal, two other things, a counted group
            and two single objects, as every sampled scene does.
        rng: the dice; the same dice give the same words.
    """
    things = things_of(scene)
    return tuple(writer(scene, things, Draft(rng)) for writer in _WRITERS)
