"""Writes five captions for a clip and their facts, and tests whether a clip satisfies a fact.

Two captions state no motion (objects together, objects at a place), one states a motion, and two
state the order of the actors' actions. A *fact* has the assertions of a caption; keys are optional:

- ``objects``: a list of ``{"name", "color"?}``; each object appears in the clip at some time.
- ``setting``; ``time`` and ``weather``, which hold only for clips without a ``change``.
- ``events``: a list of ``{"object", "kind", "before"?}``: the object with this index in ``objects``
  performs the action, in front of the object ``before``. The first event ends before the second
  begins.
- ``change``: a change of the whole image.
"""

from itertools import product
from typing import Any

import numpy as np

from polyview.training.scenes.captions import SENTENCES, Draft, ObjectGroup, join_names
from polyview.training.scenes.motion import EVENT_FRAMES, Clip, ClipCaption
from polyview.training.scenes.relevance import find_matches

_CONDITIONS = ("setting", "change", "time", "weather")
_OBJECT_TEMPLATES = ("{x}", "a clip with {x}", "{x} can be seen", "we see {x}", "there is {x}")
_VERBS = {"animals": "runs", "people": "walks", "vehicles": "drives"}  # other groups slide
_PLACE_TEMPLATES = ("{x} {s}", "{s} there is {x}", "a clip of {x} {s}", "{s} we see {x}")


def write_clip_captions(clip: Clip, rng: np.random.Generator) -> tuple[ClipCaption, ...]:
    """Writes the captions of a clip; `rng` draws the objects and words."""
    kinds = ("free", "free", "motion", "order", "order")
    writers = _write_objects, _write_place, _write_motion, _write_order, _write_order
    captions = []
    for kind, write in zip(kinds, writers, strict=True):
        draft = Draft(rng)
        text = " ".join(write(clip, draft).split())
        captions.append(ClipCaption(text, kind, draft.mentions(), draft.fact))
    return tuple(captions)


def _write_objects(clip: Clip, draft: Draft) -> str:
    """Writes a caption about a still object, an actor and, sometimes, another still object."""
    still_objects = [index for index, item in enumerate(clip.objects) if item.deed is None]
    shuffled = draft.rng.permutation(still_objects).tolist()
    indices = [shuffled[0], int(draft.rng.integers(2))]  # objects 0 and 1 are the actors
    if draft.chance(0.3):
        indices.append(shuffled[1])
    names = [_name_object(clip, draft, index) for index in draft.rng.permutation(indices).tolist()]
    return draft.pick(_OBJECT_TEMPLATES).format(x=join_names(names))


def _write_place(clip: Clip, draft: Draft) -> str:
    """Writes a caption about the place, and one or two objects that are not actors."""
    others = draft.rng.permutation(np.arange(2, len(clip.objects))).tolist()
    names = [_name_object(clip, draft, index) for index in others[: 2 if draft.chance(0.4) else 1]]
    is_constant = clip.change is None  # time and weather hold for the whole clip
    with_time, with_weather = is_constant and draft.chance(0.5), is_constant and draft.chance(0.5)
    place = draft.describe(clip, time=with_time, weather=with_weather)
    return draft.pick(_PLACE_TEMPLATES).format(x=join_names(names), s=place)


def _write_motion(clip: Clip, draft: Draft) -> str:
    """Writes a caption about the mover's action, or about the change of the whole image."""
    if clip.change is None:
        return _write_event(clip, draft, 2)  # object 2 is the mover
    draft.fact["change"] = clip.change
    place = draft.describe(clip)
    text = draft.pick(SENTENCES["changes"][clip.change]).format(s=place)
    if draft.chance(0.6):
        other = int(draft.rng.integers(2, len(clip.objects)))
        text = f"{text}, with {_name_object(clip, draft, other)}"
    return text


def _write_order(clip: Clip, draft: Draft) -> str:
    """Writes a caption about the actions of both actors, in the order in which they happen."""
    first, second = sorted((0, 1), key=lambda index: clip.action_of(index).start)
    earlier, later = _write_event(clip, draft, first), _write_event(clip, draft, second)
    return draft.pick(SENTENCES["order"]).format(e=earlier, f=later)


def _write_event(clip: Clip, draft: Draft, index: int) -> str:
    """Writes a clause about an object's action and adds the action to the fact."""
    item, action, fact_index = clip.objects[index], clip.action_of(index), len(draft.groups)
    event: dict[str, Any] = {"object": fact_index, "kind": action.kind}
    name, other_name = _name_object(clip, draft, index), ""
    if action.before is not None:
        other_name = _name_object(clip, draft, action.before)
        event["before"] = fact_index + 1
    draft.fact.setdefault("events", []).append(event)
    verb = "flies" if item.aloft else _VERBS.get(item.kind.group, "slides")
    return draft.pick(SENTENCES["events"][action.kind]).format(a=name, b=other_name, go=verb)


def _name_object(clip: Clip, draft: Draft, index: int) -> str:
    """Names an object and adds it to the fact."""
    item = clip.objects[index]
    return draft.name(ObjectGroup(item.kind, (index,), item.color))


def satisfies_clip(clip: Clip, fact: dict[str, Any]) -> bool:
    """Returns whether a clip satisfies every assertion of a fact."""
    if any(getattr(clip, key) != fact[key] for key in _CONDITIONS if key in fact):
        return False
    if clip.change is not None and ("time" in fact or "weather" in fact):
        return False
    matches = [find_matches(clip.objects, item) for item in fact.get("objects", [])]
    return any(_events_hold(clip, indices, fact.get("events", [])) for indices in product(*matches))


def _events_hold(clip: Clip, indices: tuple[int, ...], events: list[dict[str, Any]]) -> bool:
    """Returns whether the objects with these indices perform the events one after another."""
    next_start = 0  # the first frame after the previous event
    for event in events:
        deed = clip.objects[indices[event["object"]]].deed
        if deed is None or deed.kind != event["kind"] or deed.start < next_start:
            return False
        if "before" in event and deed.before != indices[event["before"]]:
            return False
        next_start = deed.start + EVENT_FRAMES
    return True
