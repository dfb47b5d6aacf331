"""The folder in which a rendered split is kept, and how to read it.

A finished folder holds:

- ``images.npy``: uint8 (N, SIZE, SIZE, 3) RGB.
- ``instances.npy``: uint8 (N, S, S); 0 is background, i + 1 means that ``objects[i]`` is what one
  sees there. S is SIZE for val and test; train is thinned to every fourth pixel.
- ``scenes.jsonl``: one `Scene` a line.
- ``meta.json``: what it was made from; written last.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.scenes.classes import CLASSES, COLORS, GROUPS
from training.scenes.world import (
    LABELS,
    SETTINGS,
    SIZE,
    TIMES,
    WEATHERS,
    WORLD_VERSION,
    Scene,
    Split,
)

THINNING: dict[str, int] = {"train": 4, "val": 1, "test": 1}
"""Every how many pixels a split's instance maps keep."""


class SceneDataError(ValueError):
    """A folder holds no usable scenes."""


@dataclass(frozen=True)
class SceneData:
    """A split as it lies on disk.

    Attributes:
        images: memory-mapped uint8 (N, SIZE, SIZE, 3) RGB.
        instances: memory-mapped uint8 (N, S, S), see the module's description.
        scenes: N scenes with captions.
        meta: what ``meta.json`` says.
    """

    images: NDArray[np.uint8]
    instances: NDArray[np.uint8]
    scenes: list[Scene]
    meta: dict[str, Any]

    def __len__(self) -> int:
        return len(self.scenes)


def make_meta(split: Split, seed: int, count: int, font_sha256: str) -> dict[str, Any]:
    """Returns the description of a split that is to be rendered."""
    return {
        "world_version": WORLD_VERSION,
        "seed": seed,
        "split": split,
        "count": count,
        "size": SIZE,
        "instances_size": len(range(0, SIZE, THINNING[split])),
        "font_sha256": font_sha256,
        "font": "Noto Color Emoji, SIL Open Font License 1.1",
        "classes": [kind.name for kind in CLASSES],
        "groups": list(GROUPS),
        "colors": list(COLORS),
        "settings": list(SETTINGS),
        "times": list(TIMES),
        "weathers": list(WEATHERS),
        "labels": list(LABELS),
    }


def read_meta(folder: Path) -> dict[str, Any]:
    """Reads a finished folder's description.

    Raises:
        SceneDataError: if the folder is missing, unfinished or of another world version.
    """
    if not folder.is_dir():
        raise SceneDataError(f"{folder} does not exist: render it with python -m training.scenes.")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        message = f"{folder} holds no finished scenes (no readable meta.json): render it again."
        raise SceneDataError(message) from error
    version = meta.get("world_version") if isinstance(meta, dict) else None
    if version != WORLD_VERSION or "twins_version" in meta:  # twins: removed in a later version
        raise SceneDataError(
            f"{folder} holds scenes of world version {version}, "
            f"this code reads version {WORLD_VERSION}: render it again with --force."
        )
    return dict(meta)


def load_scenes(path: str | Path) -> SceneData:
    """Opens a rendered split; pixels are memory-mapped, not read.

    Raises:
        SceneDataError: with a sentence, if the folder is missing, unfinished, damaged or of another
            world version.
    """
    folder = Path(path)
    meta = read_meta(folder)
    try:
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        instances = np.load(folder / "instances.npy", mmap_mode="r", allow_pickle=False)
        with (folder / "scenes.jsonl").open(encoding="utf-8") as lines:
            scenes = [Scene.from_json(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{folder} is damaged ({error}): render it again with --force."
        raise SceneDataError(message) from error
    count, size, small = meta["count"], meta["size"], meta["instances_size"]
    shapes = (len(scenes), images.shape, instances.shape)
    if shapes != (count, (count, size, size, 3), (count, small, small)):
        raise SceneDataError(f"{folder} does not hold the {count} scenes its meta.json promises.")
    return SceneData(images, instances, scenes, meta)
