"""Foils: pairs of a true caption of a scene and a slightly different false one.

The kinds are those of SugarCrepe (Hsieh et al., NeurIPS 2023). The false caption *replaces* a
detail with one that the scene lacks, *swaps* two details, so that the words stay the same, or
*adds* a detail. The ground truth of the scene decides which caption is true. Foils have no
negation, because captions of scenes have none. Words and sentences come from `sentences.toml`.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from polyview.training.scenes import captions
from polyview.training.scenes.captions import NUMBERS, SENTENCES, obvious_relations
from polyview.training.scenes.classes import CLASS_OF, CLASSES, pluralize
from polyview.training.scenes.relevance import satisfies
from polyview.training.scenes.world import Truth

# colours are not swapped, because few scenes have two objects whose colours could be exchanged
KINDS = (
    *("replaced_object", "replaced_color", "replaced_number", "replaced_place"),
    *("replaced_relation", "swapped_objects", "swapped_numbers", "added_object", "added_color"),
)
SEED = 0
_OPPOSITES = {"left_of": "right_of", "right_of": "left_of", "above": "below", "below": "above"}

Fact = dict[str, Any]
FactObject = dict[str, Any]  # an item of a fact's "objects", see `training/scenes/relevance.py`


class Foil(NamedTuple):
    """A true and a false caption of the image in row `image`; `kind` is one of `KINDS`."""

    image: int
    kind: str
    true: str
    false: str


def make_foils(scenes: Sequence[Truth]) -> list[Foil]:
    """Writes at most one foil of each kind for each scene; `SEED` determines the random draws."""
    foils = []
    for image, scene in enumerate(scenes):
        objects: list[FactObject] = [
            {"name": group.kind.name} | ({"count": group.count} if group.count > 1 else {})
            for group in captions.object_groups(scene)
        ]
        pairs = list(permutations(objects, 2))
        for number, kind in enumerate(KINDS):
            rng = np.random.default_rng([SEED, image, number])
            for pair_index in rng.permutation(len(pairs)).tolist():
                first, second = pairs[pair_index]
                facts = _draw_facts(kind, scene, first, second, rng)
                if facts and satisfies(scene, facts[0]) and not satisfies(scene, facts[1]):
                    foils.append(Foil(image, kind, _write_text(facts[0]), _write_text(facts[1])))
                    break
    return foils


def _write_text(fact: Fact) -> str:
    """Writes the caption that asserts a fact."""
    names = []
    for item in fact["objects"]:
        name, count = item["name"], item.get("count", 1)
        noun = f"{item.get('color', '')} {name if count == 1 else pluralize(name)}".lstrip()
        names.append(captions.with_article(noun) if count == 1 else f"{NUMBERS[count]} {noun}")
    text = captions.join_names(names)
    for relation in fact.get("relations", ()):
        text = SENTENCES["relations"][relation["kind"]][0]
        text = text.format(**dict(zip("abc", names, strict=False)))
    return f"{text} {SENTENCES['places'][fact['setting']][0]}" if "setting" in fact else text


def _draw_facts(
    kind: str, scene: Truth, first: FactObject, second: FactObject, rng: np.random.Generator
) -> tuple[Fact, Fact] | None:
    """Draws a true and a false fact about two classes; None if the kind does not apply to them."""
    objects = [first, second]
    if kind in ("replaced_object", "added_object"):
        names, group = {item.name for item in scene.objects}, CLASS_OF[second["name"]].group
        absent_names = [k.name for k in CLASSES if k.group == group and k.name not in names]
        other = {"name": str(rng.choice(absent_names))}
        if kind == "added_object":
            return {"objects": objects}, {"objects": [*objects, other]}
        return {"objects": objects}, {"objects": [first, second | other]}
    if kind in ("replaced_color", "added_color"):
        colors = {item.color for item in scene.objects if item.name == second["name"]}
        others = [color for color in CLASS_OF[second["name"]].colors if color not in colors]
        if None in colors or not others:
            return None
        # objects of several colours do not satisfy the true fact, so `make_foils` drops the pair
        color = min(map(str, colors))
        true_item = second if kind == "added_color" else {**second, "color": color}
        false_item = {**second, "color": str(rng.choice(others))}
        return {"objects": [first, true_item]}, {"objects": [first, false_item]}
    if kind == "replaced_place":
        others = [name for name in SENTENCES["places"] if name != scene.setting]
        fact: Fact = {"objects": [first], "setting": scene.setting}
        return fact, {**fact, "setting": str(rng.choice(others))}
    if kind in ("replaced_relation", "swapped_objects"):
        boxes = {item.name: item.box for item in scene.objects}
        relations = obvious_relations(boxes[first["name"]], boxes[second["name"]])
        relation = next((name for name in relations if name in _OPPOSITES), None)
        if "count" in first or "count" in second or relation is None:
            return None
        fact = {"objects": objects, "relations": [{"kind": relation, "of": [0, 1]}]}
        if kind == "swapped_objects":
            return fact, {**fact, "objects": objects[::-1]}
        return fact, {**fact, "relations": [{"kind": _OPPOSITES[relation], "of": [0, 1]}]}
    return _change_counts(kind, first, second, rng) if "count" in first else None


def _change_counts(
    kind: str, first: FactObject, second: FactObject, rng: np.random.Generator
) -> tuple[Fact, Fact] | None:
    """Returns a fact and the same fact with other counts; None if a count to swap is missing."""
    objects, count = [first, second], first["count"]
    if kind == "replaced_number":
        nearby_count = int(rng.choice([number for number in NUMBERS if abs(number - count) == 1]))
        return {"objects": objects}, {"objects": [{**first, "count": nearby_count}, second]}
    if "count" not in second:
        return None
    swapped = [{**first, "count": second["count"]}, {**second, "count": count}]
    return {"objects": objects}, {"objects": swapped}
