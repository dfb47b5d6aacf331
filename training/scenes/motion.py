"""The record of a clip: its objects and their motion, from which all ground truth is computed.

A clip has 16 frames with a still background (`layout.py`) and two or three still objects. Two
*actors* act once each, one in the first half and one in the second half. In addition, either one
*mover* acts, or the whole image changes (night falls, rain begins).

Clips 2 k and 2 k + 1 are *twins*: their actors perform the same actions on the same paths in
opposite order. After its action an actor looks as before, so a method that ignores the order of
frames cannot decide to which twin "a dog jumps, then a rocket flies by" belongs. The movers of
twins have the same class and opposite actions. Everything else is drawn separately for each twin.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyview.training.scenes.classes import CLASS_OF, CLASSES, ObjectClass
from polyview.training.scenes.layout import Board, Layout, Placement, place_group, sample_conditions
from polyview.training.scenes.world import INDOORS, SETTINGS, SIZE, Split, scene_generator

MOVING_VERSION = 1  # increase when the same seed gives different pixels, ground truth or captions
FRAMES = 16
EVENT_FRAMES = 5  # the number of frames that an event takes
# actions of actors; with the actions of `_VISITS`, an actor is visible only while it acts
_VISITS = ("passes_right", "passes_left", "pops_up", "swings_down", "flashes")
PASSING = (*_VISITS, "jumps", "spins", "swells", "vanishes")
# actions of a mover; with `passes_front`, it passes in front of the object `Action.before`
LASTING = (
    *("enters_left", "enters_right", "leaves_left", "leaves_right", "takes_off", "drops_in"),
    *("grows", "shrinks", "moves_right", "moves_left", "tips_over", "passes_front"),
)
# action of a mover -> action of the mover of its twin
OPPOSITE = dict(zip(LASTING[::2], LASTING[1::2], strict=True))
OPPOSITE |= {second: first for first, second in OPPOSITE.items()}
# changes of the whole image that may replace a mover
CHANGES = {"night_falls": {"time": "night"}, "day_breaks": {"time": "day"}}
CHANGES |= {f"{weather}_begins": {"weather": weather} for weather in ("rain", "snow")}
_HIDDEN_BEFORE = {*_VISITS, "passes_front", "enters_left", "enters_right", "drops_in"}
_HIDDEN_AFTER = {*_VISITS, "passes_front", "leaves_left", "leaves_right", "takes_off"}
_PAIR_ATTEMPT, _CLIP_ATTEMPT = 2_000_000, 3_000_000  # values of `attempt` that scenes do not use
_MAX_ATTEMPTS = 200


@dataclass(frozen=True)
class Action:
    """An action of an object for `EVENT_FRAMES`."""

    kind: str  # an element of `PASSING` or `LASTING`
    start: int  # first frame
    before: int | None = None  # index of the object that a mover with `passes_front` passes


@dataclass(frozen=True)
class MovingObject:
    """An object of a clip: its class and look, its position or path, and its action."""

    name: str  # name of the class
    look: int  # index into the looks of the class
    x: float  # horizontal centre in pixels
    y: float  # vertical centre in pixels
    size: float  # side in pixels
    mirrored: bool
    tilt: float  # counter-clockwise rotation in degrees
    aloft: bool  # whether the object floats and casts no shadow
    deed: Action | None = None  # None for a still object; the name is a key of clips.jsonl

    @property
    def kind(self) -> ObjectClass:
        """The object's class."""
        return CLASS_OF[self.name]

    @property
    def color(self) -> str | None:
        """The object's colour; None if its class has no colours."""
        return self.kind.looks[self.look].color

    def at(self, frame: int) -> Placement | None:
        """Returns the placement in a frame; None if the object is not visible."""
        pose = self.x, self.y, self.size, self.mirrored, self.tilt, self.aloft
        base = Placement(self.kind, self.kind.looks[self.look], *pose)
        if self.deed is None:
            return base
        return _move(base, self.deed.kind, (frame - self.deed.start + 0.5) / EVENT_FRAMES)


@dataclass(frozen=True)
class ClipCaption:
    """A caption of a clip and its meaning."""

    text: str
    kind: str  # "free" (no motion), "motion" (of an object or the image) or "order" (of actions)
    mentions: tuple[int, ...]  # indices of the named objects
    fact: dict[str, Any]  # assertions, see `training/scenes/clip_captions.py`


