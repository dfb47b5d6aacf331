"""Writes five captions for a clip, with their exact meaning, and says which clips satisfy one.

Two captions are free of motion (things together, things in their place), one is of motion, two tell
the order of what the actors do. A *fact* is what a caption asserts, every key optional:

- ``objects``: a list of ``{"name", "color"?}``; each is in the clip at some time.
- ``setting``; ``time`` and ``weather``, of clips in which they do not change.
- ``events``: a list of ``{"object", "kind", "before"?}`` with indices into ``objects``: that thing
  does it, in front of the other. With two events the first is over before the second begins.
- ``change``: what becomes of the whole picture.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from training.scenes import templates
from training.scenes.captions import Draft, Thing, join
from training.scenes.clip_templates import CHANGES, EVENTS, ORDER, WAY, WAY_ALOFT, WAYS
from training.scenes.motion import LASTS, Clip, ClipCaption, MovingObject
from training.scenes.world import Scene

KINDS = ("free", "motion", "order")


def write_clip_captions(clip: Clip, rng: np.random.Generator) -> tuple[ClipCaption, ...]:
    """Writes the captions; the same dice give the same words."""
    writers = (_together, _placed, _motion, _order, _order)
    return tuple(writer(clip, Draft(rng)) for writer in writers)


def _together(clip: Clip, draft: Draft) -> ClipCaption:
    """Two or three things, at least one of which the twin does not have."""
    still = [index for index, item in enumerate(clip.objects) if item.deed is None]
    others = draft.rng.permutation(still).tolist()
    chosen = [others[0], int(draft.rng.integers(2))]
    if draft.chance(0.3):
        chosen.append(others[1])
    names = _names(clip, draft, draft.rng.permutation(chosen).tolist())
    form = draft.pick(("{x}", "a clip with {x}", "{x} can be seen", "we see {x}", "there is {x}"))
    return _finished(clip, draft, form.format(x=join(names)), "free")


def _placed(clip: Clip, draft: Draft) -> ClipCaption:
    """One or two things and where they are."""
    others = draft.rng.permutation(np.arange(2, len(clip.objects))).tolist()
    names = _names(clip, draft, others[: 2 if draft.chance(0.4) else 1])
    still = clip.change is None
    timed, aired = still and draft.chance(0.5), still and draft.chance(0.5)
    scene = Scene(clip.id, clip.setting, clip.time, clip.weather, ())
    place = draft.place(scene, setting=True, time=timed, weather=aired)
    form = draft.pick(("{x} {s}", "{s} there is {x}", "a clip of {x} {s}", "{s} we see {x}"))
    return _finished(clip, draft, form.format(x=join(names), s=place), "free")


def _motion(clip: Clip, draft: Draft) -> ClipCaption:
    """What the mover does, or what becomes of the picture."""
    if clip.change is None:
        return _finished(clip, draft, _event(clip, draft, 2), "motion")
    draft.fact["change"], draft.fact["setting"] = clip.change, clip.setting
    place = draft.pick(templates.PLACES[clip.setting])
    text = draft.pick(CHANGES[clip.change]).format(s=place)
    if draft.chance(0.6):
        other = int(draft.rng.integers(2, len(clip.objects)))
        text = f"{text}, with {_names(clip, draft, [other])[0]}"
    return _finished(clip, draft, text, "motion")


def _order(clip: Clip, draft: Draft) -> ClipCaption:
    """What the actors do, one after the other."""
    first, second = sorted((0, 1), key=lambda index: _start(clip.objects[index]))
    earlier, later = _event(clip, draft, first), _event(clip, draft, second)
    return _finished(clip, draft, draft.pick(ORDER).format(e=earlier, f=later), "order")


def _event(clip: Clip, draft: Draft, index: int) -> str:
    """A sentence about what a thing does, which it asserts."""
    item = clip.objects[index]
    assert item.deed is not None
    number = len(draft.things)
    fact: dict[str, Any] = {"object": number, "kind": item.deed.kind}
    name, other = _names(clip, draft, [index])[0], ""
    if item.deed.before is not None:
        other = _names(clip, draft, [item.deed.before])[0]
        fact["before"] = number + 1
    draft.fact.setdefault("events", []).append(fact)
    way = WAY_ALOFT if item.aloft else WAYS.get(item.kind.group, WAY)
    return draft.pick(EVENTS[item.deed.kind]).format(a=name, b=other, go=way)


def _names(clip: Clip, draft: Draft, indices: Sequence[int]) -> list[str]:
    """Names things, and asserts them."""
    things = [Thing(clip.objects[i].kind, (int(i),), clip.objects[i].color) for i in indices]
    return [draft.name(thing) for thing in things]


def _finished(clip: Clip, draft: Draft, text: str, kind: str) -> ClipCaption:
    del clip
    mentions = tuple(sorted({index for thing in draft.things for index in thing.indices}))
    return ClipCaption(" ".join(text.split()), kind, mentions, draft.fact)


def _start(item: MovingObject) -> int:
    return -1 if item.deed is None else item.deed.start


def satisfies_clip(clip: Clip, fact: dict[str, Any]) -> bool:
    """Whether a clip's truth satisfies every assertion of a fact."""
    if fact.get("setting", clip.setting) != clip.setting:
        return False
    if fact.get("change", clip.change) != clip.change:
        return False
    for key in ("time", "weather"):
        if key in fact and (clip.change is not None or getattr(clip, key) != fact[key]):
            return False
    matches = [
        [
            index
            for index, item in enumerate(clip.objects)
            if item.name == wanted["name"] and wanted.get("color", item.color) == item.color
        ]
        for wanted in fact.get("objects", [])
    ]
    return any(_events_hold(clip, chosen, fact.get("events", [])) for chosen in product(*matches))


def _events_hold(clip: Clip, chosen: tuple[int, ...], events: list[dict[str, Any]]) -> bool:
    over = -LASTS
    for event in events:
        deed = clip.objects[chosen[event["object"]]].deed
        if deed is None or deed.kind != event["kind"] or deed.start < over:
            return False
        if "before" in event and deed.before != chosen[event["before"]]:
            return False
        over = deed.start + LASTS
    return True


def relevant_clips(clips: Sequence[Clip]) -> list[np.ndarray]:
    """For each caption of the clips, clip by clip, the ascending indices of all that satisfy it."""
    holders: dict[str, set[int]] = {}
    for row, clip in enumerate(clips):
        for item in clip.objects:
            holders.setdefault(item.name, set()).add(row)
    found = []
    for clip in clips:
        for caption in clip.captions:
            rows = set(range(len(clips)))
            for wanted in caption.fact.get("objects", []):
                rows &= holders[wanted["name"]]
            right = [row for row in sorted(rows) if satisfies_clip(clips[row], caption.fact)]
            found.append(np.array(right, np.int64))
    return found
