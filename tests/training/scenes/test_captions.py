"""The truth of the scenes world: classes, captions, relevance. No font is needed here."""

import itertools
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from training.scenes.captions import VIEWS, write_captions
from training.scenes.classes import CLASSES, COLORS
from training.scenes.layout import Layout, sample_layout
from training.scenes.relevance import holds, satisfies, satisfying_rows
from training.scenes.world import (
    INDOORS,
    LABEL_GROUPS,
    LABELS,
    SIZE,
    TIMELESS,
    Scene,
    SceneObject,
    label_matrix,
    scene_generator,
)

NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "2": 2, "3": 3, "4": 4, "5": 5}
SINGULARS = {single: kind.name for kind in CLASSES for single, _ in kind.nouns}
PLURALS = {plural: kind.name for kind in CLASSES for _, plural in kind.nouns}


def scene_of(layout: Layout, index: int) -> Scene:
    """The truth of a layout as if nothing covered anything: nominal boxes, full visibility."""
    objects = []
    for place in layout.placements:
        half = place.size / 2
        corners = (place.x - half, place.y - half, place.x + half, place.y + half)
        x0, y0, x1, y1 = (round(value / SIZE, 4) for value in corners)
        look, kind = place.look, place.kind
        objects.append(
            SceneObject(
                name=kind.name,
                group=kind.group,
                color=look.color,
                box=(x0, y0, x1, y1),
                visible=1.0,
                glyph=look.glyph,
                mirrored=place.mirrored,
                tilt=place.tilt,
            )
        )
    scene = Scene(f"val-{index:06d}", layout.setting, layout.time, layout.weather, tuple(objects))
    return replace(scene, captions=write_captions(scene, np.random.default_rng([9, index])))


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """A thousand scenes without pixels."""
    found: list[Scene] = []
    for index in range(2000):
        layout = sample_layout(scene_generator(3, "val", index))
        if layout is not None and len(found) < 1000:
            found.append(scene_of(layout, index))
    assert len(found) == 1000
    return found


FORMS = sorted({**SINGULARS, **PLURALS}, key=len, reverse=True)
FORM_PATTERN = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, FORMS))})(?![\w-])")
ALIKE = {singular for singular, name in SINGULARS.items() if PLURALS.get(singular) == name}
"""Nouns whose plural is the same word."""


def words_found(text: str) -> list[tuple[str, int, bool, int]]:
    """Reads a text independently: (class, position, whether surely plural, position of its end)."""
    found = []
    for match in FORM_PATTERN.finditer(text):
        form = match.group(1)
        name = SINGULARS.get(form) or PLURALS[form]
        found.append((name, match.start(), form in PLURALS and form not in ALIKE, match.end()))
    return found


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


def test_layouts_hold_what_the_captions_need(scenes: list[Scene]) -> None:
    for scene in scenes:
        counts = Counter(item.name for item in scene.objects)
        assert 4 <= len(counts) <= 8
        assert max(counts.values()) <= 5
        assert any(count > 1 for count in counts.values())
        groups = {item.name: item.group for item in scene.objects}
        assert "animals" in groups.values()
        assert sum(group != "animals" for group in groups.values()) >= 2
        assert (scene.time is None) == (scene.setting in TIMELESS)
        assert (scene.weather is None) == (scene.setting in TIMELESS | INDOORS)
        assert (scene.setting, scene.weather) not in {("desert", "snow"), ("snowfield", "rain")}


def test_captions_have_their_views_and_read_well(scenes: list[Scene]) -> None:
    vocabulary: set[str] = set()
    for scene in scenes:
        assert tuple(caption.view for caption in scene.captions) == VIEWS
        for caption in scene.captions:
            text = caption.text
            assert text == text.lower().strip()
            assert not re.search(r"[{}]|  |\s[,;:]", text), text
            assert not re.search(r"\ban [^aeiou]|\ba [aeio]", text), text
            assert not re.search(r"\bthere is (two|three|four|five|some|several|\d)\b", text), text
            assert not re.search(r"there are an? (?!few )", text), text
            for _, start, plural, _ in words_found(text):
                single_article = re.search(r"\ban? (\w+ )?$", text[:start])
                grouped = re.search(r"\ba (few|group of|set of)( \w+)?( \w+)? $", text[:start])
                if single_article and not grouped:
                    assert not plural, text
            vocabulary |= set(re.findall(r"[\w-]+", text))
    assert 500 <= len(vocabulary) <= 1000
    assert not vocabulary & {"none", "unknown"}


