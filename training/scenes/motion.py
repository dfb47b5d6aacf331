"""What a clip is, and how its things move: the record that is stored, and that all truth is from.

A clip has 16 frames of a still background (`layout.py`), in which two or three things stand, one
*mover* does something, or night falls or rain begins, and two *actors* do one thing each, one in
the first half and one in the second. Clips come in *twins*, 2 k and 2 k + 1: the same actors do the
same on the same paths, in the other order. What actors do passes, and they are afterwards as they
were before, so that the frames of twins hold the same of them: who does not know their order cannot
tell which twin "a dog jumps, then a rocket flies by" is of. The movers of twins are of one class
and do the opposite. All else differs between twins.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from training.scenes.classes import CLASS_INDEX, CLASSES, Look, ObjectClass
from training.scenes.layout import Board, Layout, Placement, place_thing, sample_conditions
from training.scenes.world import INDOORS, SETTINGS, SIZE, TIMELESS, Split, scene_generator

MOVING_VERSION = 1
"""Raised whenever the same seed would give other pixels, truth or captions."""

FRAMES = 16
LASTS = 5
"""How many frames an event takes."""

PASSING = (
    *("passes_right", "passes_left", "pops_up", "swings_down", "flashes"),
    *("jumps", "spins", "swells", "vanishes"),
)
"""What actors do; the first five are there only while they do it."""

LASTING = (
    *("enters_left", "enters_right", "leaves_left", "leaves_right", "takes_off", "drops_in"),
    *("grows", "shrinks", "moves_right", "moves_left", "tips_over", "passes_front"),
)
"""What a mover does; `passes_front` of the thing `Deed.before`."""

OPPOSITE = {
    "enters_left": "enters_right",
    "leaves_left": "leaves_right",
    "takes_off": "drops_in",
    "grows": "shrinks",
    "moves_left": "moves_right",
    "tips_over": "passes_front",
}
OPPOSITE |= {second: first for first, second in OPPOSITE.items()}
"""What a mover's twin does in place of each of `LASTING`."""

CHANGES = ("night_falls", "day_breaks", "rain_begins", "snow_begins")
"""What may happen to the whole picture in a mover's place."""

_VISITORS = frozenset(PASSING[:5])
_PAIR_DICE, _CLIP_DICE = 2_000_000, 3_000_000  # attempts that no still scene reaches
_ATTEMPTS = 200


@dataclass(frozen=True)
class Deed:
    """What one thing does.

    Attributes:
        kind: one of `PASSING` or `LASTING`.
        start: its first frame; it takes `LASTS` frames.
        before: index of the thing that the path leads before, else None.
    """

    kind: str
    start: int
    before: int | None = None


@dataclass(frozen=True)
class MovingObject:
    """One thing of a clip and how it stands or, where it passes, where its path is.

    Attributes:
        name: of its class.
        look: which of its class's looks.
        x: centre in pixels, as are `y` and the side `size`.
        tilt: counter-clockwise rotation in degrees.
        aloft: it floats, and throws no shadow.
        deed: what it does; None stands still.
    """

    name: str
    look: int
    x: float
    y: float
    size: float
    mirrored: bool
    tilt: float
    aloft: bool
    deed: Deed | None = None

    @property
    def kind(self) -> ObjectClass:
        """Its class."""
        return CLASSES[CLASS_INDEX[self.name]]

    @property
    def color(self) -> str | None:
        """Its colour, if its class comes in several."""
        return self.shown.color

    @property
    def shown(self) -> Look:
        """Its look."""
        return self.kind.looks[self.look]

    def at(self, frame: int) -> Placement | None:
        """Where it is in a frame; None while it is not there."""
        base = Placement(
            self.kind, self.shown, self.x, self.y, self.size, self.mirrored, self.tilt, self.aloft
        )
        if self.deed is None:
            return base
        done = (frame - self.deed.start + 0.5) / LASTS  # below 0 before, above 1 after
        return _moved(base, self.deed.kind, done)


@dataclass(frozen=True)
class ClipCaption:
    """One caption of a clip.

    Attributes:
        text: lower-case English.
        kind: "free" of what there is, "motion" of what one thing or the picture does, "order" of
            which actor comes first.
        mentions: indices of the things it names.
        fact: what it asserts, see `training/scenes/clip_captions.py`.
    """

    text: str
    kind: str
    mentions: tuple[int, ...]
    fact: dict[str, Any]


