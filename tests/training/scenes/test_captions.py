"""The truth of the scenes world: classes, captions, relevance. No font is needed here."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyview.training.scenes.captions import write_captions
from polyview.training.scenes.classes import CLASSES
from polyview.training.scenes.layout import Layout, describe_object, sample_layout
from polyview.training.scenes.relevance import holds, satisfies
from polyview.training.scenes.world import (
    LABEL_GROUPS,
    LABELS,
    SIZE,
    Scene,
    SceneObject,
    label_matrix,
    scene_generator,
)


def scene_of(layout: Layout, index: int) -> Scene:
    """The truth of a layout as if nothing covered anything: nominal boxes, full visibility."""
    objects = []
    for place in layout.placements:
        half = place.size / 2
        corners = (place.x - half, place.y - half, place.x + half, place.y + half)
        x0, y0, x1, y1 = (round(value / SIZE, 4) for value in corners)
        objects.append(describe_object(place, (x0, y0, x1, y1), 1.0))
    scene = Scene(f"val-{index:06d}", layout.setting, layout.time, layout.weather, tuple(objects))
    return replace(scene, captions=write_captions(scene, np.random.default_rng([9, index])))


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """A thousand scenes without pixels."""
    results: list[Scene] = []
    for index in range(2000):
        layout = sample_layout(scene_generator(3, "val", index))
        if layout is not None and len(results) < 1000:
            results.append(scene_of(layout, index))
    assert len(results) == 1000
    return results


def test_class_table_has_no_ambiguous_word() -> None:
    assert 120 <= len(CLASSES) <= 170
    assert len({kind.name for kind in CLASSES}) == len(CLASSES)
    owners: dict[str, set[str]] = {}
    for kind in CLASSES:
        for form in {form for pair in kind.nouns for form in pair}:
            owners.setdefault(form, set()).add(kind.name)
    assert not {form for form, names in owners.items() if len(names) > 1}
    for form, (owner,) in owners.items():
        for other, (holder,) in owners.items():
            inside = re.search(rf"(?<!\w){re.escape(form)}(?!\w)", other)
            assert owner == holder or not inside, (form, other)


def test_every_caption_is_true_of_its_own_scene(scenes: list[Scene]) -> None:
    for scene in scenes:
        for caption in scene.captions:
            assert satisfies(scene, caption.fact), caption


def item(
    name: str, box: tuple[float, float, float, float], color: str | None = None
) -> SceneObject:
    return SceneObject(name, "things", color, box, 1.0, "x", False, 0.0)


def test_counting_colour_and_relation_semantics() -> None:
    left, middle, right = (0.0, 0.4, 0.2, 0.6), (0.4, 0.4, 0.6, 0.6), (0.8, 0.4, 1.0, 0.6)
    objects = (item("dog", left), item("dog", middle), item("car", right, "red"))
    scene = Scene("val-000000", "beach", "day", None, objects)

    def true(fact: dict[str, Any]) -> bool:
        return satisfies(scene, fact)

    assert true({"objects": [{"name": "dog"}]})  # "a dog" is true where there are two
    assert true({"objects": [{"name": "dog", "count": 2}]})
    assert not true({"objects": [{"name": "dog", "count": 3}]})
    assert not true({"objects": [{"name": "dog", "min": 3}]})
    assert true({"objects": [{"name": "car", "color": "red"}]})
    assert not true({"objects": [{"name": "car", "color": "blue"}]})
    assert true({"setting": "beach"})
    assert not true({"weather": "clear"})  # asserted, and the scene has none
    pair = [{"name": "dog"}, {"name": "car"}]
    for kind, expected in (("left_of", True), ("right_of", False), ("above", False)):
        assert true({"objects": pair, "relations": [{"kind": kind, "of": [0, 1]}]}) is expected
    assert holds("between", middle, left, right)
    assert not holds("between", left, middle, right)
    assert holds("next_to", left, (0.22, 0.42, 0.4, 0.6))
    assert not holds("next_to", left, right)
    with pytest.raises(ValueError, match="no spatial relation 'inside'"):
        holds("inside", left, right)


def test_label_matrix(scenes: list[Scene]) -> None:
    labels = label_matrix(scenes[:50])
    assert labels.shape == (50, len(LABELS))
    assert labels.dtype == np.float32
    for row, scene in zip(labels, scenes, strict=False):
        on = {name for name, value in zip(LABELS, row, strict=True) if value}
        expected = {item.name for item in scene.objects} | {f"setting:{scene.setting}"}
        expected |= {f"color:{item.color} {item.name}" for item in scene.objects if item.color}
        expected |= {f"time:{scene.time}"} if scene.time else set()
        expected |= {f"weather:{scene.weather}"} if scene.weather else set()
        assert on == expected
    assert labels[:, np.isin(LABELS, LABEL_GROUPS["setting"])].sum(1).tolist() == [1.0] * 50
