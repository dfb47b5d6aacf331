"""Twins: scenes that hold the same things in the same place, so that a caption has to say more.

The harder of the two worlds. Scenes 2 k and 2 k + 1 have one background and seven kinds of things
at the same seven spots. What differs, all at once:

- two single things have changed places,
- two groups have changed numbers (three apples and two keys, two apples and three keys),
- two things have changed colours (a red car and a blue book, a blue car and a red book),
- one thing has been replaced by another, which gives a reason to say what is *not* there.

Every caption is true of its scene and false of the twin, in one regard alone: without its relation
(or numbers, colours, what it says is not there) it would be true of both. Who takes a scene for a
bag of things ranks the two by chance, so that half of the captions at most find their scene first.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from training.scenes.captions import (
    Draft,
    counting_caption,
    filled,
    relation_caption,
    things_of,
    with_article,
)
from training.scenes.classes import CLASS_INDEX, CLASSES, Look, ObjectClass
from training.scenes.layout import Layout, Things, sample_layout
from training.scenes.relevance import satisfies, without
from training.scenes.render import MIN_VISIBLE, Rendered, render
from training.scenes.templates import PAIRED, WITHOUT
from training.scenes.world import Caption, Scene, Split, scene_generator

KINDS = {
    "side": ("relations",),
    "height": ("relations",),
    "number": ("count", "min"),
    "color": ("color",),
    "absence": ("absent",),
}
"""What the five captions of a scene are about, in their order, and the parts of a fact
(`relevance.py`) without which they would be true of the twin, too."""

_RELATIONS = {"side": ("left_of", "right_of"), "height": ("above", "below")}
_DICE = 5_000_000  # attempts from here on are no other world's
_MAX_ATTEMPTS = 2_000
_WORDINGS = 40  # of a caption, before the scene is drawn anew
_PLAIN = tuple(kind for kind in CLASSES if not kind.colors and not kind.aloft)
_COLORED = tuple(kind for kind in CLASSES if kind.colors)


def make_twins(seed: int, split: Split, pair: int) -> tuple[Rendered, Rendered]:
    """Renders two scenes that are twins, with captions; the same arguments give the same pixels.

    Args:
        seed: of the world.
        split: which split; splits share no seeds.
        pair: number of the pair; its scenes have the numbers 2 `pair` and 2 `pair` + 1.

    Returns:
        Both scenes with five captions each, in the order of `KINDS`.

    Raises:
        training.scenes.glyphs.FontMissingError: there is no emoji font.
    """
    for attempt in range(_MAX_ATTEMPTS):
        rng = scene_generator(seed, split, pair, _DICE + attempt)
        layout = sample_layout(rng, _sample_things)
        if layout is None or (layouts := _twins(layout, rng)) is None:
            continue
        names = (f"{split}-{2 * pair + i:06d}" for i in range(2))
        first, second = (render(drawn, name) for drawn, name in zip(layouts, names, strict=True))
        objects = first.scene.objects + second.scene.objects
        if any(item.visible < MIN_VISIBLE for item in objects):
            continue
        captions = [
            _captions(one.scene, other.scene, rng)
            for one, other in ((first, second), (second, first))
        ]
        if all(captions):
            return _with(first, captions[0]), _with(second, captions[1])
    raise RuntimeError(f"twins {split}-{pair} of seed {seed} not drawn in {_MAX_ATTEMPTS} attempts")


def _with(rendered: Rendered, captions: tuple[Caption, ...]) -> Rendered:
    return replace(rendered, scene=replace(rendered.scene, captions=captions))


def _sample_things(rng: np.random.Generator) -> Things:
    """Draws seven kinds: two single and plain, two groups, two with colours, and one more."""
    colored = [_COLORED[i] for i in rng.permutation(len(_COLORED))[:2]]
    plain = [_PLAIN[i] for i in rng.permutation(len(_PLAIN))[:5]]
    one, two = rng.choice([2, 3, 4, 5], 2, replace=False).tolist()
    counts = (1, 1, one, two, 1, 1, 1)
    kinds = (*plain[:4], *colored, plain[4])
    return list(zip(kinds, counts, strict=True))


def _twins(layout: Layout, rng: np.random.Generator) -> tuple[Layout, Layout] | None:
    """A layout with two colours that can be exchanged, and its twin; None if there is none."""
    counts = Counter(place.kind for place in layout.placements)
    colored = [kind for kind in counts if kind.colors]
    groups = [kind for kind in counts if counts[kind] > 1]
    singles = [kind for kind in counts if kind not in (*colored, *groups)]
    common = sorted(set(colored[0].colors) & set(colored[1].colors))
    one, two, gone = (singles[i] for i in rng.permutation(3))
    others = [kind for kind in _PLAIN if kind.group == gone.group and kind not in counts]
    if len(common) < 2 or not others:
        return None
    came = others[int(rng.integers(len(others)))]
    taken_by = {one: two, two: one, groups[0]: groups[1], groups[1]: groups[0], gone: came}
    looks = {place.kind: place.look for place in layout.placements} | {came: came.looks[0]}
    colors = [common[i] for i in rng.permutation(len(common))[:2]]

    def painted(taken_by: dict[ObjectClass, ObjectClass], colors: list[str]) -> Layout:
        worn = looks | {k: _look(k, color) for k, color in zip(colored, colors, strict=True)}
        kinds = [taken_by.get(place.kind, place.kind) for place in layout.placements]
        placements = (
            replace(place, kind=kind, look=worn[kind])
            for place, kind in zip(layout.placements, kinds, strict=True)
        )
        return replace(layout, placements=tuple(placements))

    return painted({}, colors), painted(taken_by, colors[::-1])


def _look(kind: ObjectClass, color: str) -> Look:
    return next(look for look in kind.looks if look.color == color)


def _captions(scene: Scene, twin: Scene, rng: np.random.Generator) -> tuple[Caption, ...]:
    """One caption of each of `KINDS` that is false of the twin; none if one is not found."""
    here = {item.name for item in scene.objects}
    missing = next(item.name for item in twin.objects if item.name not in here)
    captions = []
    for kind in KINDS:
        wordings = (_worded(kind, scene, missing, Draft(rng)) for _ in range(_WORDINGS))
        apart = (w for w in wordings if w and _tells(w, twin, KINDS[kind]))
        if (caption := next(apart, None)) is None:
            return ()
        captions.append(replace(caption, view=kind))
    return tuple(captions)


def _tells(caption: Caption, twin: Scene, parts: Collection[str]) -> bool:
    """Whether a caption is false of a twin, and would be true of it without some parts."""
    return not satisfies(twin, caption.fact) and satisfies(twin, without(caption.fact, parts))


def _worded(kind: str, scene: Scene, missing: str, draft: Draft) -> Caption | None:
    """A caption of a kind; None where chance has drawn another relation."""
    things = things_of(scene)
    plain = [replace(thing, color=None) for thing in things]  # the twin's are of other colours
    if kind == "color":
        more = plain[int(draft.rng.integers(len(plain)))]
        names = draft.names([thing for thing in things if thing.color and thing.kind != more.kind])
        return filled(draft.pick(PAIRED), kind, draft, x=names, y=[draft.name(more)])
    if kind == "number":
        return counting_caption(scene, plain, draft)
    if kind == "absence":
        chosen = [plain[i] for i in draft.rng.permutation(len(plain))[:2]]
        draft.fact["absent"] = [{"name": missing}]
        noun, plural = CLASSES[CLASS_INDEX[missing]].nouns[0]
        slots = {"n": noun, "a": with_article(noun), "plural": plural}
        return filled(draft.pick(WITHOUT), kind, draft, x=draft.names(chosen), extra=slots)
    caption = relation_caption(scene, plain, draft)
    fits = caption.fact["relations"][0]["kind"] in _RELATIONS[kind]
    return caption if fits else None