@dataclass(frozen=True)
class Clip:
    """A clip, all that is needed to draw it.

    Attributes:
        id: split and index.
        setting, time, weather: of the first frame.
        change: one of `CHANGES`, and `change_start` the frame in which it begins; None and 0.
        horizon: row of it in pixels.
        seed: of the painter's own dice.
        objects: the two actors, then the mover if there is one, then what stands still.
        captions: five.
    """

    id: str
    setting: str
    time: str | None
    weather: str | None
    change: str | None
    change_start: int
    horizon: int
    seed: int
    objects: tuple[MovingObject, ...]
    captions: tuple[ClipCaption, ...] = ()

    @property
    def layout(self) -> Layout:
        """The first frame's background, with nothing on it."""
        return Layout(self.setting, self.time, self.weather, self.horizon, (), self.seed)

    @property
    def changed(self) -> Layout:
        """The last frame's background."""
        new = {
            "night_falls": {"time": "night"},
            "day_breaks": {"time": "day"},
            "rain_begins": {"weather": "rain"},
            "snow_begins": {"weather": "snow"},
        }
        return replace(self.layout, **new.get(self.change or "", {}))  # type: ignore[arg-type]

    def placements(self, frame: int) -> list[tuple[int, Placement]]:
        """What is in a frame, from back to front: indices and places of the objects."""
        there = [(index, item.at(frame)) for index, item in enumerate(self.objects)]
        found = [(index, place) for index, place in there if place is not None]
        return sorted(found, key=lambda entry: self._depth(*entry))

    def _depth(self, index: int, place: Placement) -> tuple[bool, bool, float]:
        """Who passes is in front of all; then what floats is behind what stands lower."""
        deed = self.objects[index].deed
        passes = deed is not None and deed.kind.startswith("passes")
        return passes, not place.aloft, self.objects[index].y + place.size / 2

    def to_json(self) -> dict[str, Any]:
        """The clip as plain JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> Clip:
        """A clip from what `to_json` returned."""
        objects = tuple(
            MovingObject(**{**item, "deed": Deed(**item["deed"]) if item["deed"] else None})
            for item in record["objects"]
        )
        captions = tuple(
            ClipCaption(**{**item, "mentions": tuple(item["mentions"])})
            for item in record["captions"]
        )
        return Clip(**{**record, "objects": objects, "captions": captions})


def _moved(base: Placement, kind: str, done: float) -> Placement | None:
    """Where something is that has done a share of what it does."""
    now = min(max(done, 0.0), 1.0)
    if kind in PASSING:
        if not 0 < done < 1:
            return None if kind in _VISITORS else base
        return _passing(base, kind, now)
    begun, over, reach = done > 0, done >= 1, SIZE + base.size
    if kind == "passes_front":
        return replace(base, x=now * reach - base.size / 2) if begun and not over else None
    if (kind.startswith(("enters", "drops")) and not begun) or (
        kind.startswith(("leaves", "takes")) and over
    ):
        return None
    left, right, up = -base.size / 2, SIZE + base.size / 2, -base.size / 2
    paths = {  # from where to where: x and y
        "enters_left": ((left, base.y), (base.x, base.y)),
        "enters_right": ((right, base.y), (base.x, base.y)),
        "leaves_left": ((base.x, base.y), (left, base.y)),
        "leaves_right": ((base.x, base.y), (right, base.y)),
        "takes_off": ((base.x, base.y), (base.x, up)),
        "drops_in": ((base.x, up), (base.x, base.y)),
        "moves_right": ((SIZE * 0.2, base.y), (SIZE * 0.8, base.y)),
        "moves_left": ((SIZE * 0.8, base.y), (SIZE * 0.2, base.y)),
    }
    if kind in paths:
        (x0, y0), (x1, y1) = paths[kind]
        return replace(base, x=x0 + now * (x1 - x0), y=y0 + now * (y1 - y0))
    if kind == "tips_over":
        return replace(base, tilt=base.tilt + 90 * now)
    sizes = {"grows": (0.6, 1.5), "shrinks": (1.5, 0.6)}
    small, large = sizes[kind]
    return replace(base, size=base.size * (small + now * (large - small)))


def _passing(base: Placement, kind: str, now: float) -> Placement | None:
    """Where something is in the midst of what passes."""
    arc, reach = math.sin(math.pi * now), SIZE + base.size
    if kind == "passes_right":
        return replace(base, x=now * reach - base.size / 2)
    if kind == "passes_left":
        return replace(base, x=SIZE + base.size / 2 - now * reach)
    if kind == "pops_up":
        return replace(base, y=SIZE + base.size * (0.5 - 1.1 * arc))
    if kind == "swings_down":
        return replace(base, y=base.size * (1.4 * arc - 0.5))
    if kind == "jumps":
        return replace(base, y=base.y - 62 * arc)
    if kind == "spins":
        return replace(base, tilt=base.tilt + 360 * now)
    if kind == "swells":
        return replace(base, size=base.size * (1 + 0.9 * arc))
    return base if kind == "flashes" else None


def draw_clip(seed: int, split: Split, index: int) -> Clip:
    """Draws clip `index` of a split by lot, without captions; the same arguments, the same clip.

    Raises:
        RuntimeError: there was no room for what was drawn, many times over.
    """
    shared = scene_generator(seed, split, index // 2, _PAIR_DICE)
    actors = _actors(shared)
    mover, does = _mover(shared, [actor.name for actor in actors])
    if index % 2:
        actors, does = _swapped(*actors), OPPOSITE[does]
    for attempt in range(_ATTEMPTS):
        rng = scene_generator(seed, split, index, _CLIP_DICE + attempt)
        clip = _draw(f"{split}-{index:06d}", actors, mover, does, rng)
        if clip is not None:
            return clip
    raise RuntimeError(f"clip {split}-{index} of seed {seed} found no room in {_ATTEMPTS} attempts")


def _actors(rng: np.random.Generator) -> list[MovingObject]:
    """Two things that do something that passes, the first in the first half."""
    kinds = rng.choice(len(CLASSES), 2, replace=False)
    starts = int(rng.integers(1, 3)), int(rng.integers(9, 11))
    weights = np.array([1.0 if kind in _VISITORS else 0.5 for kind in PASSING])
    deeds = rng.choice(len(PASSING), 2, p=weights / weights.sum())
    actors = []
    for side, (which, start, deed) in enumerate(zip(kinds, starts, deeds, strict=True)):
        kind, does = CLASSES[which], PASSING[deed]
        size = float(rng.uniform(54, 76))
        high = does in ("passes_right", "passes_left", "flashes") and kind.aloft
        lane = rng.uniform(38, 78) if high else rng.uniform(148, 178)
        x = rng.uniform(46, 92) if side == 0 else rng.uniform(132, 178)
        actors.append(_thing(kind, rng, float(x), float(lane), size, high, Deed(does, start)))
    return actors


def _swapped(first: MovingObject, second: MovingObject) -> list[MovingObject]:
    """Actors that do what they do in the other order."""
    one, two = first.deed, second.deed
    if one is None or two is None:
        raise ValueError("actors must do something")
    return [
        replace(first, deed=replace(one, start=two.start)),
        replace(second, deed=replace(two, start=one.start)),
    ]


def _mover(rng: np.random.Generator, taken: list[str]) -> tuple[ObjectClass, str]:
    """The class of a mover, none of those taken, and what the first twin's does."""
    free = [kind for kind in CLASSES if kind.name not in taken]
    kind = free[int(rng.integers(len(free)))]
    kinds = [does for does in LASTING if does != "takes_off" or kind.aloft]
    return kind, kinds[int(rng.integers(len(kinds)))]


