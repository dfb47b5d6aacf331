"""The record of a scene, from which all ground truth is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyview.export.pack.gallery import GalleryImage
from polyview.training.scenes.classes import CLASSES

WORLD_VERSION = 1  # increase when the same seed gives different pixels, ground truth or captions
SIZE = 224  # width and height of a scene in pixels
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

TIMES = ("day", "night", "sunset")
WEATHERS = ("clear", "rain", "snow", "fog")
SETTINGS = (
    *("meadow", "beach", "street", "snowfield", "sea", "desert", "room"),
    *("forest", "mountains", "farm", "kitchen", "stage", "moon", "underwater"),
)
INDOORS = frozenset({"room", "kitchen"})  # settings without weather
TIMELESS = frozenset({"stage", "moon", "underwater"})  # settings without time of day and weather
FLOATING = frozenset({"moon", "underwater"})  # settings in which all objects may float


@dataclass(frozen=True)
class SceneObject:
    """A visible object."""

    name: str  # name of the class
    group: str  # group of the class
    color: str | None  # None if the class has no colours
    box: tuple[float, float, float, float]  # relative xyxy in 0..1, including covered pixels
    visible: float  # share of the pixels inside the image that are not covered, in 0..1
    glyph: str  # the emoji that is drawn
    mirrored: bool  # whether the emoji is flipped left to right
    tilt: float  # counter-clockwise rotation in degrees


@dataclass(frozen=True)
class Caption:
    """A caption and its meaning."""

    text: str  # lower-case English
    view: str  # aspect of the scene: animal, things, relation, setting or counting
    mentions: tuple[int, ...]  # indices of the mentioned objects in `Scene.objects`
    fact: dict[str, Any]  # assertions, see `training/scenes/relevance.py`


@dataclass(frozen=True)
class Scene:
    """The ground truth of a scene: objects from back to front, and five captions."""

    id: str
    setting: str
    time: str | None
    weather: str | None
    objects: tuple[SceneObject, ...]
    captions: tuple[Caption, ...] = ()


Truth = Scene | GalleryImage  # a scene, or its image in a gallery, which has the same attributes


def scene_generator(seed: int, split: Split, index: int, attempt: int = 0) -> np.random.Generator:
    """Returns the random generator of a scene, distinct for each combination of arguments."""
    return np.random.default_rng([seed, SPLITS.index(split), index, attempt])


# the labels of `label_matrix` by group, in column order
LABEL_GROUPS: dict[str, tuple[str, ...]] = {
    "objects": tuple(kind.name for kind in CLASSES),
    "setting": tuple(f"setting:{name}" for name in SETTINGS),
    "time": tuple(f"time:{name}" for name in TIMES),
    "weather": tuple(f"weather:{name}" for name in WEATHERS),
    "color": tuple(f"color:{color} {kind.name}" for kind in CLASSES for color in kind.colors),
}
LABELS: tuple[str, ...] = tuple(name for names in LABEL_GROUPS.values() for name in names)


def label_matrix(scenes: Sequence[Scene]) -> NDArray[np.float32]:
    """Returns the multi-hot labels (S, C) float32 of S scenes; the C columns are `LABELS`.

    A scene without a time of day or weather has zeros in all columns of that group.
    """
    labels = np.zeros((len(scenes), len(LABELS)), dtype=np.float32)
    for row, scene in enumerate(scenes):
        names = {f"setting:{scene.setting}", f"time:{scene.time}", f"weather:{scene.weather}"}
        names |= {item.name for item in scene.objects}
        names |= {f"color:{item.color} {item.name}" for item in scene.objects}
        labels[row] = [name in names for name in LABELS]
    return labels