@dataclass(frozen=True)
class Clip:
    """The ground truth of a clip, from which it is drawn."""

    id: str
    setting: str
    time: str | None  # of the first frame
    weather: str | None  # of the first frame
    change: str | None  # one of `CHANGES`
    change_start: int  # first frame of the change; 0 without a change
    horizon: int  # row in pixels
    seed: int  # of the painter
    objects: tuple[MovingObject, ...]  # two actors, the mover unless there is a change, others
    captions: tuple[ClipCaption, ...] = ()

    def action_of(self, index: int) -> Action:
        """Returns the action of an actor or the mover."""
        action = self.objects[index].deed
        assert action is not None
        return action

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """The backgrounds of the first and of the last frame, without objects."""
        first = Layout(self.setting, self.time, self.weather, self.horizon, (), self.seed)
        change: dict[str, Any] = CHANGES[self.change] if self.change else {}
        return first, replace(first, **change)

    def placements(self, frame: int) -> list[tuple[int, Placement]]:
        """Returns the indices and placements of a frame's visible objects, from back to front.

        Passing objects are in front of all others. Floating objects are behind those on the ground.
        """
        visible = []
        for index, item in enumerate(self.objects):
            if (place := item.at(frame)) is not None:
                passes = item.deed is not None and item.deed.kind.startswith("passes")
                visible.append(((passes, not place.aloft, item.y + place.size / 2), index, place))
        return [(index, place) for _, index, place in sorted(visible, key=lambda entry: entry[0])]


def _move(base: Placement, kind: str, progress: float) -> Placement | None:
    """Returns the placement at `progress`, 0 to 1 during the action; None if it is hidden."""
    if (progress <= 0 and kind in _HIDDEN_BEFORE) or (progress >= 1 and kind in _HIDDEN_AFTER):
        return None
    is_during = 0 < progress < 1
    if kind in PASSING and not is_during:
        return base
    if kind == "vanishes":
        return None
    share = min(max(progress, 0.0), 1.0)
    arc, path, half_size = math.sin(math.pi * share), SIZE + base.size, base.size / 2
    moves: dict[str, dict[str, Any]] = {
        "passes_right": {"x": share * path - half_size},
        "passes_left": {"x": SIZE + half_size - share * path},
        "passes_front": {"x": share * path - half_size},
        "pops_up": {"y": SIZE + base.size * (0.5 - 1.1 * arc)},
        "swings_down": {"y": base.size * (1.4 * arc - 0.5)},
        "jumps": {"y": base.y - 62 * arc},
        "spins": {"tilt": base.tilt + 360 * share},
        "swells": {"size": base.size * (1 + 0.9 * arc)},
        "enters_left": {"x": -half_size + share * (base.x + half_size)},
        "enters_right": {"x": SIZE + half_size + share * (base.x - (SIZE + half_size))},
        "leaves_left": {"x": base.x + share * (-half_size - base.x)},
        "leaves_right": {"x": base.x + share * (SIZE + half_size - base.x)},
        "takes_off": {"y": base.y + share * (-half_size - base.y)},
        "drops_in": {"y": -half_size + share * (base.y + half_size)},
        "moves_right": {"x": SIZE * 0.2 + share * (SIZE * 0.8 - SIZE * 0.2)},
        "moves_left": {"x": SIZE * 0.8 + share * (SIZE * 0.2 - SIZE * 0.8)},
        "tips_over": {"tilt": base.tilt + 90 * share},
        "grows": {"size": base.size * (0.6 + share * (1.5 - 0.6))},
        "shrinks": {"size": base.size * (1.5 + share * (0.6 - 1.5))},
    }
    return replace(base, **moves.get(kind, {}))