def _thing(
    kind: ObjectClass,
    rng: np.random.Generator,
    x: float,
    y: float,
    size: float,
    aloft: bool,
    deed: Deed | None,
) -> MovingObject:
    look, mirrored = int(rng.integers(len(kind.looks))), bool(rng.random() < 0.5)
    tilt = round(float(rng.uniform(-12, 12)), 1)
    return MovingObject(
        kind.name, look, round(x, 2), round(y, 2), round(size, 2), mirrored, tilt, aloft, deed
    )


def _draw(
    name: str, actors: list[MovingObject], mover: ObjectClass, does: str, rng: np.random.Generator
) -> Clip | None:
    """Everything else of a clip; None if it found no room."""
    setting = str(rng.choice(SETTINGS))
    time, weather = sample_conditions(setting, rng)
    inside = setting in INDOORS or setting == "stage"
    horizon = int(rng.integers(104, 132) if inside else rng.integers(74, 108))
    change = _change(setting, time, weather, rng)
    board = Board()
    for actor in actors:
        if actor.deed is not None and actor.deed.kind not in _VISITORS:
            board.take(actor.x, actor.y, actor.size, actor.size)
    free = [kind for kind in CLASSES if kind.name not in {mover.name, *(a.name for a in actors)}]
    kinds = [free[i] for i in rng.choice(len(free), int(rng.integers(2, 4)), replace=False)]
    things = list[MovingObject]()
    for kind in [mover, *kinds] if change is None else kinds:
        size = float(rng.uniform(46, 66))
        placed = place_thing(kind, 1, size, setting, horizon, board, rng)
        if placed is None:
            return None
        place = placed[0]
        things.append(_thing(kind, rng, place.x, place.y, place.size, place.aloft, None))
    start = int(rng.integers(2, 10))
    if change is None:
        things[0] = _set_going(things[0], things[1:], does, start, rng)
    objects = [*actors, *things]
    seed = int(rng.integers(2**31))
    return Clip(
        name, setting, time, weather, change, start if change else 0, horizon, seed, tuple(objects)
    )


def _set_going(
    item: MovingObject, still: list[MovingObject], does: str, start: int, rng: np.random.Generator
) -> MovingObject:
    """A mover with what it does, at a place from which it can."""
    before = None
    if does == "passes_front":
        target = int(rng.integers(len(still)))
        before, item = 3 + target, replace(item, y=still[target].y + 4)  # behind actors and mover
    return replace(item, deed=Deed(does, start, before))


def _change(
    setting: str, time: str | None, weather: str | None, rng: np.random.Generator
) -> str | None:
    """What becomes of the whole picture, in a third of the clips in which something can."""
    options = {"day": ["night_falls"], "night": ["day_breaks"]}.get(time or "", [])
    if weather == "clear" and setting not in TIMELESS:
        options += ["rain_begins"] if setting not in ("desert", "snowfield") else []
        options += ["snow_begins"] if setting not in ("desert", "beach") else []
    if not options or rng.random() > 0.33:
        return None
    return options[int(rng.integers(len(options)))]
