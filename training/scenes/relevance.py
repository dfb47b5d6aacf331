"""The assertions of captions, and the scenes that satisfy them.

A *fact* is a JSON object; every key is optional and every assertion present must hold:

- ``objects``: a list of ``{"name", "color"?, "count"?, "min"?}``. An item matches the objects of
  the class ``name`` and, if stated, the colour. ``count`` requires exactly that number of objects
  ("three apples"), ``min`` at least that number ("some apples": 2, "several apples": 3). Without
  either, one object suffices: "a dog" is true of a scene with two dogs, as in ordinary speech.
- ``relations``: a list of ``{"kind", "of": [i, j]}`` with indices into ``objects`` (three for
  ``between``). The relation must hold for at least one choice of matching objects.
- ``setting``, ``time``, ``weather``: must be equal.

Relations hold between boxes in relative coordinates, see `holds`. They are deliberately wider than
the relations that captions state, so that no borderline scene counts as irrelevant.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyview.training.scenes.world import Truth

Box = tuple[float, float, float, float]
MARGIN = 0.06  # minimum distance of two centres for `left_of`, `right_of`, `above` and `below`
NEXT_GAP = 0.10  # maximum horizontal gap for `next_to`
NEXT_DRIFT = 0.16  # maximum vertical distance of two centres for `next_to`
BETWEEN_DRIFT = 0.18  # maximum vertical distance from the line for `between`


def holds(kind: str, first: Box, second: Box, third: Box | None = None) -> bool:
    """Returns whether a spatial relation holds between relative xyxy boxes.

    ``left_of``, ``right_of``, ``above``, ``below``: the centres differ by at least `MARGIN` in that
    direction. ``next_to``: side by side, with a gap of at most `NEXT_GAP` and centres whose heights
    differ by at most `NEXT_DRIFT`. ``between``: the first box's centre lies horizontally between
    the other two centres, at least `MARGIN` from each, and vertically at most `BETWEEN_DRIFT` from
    the line that joins them. Raises ValueError for an unknown kind or a missing third box.

    >>> holds("left_of", (0.0, 0.0, 0.2, 0.2), (0.5, 0.0, 0.7, 0.2))
    True
    """
    ax, ay = (first[0] + first[2]) / 2, (first[1] + first[3]) / 2
    bx, by = (second[0] + second[2]) / 2, (second[1] + second[3]) / 2
    sides = {"left_of": ax <= bx - MARGIN, "right_of": ax >= bx + MARGIN}
    sides |= {"above": ay <= by - MARGIN, "below": ay >= by + MARGIN}
    if kind in sides:
        return sides[kind]
    if kind == "next_to":
        gap = max(first[0], second[0]) - min(first[2], second[2])
        return gap <= NEXT_GAP and abs(ax - bx) >= MARGIN and abs(ay - by) <= NEXT_DRIFT
    if kind == "between" and third is not None:
        cx, cy = (third[0] + third[2]) / 2, (third[1] + third[3]) / 2
        if not min(bx, cx) + MARGIN <= ax <= max(bx, cx) - MARGIN:
            return False
        line_y = by + (cy - by) * (ax - bx) / (cx - bx)
        return abs(ay - line_y) <= BETWEEN_DRIFT
    raise ValueError(f"no spatial relation {kind!r} between {2 + (third is not None)} boxes")


def satisfies(scene: Truth, fact: dict[str, Any]) -> bool:
    """Returns whether a scene satisfies every assertion of a fact."""
    conditions = ("setting", "time", "weather")
    if any(key in fact and getattr(scene, key) != fact[key] for key in conditions):
        return False
    matches = []
    for item in fact.get("objects", []):
        boxes = [scene.objects[index].box for index in find_matches(scene.objects, item)]
        if len(boxes) < item.get("min", 1) or len(boxes) != item.get("count", len(boxes)):
            return False
        matches.append(boxes)
    for relation in fact.get("relations", []):
        candidates = product(*(matches[index] for index in relation["of"]))
        if not any(holds(relation["kind"], *boxes) for boxes in candidates):
            return False
    return True


def find_matches(objects: Sequence[Any], item: dict[str, Any]) -> list[int]:
    """Returns the indices of the objects that match an item of a fact's ``objects``."""
    name, color = item["name"], item.get("color")
    matches = [entry.name == name and color in (None, entry.color) for entry in objects]
    return [index for index, is_match in enumerate(matches) if is_match]


def relevant_rows(
    records: Sequence[Any], test: Callable[[Any, dict[str, Any]], bool]
) -> list[NDArray[np.int64]]:
    """Returns for each caption, in order, the sorted rows of the scenes or clips that satisfy it.

    `test(record, fact)` is `satisfies`, or `clip_captions.satisfies_clip`.
    """
    class_rows = defaultdict[str, set[int]](set)  # class -> rows of the records that show it
    for row, record in enumerate(records):
        for item in record.objects:
            class_rows[item.name].add(row)
    relevant = []
    for fact in (caption.fact for record in records for caption in record.captions):
        rows = set(range(len(records)))
        rows.intersection_update(*(class_rows[item["name"]] for item in fact.get("objects", [])))
        true_rows = [row for row in sorted(rows) if test(records[row], fact)]
        relevant.append(np.array(true_rows, np.int64))
    return relevant