def draw_clip(seed: int, split: Split, index: int) -> Clip:
    """Draws clip `index` of a split, without captions; the same arguments give the same clip.

    Raises RuntimeError if the objects did not fit into the image in any attempt.
    """
    pair_rng = scene_generator(seed, split, index // 2, _PAIR_ATTEMPT)
    is_second_twin = index % 2 == 1
    actors = _draw_actors(pair_rng, is_second_twin)
    pool = [kind for kind in CLASSES if kind not in [actor.kind for actor in actors]]
    mover = pool[int(pair_rng.integers(len(pool)))]
    kinds = [kind for kind in LASTING if kind != "takes_off" or mover.aloft]
    action = kinds[int(pair_rng.integers(len(kinds)))]
    if is_second_twin:
        action = OPPOSITE[action]
    for attempt in range(_MAX_ATTEMPTS):
        rng = scene_generator(seed, split, index, _CLIP_ATTEMPT + attempt)
        if clip := _try_clip(f"{split}-{index:06d}", actors, mover, action, rng):
            return clip
    raise RuntimeError(f"no layout fits clip {split}-{index} of seed {seed}; choose another seed")


def _draw_actors(rng: np.random.Generator, is_second_twin: bool) -> list[MovingObject]:
    """Draws two actors, one for each half of the clip; the second twin exchanges the halves."""
    kinds = [CLASSES[i] for i in rng.choice(len(CLASSES), 2, replace=False)]
    starts = [int(rng.integers(1, 3)), int(rng.integers(9, 11))]
    weights = np.array([1.0 if kind in _VISITS else 0.5 for kind in PASSING])
    actions = [PASSING[i] for i in rng.choice(len(PASSING), 2, p=weights / weights.sum())]
    actors = []
    if is_second_twin:
        starts.reverse()
    for side, (kind, start, action) in enumerate(zip(kinds, starts, actions, strict=True)):
        size = float(rng.uniform(54, 76))
        in_sky = action in ("passes_right", "passes_left", "flashes") and kind.aloft
        y = float(rng.uniform(38, 78) if in_sky else rng.uniform(148, 178))
        x = float(rng.uniform(46, 92) if side == 0 else rng.uniform(132, 178))
        actor = _draw_object(rng, kind, x, y, size, in_sky)
        actors.append(replace(actor, deed=Action(action, start)))
    return actors


def _draw_object(
    rng: np.random.Generator, kind: ObjectClass, x: float, y: float, size: float, aloft: bool
) -> MovingObject:
    """Draws the look, flip and tilt of an object that has no action."""
    look, mirrored = int(rng.integers(len(kind.looks))), bool(rng.random() < 0.5)
    tilt = round(float(rng.uniform(-12, 12)), 1)
    x, y, size = round(x, 2), round(y, 2), round(size, 2)
    return MovingObject(kind.name, look, x, y, size, mirrored, tilt, aloft)


def _try_clip(
    name: str, actors: list[MovingObject], mover: ObjectClass, action: str, rng: np.random.Generator
) -> Clip | None:
    """Draws the setting, the change and the other objects of a clip; None if they do not fit."""
    setting = str(rng.choice(SETTINGS))
    time, weather = sample_conditions(setting, rng)
    is_inside = setting in INDOORS or setting == "stage"
    horizon = int(rng.integers(104, 132) if is_inside else rng.integers(74, 108))
    change = _draw_change(setting, time, weather, rng)
    board = Board(setting, horizon)
    for actor in actors:
        if actor.deed and actor.deed.kind not in _VISITS:
            board.occupy(actor.x, actor.y, actor.size, actor.size)
    pool = [kind for kind in CLASSES if kind not in (mover, *(actor.kind for actor in actors))]
    kinds = [pool[i] for i in rng.choice(len(pool), int(rng.integers(2, 4)), replace=False)]
    others = list[MovingObject]()
    for kind in [mover, *kinds] if change is None else kinds:
        group = place_group(kind, 1, float(rng.uniform(46, 66)), board, rng)
        if group is None:
            return None
        (place,) = group
        others.append(_draw_object(rng, kind, place.x, place.y, place.size, place.aloft))
    start, passed_index = int(rng.integers(2, 10)), None
    if change is None:  # others[0] is the mover
        if action == "passes_front":
            still_index = int(rng.integers(len(others) - 1))
            passed_index = 3 + still_index  # the actors and the mover come first
            others[0] = replace(others[0], y=others[1 + still_index].y + 4)
        others[0] = replace(others[0], deed=Action(action, start, passed_index))
    seed = int(rng.integers(2**31))
    change_start, objects = start if change else 0, (*actors, *others)
    return Clip(name, setting, time, weather, change, change_start, horizon, seed, objects)


def _draw_change(
    setting: str, time: str | None, weather: str | None, rng: np.random.Generator
) -> str | None:
    """Draws a change of the whole image in a third of the clips that allow one, otherwise None."""
    options = {"day": ["night_falls"], "night": ["day_breaks"]}.get(time or "", [])
    if weather == "clear":  # `weather` is None indoors and in timeless settings
        options += ["rain_begins"] if setting not in ("desert", "snowfield") else []
        options += ["snow_begins"] if setting not in ("desert", "beach") else []
    if not options or rng.random() > 0.33:
        return None
    return options[int(rng.integers(len(options)))]
