"""What a caption asserts, and which scenes satisfy it.

A *fact* is a JSON object; every key is optional and every assertion present must hold:

- ``objects``: a list of ``{"name", "color"?, "count"?, "min"?}``. Only objects of that class are
  considered, and of that colour if one is given. ``count`` demands exactly that many ("three
  apples"), ``min`` at least that many ("some apples": 2, "several apples": 3). With neither, one
  suffices: "a dog" is true of a scene with two dogs, as it is in ordinary speech.
- ``relations``: a list of ``{"kind", "of": [i, j]}`` with indices into ``objects`` (three for
  ``between``). Some objects that fit the descriptions must stand so.
- ``setting``, ``time``, ``weather``: must be equal. What a caption does not say is not asserted.

Relations hold between boxes in relative coordinates, see `holds`; they are deliberately a little
wider than the cases the captions are made from, so that no borderline scene counts as wrong.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.scenes.classes import CLASS_INDEX, COLORS
from training.scenes.world import SETTINGS, TIMES, WEATHERS, Caption, Scene, SceneObject

Box = tuple[float, float, float, float]

MARGIN = 0.06
"""How far apart two centres must be for left, right, above and below."""

NEXT_GAP = 0.10
NEXT_DRIFT = 0.16
BETWEEN_DRIFT = 0.18


def holds(kind: str, first: Box, second: Box, third: Box | None = None) -> bool:
    """Whether a spatial relation holds between relative xyxy boxes.

    ``left_of``, ``right_of``, ``above``, ``below``: the centres differ by at least `MARGIN` in that
    direction. ``next_to``: side by side, with a gap of at most `NEXT_GAP` and centres whose heights
    differ by at most `NEXT_DRIFT`. ``between``: the first one's centre lies at least `MARGIN`
    inside the span of the other two, and at most `BETWEEN_DRIFT` off the line that joins their
    centres.

    >>> holds("left_of", (0.0, 0.0, 0.2, 0.2), (0.5, 0.0, 0.7, 0.2))
    True

    Raises:
        ValueError: for an unknown kind, or "between" without a third box.
    """
    ax, ay = (first[0] + first[2]) / 2, (first[1] + first[3]) / 2
    bx, by = (second[0] + second[2]) / 2, (second[1] + second[3]) / 2
    if kind == "left_of":
        return ax <= bx - MARGIN
    if kind == "right_of":
        return ax >= bx + MARGIN
    if kind == "above":
        return ay <= by - MARGIN
    if kind == "below":
        return ay >= by + MARGIN
    if kind == "next_to":
        gap = max(first[0], second[0]) - min(first[2], second[2])
        return gap <= NEXT_GAP and abs(ax - bx) >= MARGIN and abs(ay - by) <= NEXT_DRIFT
    if kind == "between" and third is not None:
        cx, cy = (third[0] + third[2]) / 2, (third[1] + third[3]) / 2
        if not min(bx, cx) + MARGIN <= ax <= max(bx, cx) - MARGIN:
            return False
        on_line = by + (cy - by) * (ax - bx) / (cx - bx)
        return abs(ay - on_line) <= BETWEEN_DRIFT
    raise ValueError(f"no spatial relation {kind!r} between {2 + (third is not None)} boxes")


def _matching(scene: Scene, wanted: dict[str, Any]) -> list[SceneObject]:
    color = wanted.get("color")
    return [
        item
        for item in scene.objects
        if item.name == wanted["name"] and (color is None or item.color == color)
    ]


def satisfies(scene: Scene, fact: dict[str, Any]) -> bool:
    """Whether a scene's ground truth satisfies every assertion of a fact."""
    for key in ("setting", "time", "weather"):
        if key in fact and getattr(scene, key) != fact[key]:
            return False
    matches = [_matching(scene, wanted) for wanted in fact.get("objects", [])]
    for wanted, items in zip(fact.get("objects", []), matches, strict=True):
        if "count" in wanted and len(items) != wanted["count"]:
            return False
        if len(items) < wanted.get("min", 1):
            return False
    return _relations_hold(matches, fact)


def _relations_hold(matches: list[list[SceneObject]], fact: dict[str, Any]) -> bool:
    for relation in fact.get("relations", []):
        candidates = product(*(matches[index] for index in relation["of"]))
        if not any(holds(relation["kind"], *(item.box for item in items)) for items in candidates):
            return False
    return True


class SceneIndex:
    """Counts and conditions of many scenes as arrays, to find the scenes that satisfy a fact."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.scenes = scenes
        shape = (len(CLASS_INDEX), len(COLORS) + 1, len(scenes))
        self.counts: NDArray[np.uint8] = np.zeros(shape, dtype=np.uint8)  # last colour: any
        for row, scene in enumerate(scenes):
            for item in scene.objects:
                self.counts[CLASS_INDEX[item.name], -1, row] += 1
                if item.color is not None:
                    self.counts[CLASS_INDEX[item.name], COLORS.index(item.color), row] += 1
        values = {"setting": SETTINGS, "time": TIMES, "weather": WEATHERS}
        self.conditions = {
            (key, name): np.array([getattr(scene, key) == name for scene in scenes], dtype=np.bool_)
            for key, names in values.items()
            for name in names
        }

    def relevant(self, fact: dict[str, Any]) -> NDArray[np.int64]:
        """Returns the sorted indices of the scenes that satisfy a fact."""
        keep = np.ones(len(self.scenes), dtype=np.bool_)
        for key in ("setting", "time", "weather"):
            if key in fact:
                keep &= self.conditions[key, fact[key]]
        for wanted in fact.get("objects", []):
            color = wanted.get("color")
            column = -1 if color is None else COLORS.index(color)
            counts = self.counts[CLASS_INDEX[wanted["name"]], column]
            keep &= counts == wanted["count"] if "count" in wanted else counts >= 1
            if "min" in wanted:
                keep &= counts >= wanted["min"]
        found = np.flatnonzero(keep).astype(np.int64)
        if not fact.get("relations"):
            return found
        satisfying = [index for index in found.tolist() if satisfies(self.scenes[index], fact)]
        return np.array(satisfying, dtype=np.int64)


def relevant_images(
    scenes: Sequence[Scene], queries: Sequence[Caption] | None = None
) -> list[NDArray[np.int64]]:
    """Finds every scene that truly satisfies each caption.

    Args:
        scenes: the gallery.
        queries: captions; all captions of the scenes, scene by scene, if None.

    Returns:
        For each caption in order, the sorted indices of the scenes that satisfy it.
    """
    index = SceneIndex(scenes)
    if queries is None:
        queries = [caption for scene in scenes for caption in scene.captions]
    return [index.relevant(caption.fact) for caption in queries]