def test_captions_are_partial_and_mention_what_they_say(scenes: list[Scene]) -> None:
    for scene in scenes:
        things = len({item.name for item in scene.objects})
        for caption in scene.captions:
            values = {wanted["name"] for wanted in caption.fact.get("objects", [])}
            mentioned = {scene.objects[index].name for index in caption.mentions}
            assert values == mentioned == {name for name, *_ in words_found(caption.text)}
            assert len(values) < things
            for name in values:
                members = [i for i, item in enumerate(scene.objects) if item.name == name]
                assert set(members) <= set(caption.mentions)


def test_texts_never_contradict_the_truth(scenes: list[Scene]) -> None:
    for scene in scenes:
        counts = Counter(item.name for item in scene.objects)
        for caption in scene.captions:
            text = caption.text
            for name, start, plural, end in words_found(text):
                before, after = text[:start].split(), text[end:]
                named = [word for word in before[-2:] if word in COLORS]
                colors = {item.color for item in scene.objects if item.name == name}
                assert not named or set(named) == colors, text
                words = before[: len(before) - len(named)]
                stated = NUMBERS.get(words[-1]) if words else None
                trailing = re.match(r"(?:, |: | is )(\w+)", after)
                if stated is None and caption.view == "counting" and trailing and plural:
                    stated = NUMBERS.get(trailing.group(1))
                assert stated in {None, counts[name]}, text
                assert counts[name] >= (2 if plural else 1), text


def test_every_caption_is_true_of_its_own_scene(scenes: list[Scene]) -> None:
    for scene in scenes:
        for caption in scene.captions:
            assert satisfies(scene, caption.fact), caption


def naive(scene: Scene, fact: dict[str, Any]) -> bool:
    """Satisfaction written again, from the definition, without the module's helpers."""
    for key in ("setting", "time", "weather"):
        if fact.get(key, getattr(scene, key)) != getattr(scene, key):
            return False
    fitting = []
    for wanted in fact.get("objects", []):
        named = [item for item in scene.objects if item.name == wanted["name"]]
        fit = [item for item in named if wanted.get("color", item.color) == item.color]
        if len(fit) < wanted.get("min", 1) or len(fit) != wanted.get("count", len(fit)):
            return False
        fitting.append(fit)
    for relation in fact.get("relations", []):
        combinations = itertools.product(*(fitting[index] for index in relation["of"]))
        boxes = [[item.box for item in items] for items in combinations]
        if not sum(holds(relation["kind"], *several) for several in boxes):
            return False
    return True


def test_fast_relevance_equals_the_naive_loop(scenes: list[Scene]) -> None:
    few = scenes[:150]
    facts = [caption.fact for scene in few for caption in scene.captions]
    facts += [{"objects": [{"name": name}]} for name in ("dog", "car", "book")]
    facts += [{"setting": "beach", "time": "night"}, {"weather": "fog"}, {}]
    fast = satisfying_rows(few, facts, satisfies)
    for fact, found in zip(facts, fast, strict=True):
        slow = [index for index, scene in enumerate(few) if naive(scene, fact)]
        assert found.tolist() == slow
        assert found.dtype == np.int64


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
    labels, names = label_matrix(scenes[:50])
    assert names == list(LABELS)
    assert labels.shape == (50, len(LABELS))
    assert labels.dtype == np.float32
    for row, scene in zip(labels, scenes, strict=False):
        on = {name for name, value in zip(names, row, strict=True) if value}
        expected = {item.name for item in scene.objects} | {f"setting:{scene.setting}"}
        expected |= {f"color:{item.color} {item.name}" for item in scene.objects if item.color}
        expected |= {f"time:{scene.time}"} if scene.time else set()
        expected |= {f"weather:{scene.weather}"} if scene.weather else set()
        assert on == expected
    assert labels[:, np.isin(names, LABEL_GROUPS["setting"])].sum(1).tolist() == [1.0] * 50
