"""Samples the layout of a scene: setting, objects and positions, without rendering."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from polyview.training.scenes import world
from polyview.training.scenes.classes import CLASSES, Look, ObjectClass
from polyview.training.scenes.relevance import Box

_IMPOSSIBLE_WEATHERS = {"desert": ("rain", "snow"), "snowfield": ("rain",), "beach": ("snow",)}
_TIME_ODDS = (0.42, 0.33, 0.25)  # probabilities of `world.TIMES`
_WEATHER_ODDS = (0.46, 0.18, 0.18, 0.18)  # probabilities of `world.WEATHERS`


@dataclass(frozen=True)
class Placement:
    """A sprite and its place in an image; lengths are in pixels."""

    kind: ObjectClass
    look: Look
    x: float  # horizontal centre
    y: float  # vertical centre
    size: float  # side of the sprite
    mirrored: bool  # whether the sprite is flipped left to right
    tilt: float  # counter-clockwise rotation in degrees
    aloft: bool  # whether the sprite floats and casts no shadow


@dataclass(frozen=True)
class Layout:
    """All random choices of a scene."""

    setting: str
    time: str | None
    weather: str | None
    horizon: int  # row in pixels
    placements: tuple[Placement, ...]  # from back to front
    seed: int  # of the painter


@dataclass
class Board:
    """The occupied rectangles of an image."""

    setting: str
    horizon: int  # row in pixels
    occupied: list[Box] = field(default_factory=list)  # (x0, y0, x1, y1) in pixels

    def fits(self, x: float, y: float, width: float, height: float) -> bool:
        """Returns whether a rectangle centred at (x, y) is free, apart from overlaps up to 8 %."""
        for x0, y0, x1, y1 in self.occupied:
            overlap_x = min(x + width / 2, x1) - max(x - width / 2, x0)
            overlap_y = min(y + height / 2, y1) - max(y - height / 2, y0)
            smaller_area = min(width * height, (x1 - x0) * (y1 - y0))
            if min(overlap_x, overlap_y) > 0 and overlap_x * overlap_y > 0.08 * smaller_area:
                return False
        return True

    def occupy(self, x: float, y: float, width: float, height: float) -> None:
        """Marks a rectangle centred at (x, y) as occupied."""
        self.occupied.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))


def sample_layout(rng: np.random.Generator) -> Layout | None:
    """Samples a scene of 4 to 8 classes: 1 to 3 classes of animals and at least 2 other classes.

    One or two classes have 2 to 5 objects, the others have one. Returns None if not all fit.
    """
    setting = str(rng.choice(world.SETTINGS))
    time, weather = sample_conditions(setting, rng)
    horizon = int(rng.integers(74, 108))
    if setting in world.INDOORS or setting == "stage":
        horizon = int(rng.integers(104, 132))
    classes = _sample_classes(rng)
    min_size, max_size = 38 + 2 * (8 - len(classes)), 98 - 8 * (len(classes) - 4)
    plans = []
    for kind, count in classes:
        size = rng.uniform(min_size, max_size) if count == 1 else rng.uniform(32, 45)
        plans.append((kind, count, float(size)))
    plans.sort(key=lambda plan: plan[2] ** 2 * plan[1], reverse=True)  # largest first
    board, placements = Board(setting, horizon), []
    for kind, count, size in plans:
        group = place_group(kind, count, size, board, rng)
        if group is None:
            return None
        placements.extend(group)
    placements.sort(key=lambda item: (not item.aloft, item.y + item.size / 2))
    return Layout(setting, time, weather, horizon, tuple(placements), int(rng.integers(2**31)))


def sample_conditions(setting: str, rng: np.random.Generator) -> tuple[str | None, str | None]:
    """Samples the time of day and the weather of a setting, each None if the setting has none."""
    if setting in world.TIMELESS:
        return None, None
    time = str(rng.choice(world.TIMES, p=_TIME_ODDS))
    if setting in world.INDOORS:
        return time, None
    impossible_weathers = _IMPOSSIBLE_WEATHERS.get(setting, ())
    odds = np.array(_WEATHER_ODDS) * [name not in impossible_weathers for name in world.WEATHERS]
    return time, str(rng.choice(world.WEATHERS, p=odds / odds.sum()))


def _sample_classes(rng: np.random.Generator) -> list[tuple[ObjectClass, int]]:
    """Samples the classes of a scene, animals first, and the number of objects of each class."""
    total = int(rng.choice([4, 5, 6, 7, 8], p=[0.14, 0.26, 0.30, 0.20, 0.10]))
    animal_count = min(int(rng.choice([1, 2, 3], p=[0.40, 0.42, 0.18])), total - 2)
    kinds = list[ObjectClass]()
    for is_animal, number in ((True, animal_count), (False, total - animal_count)):
        pool = [kind for kind in CLASSES if (kind.group == "animals") == is_animal]
        kinds += [pool[i] for i in rng.choice(len(pool), number, replace=False)]
    group_count = 2 if rng.random() < 0.3 else 1
    group_indices = set(rng.choice(total, group_count, replace=False).tolist())
    counts = rng.choice([2, 3, 4, 5], size=total, p=[0.30, 0.30, 0.22, 0.18])
    return [(kind, int(counts[i]) if i in group_indices else 1) for i, kind in enumerate(kinds)]


def place_group(
    kind: ObjectClass, count: int, size: float, board: Board, rng: np.random.Generator
) -> list[Placement] | None:
    """Places the objects of a group together in free space; None if the group does not fit."""
    aloft = kind.aloft and rng.random() < 0.7
    look = kind.looks[int(rng.integers(len(kind.looks)))]
    for trial in range(90):
        if trial % 10 == 0:  # draw a new formation
            if trial % 20 == 10:  # shrink the group; from trial 50 on, put it on the ground
                size = max(size * 0.86, 32.0 if count > 1 else 40.0)
                aloft = aloft and trial < 45
            offsets = _sample_offsets(count, size, rng)
            width, height = (2 * offsets.max(0) + size).tolist()
        if width > world.SIZE - 4 or height > world.SIZE - 4:
            continue
        min_y, max_y = height / 2 + 2, world.SIZE - height / 2 - 2
        if aloft:
            max_y = max(board.horizon - height / 3, min_y + 1)
        elif board.setting not in world.FLOATING:
            min_y = max(min_y, board.horizon + 8 - size / 2 + (height - size) / 2)
        if min_y > max_y:
            continue
        x = rng.uniform(width / 2 + 2, world.SIZE - width / 2 - 2)
        y = rng.uniform(min_y, max_y)
        if board.fits(x, y, width, height):
            board.occupy(x, y, width, height)
            members = []
            for center_x, center_y in (offsets + np.array([x, y])).tolist():
                scale, mirrored = float(rng.uniform(0.94, 1.0)), bool(rng.random() < 0.5)
                pose = size * scale, mirrored, round(float(rng.uniform(-15, 15)), 1), aloft
                members.append(Placement(kind, look, center_x, center_y, *pose))
            return members
    return None


# number of objects -> possible offsets (x, y) of the objects, in units of their size
_FORMATIONS: dict[int, tuple[tuple[tuple[float, float], ...], ...]] = {
    1: (((0, 0),),),
    2: (((-0.5, 0), (0.5, 0)), ((-0.5, -0.15), (0.5, 0.15)), ((-0.45, -0.45), (0.45, 0.45))),
    3: (((-1, 0), (0, 0), (1, 0)), ((-0.5, 0.48), (0.5, 0.48), (0, -0.48))),
    4: (
        ((-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)),
        ((-1.5, 0), (-0.5, 0), (0.5, 0), (1.5, 0)),
        ((-1, 0), (0, -0.5), (0, 0.5), (1, 0)),
    ),
    5: (
        ((-1, -0.5), (0, -0.5), (1, -0.5), (-0.5, 0.5), (0.5, 0.5)),
        ((-0.5, -0.5), (0.5, -0.5), (-1, 0.5), (0, 0.5), (1, 0.5)),
    ),
}


def _sample_offsets(count: int, size: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns the offsets (count, 2) of a group's objects from the group's centre, in pixels."""
    options = _FORMATIONS[count]
    offsets = np.array(options[int(rng.integers(len(options)))], dtype=np.float64) * size * 1.02
    if count > 1:
        offsets += rng.uniform(-0.05, 0.05, offsets.shape) * size
    return offsets - (offsets.max(0) + offsets.min(0)) / 2
