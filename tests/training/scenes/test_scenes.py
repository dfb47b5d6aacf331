"""The scenes world: classes, captions, relevance, pixels, masks and folders."""

import json
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.gallery import load_gallery
from polyview.training.scenes import render
from polyview.training.scenes.classes import CLASSES
from polyview.training.scenes.relevance import holds, relevant_images, satisfies
from polyview.training.scenes.render import Rendered, find_font, sprite
from polyview.training.scenes.store import load_scenes, main, make_scene, write_split
from polyview.training.scenes.world import LABELS, SIZE, Scene, SceneObject, label_matrix

BUNDLED = Path(__file__).parents[3] / "app" / "bundled" / "scenes"


@pytest.fixture(scope="module")
def rendered() -> list[Rendered]:
    """Sixty scenes with pixels."""
    return [make_scene(0, "test", index) for index in range(60)]


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
            apart = owner != holder and form in other
            assert not (apart and re.search(rf"\b{re.escape(form)}\b", other)), (form, other)


@pytest.mark.font
def test_labels_are_those_of_the_scene(rendered: list[Rendered]) -> None:
    scenes = [entry.scene for entry in rendered]
    for scene, row in zip(scenes, label_matrix(scenes), strict=True):
        on = {name for name, value in zip(LABELS, row, strict=True) if value}
        expected = {item.name for item in scene.objects} | {f"setting:{scene.setting}"}
        expected |= {f"color:{item.color} {item.name}" for item in scene.objects if item.color}
        expected |= {f"time:{scene.time}"} if scene.time else set()
        expected |= {f"weather:{scene.weather}"} if scene.weather else set()
        assert on == expected


def test_counting_colour_and_relation_semantics() -> None:
    left, middle, right = (0.0, 0.4, 0.2, 0.6), (0.4, 0.4, 0.6, 0.6), (0.8, 0.4, 1.0, 0.6)
    objects = tuple(
        SceneObject(name, "things", color, box, 1.0, "x", False, 0.0)
        for name, color, box in (("dog", None, left), ("dog", None, middle), ("car", "red", right))
    )
    scene = Scene("val-000000", "beach", "day", None, objects)
    for expected, stated in (
        (True, {"name": "dog"}),  # "a dog" is true of two dogs
        (True, {"name": "dog", "count": 2}),
        (False, {"name": "dog", "count": 3}),
        (False, {"name": "dog", "min": 3}),
        (True, {"name": "car", "color": "red"}),
        (False, {"name": "car", "color": "blue"}),
    ):
        assert satisfies(scene, {"objects": [stated]}) is expected
    assert satisfies(scene, {"setting": "beach"})
    assert not satisfies(scene, {"weather": "clear"})  # the scene has no weather
    for kind, expected in (("left_of", True), ("right_of", False), ("above", False)):
        fact: dict[str, Any] = {"objects": [{"name": "dog"}, {"name": "car"}]}
        assert satisfies(scene, fact | {"relations": [{"kind": kind, "of": [0, 1]}]}) is expected
    assert holds("between", middle, left, right)
    assert not holds("between", left, middle, right)
    assert holds("next_to", left, (0.22, 0.42, 0.4, 0.6))
    assert not holds("next_to", left, right)
    with pytest.raises(ValueError, match="no spatial relation 'inside'"):
        holds("inside", left, right)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small rendered test split."""
    out = tmp_path_factory.mktemp("scenes")
    assert write_split(out, "test", 6, workers=1)
    return out / "test"


@pytest.mark.font
def test_scenes_are_those_of_the_shipped_gallery(rendered: list[Rendered]) -> None:
    """The shipped numbers stay valid only as long as the same seed gives the same scenes."""
    gallery = load_gallery(BUNDLED)
    relevant = iter(relevant_images([entry.scene for entry in rendered]))
    for entry, image in zip(rendered, gallery.images, strict=False):
        mask = np.asarray(Image.open(gallery.folder / str(image.mask)))
        assert np.array_equal(entry.instances, mask)
        displayed = np.asarray(Image.open(gallery.folder / image.file).convert("RGB"), float)
        assert np.abs(displayed - entry.image).mean() < 6  # a lossy file
        scene, surroundings = entry.scene, (image.setting, image.time, image.weather)
        assert (scene.setting, scene.time, scene.weather) == surroundings
        objects = [(item.name, item.color, item.box) for item in scene.objects]
        assert objects == [(item.name, item.color, item.box) for item in image.objects]
        for caption, stored in zip(scene.captions, image.captions, strict=True):
            assert (caption.text, caption.view) == (stored.text, stored.view)
            assert caption.mentions == stored.mentions
            rows = [row for row in stored.relevant if row < len(rendered)]
            assert next(relevant).tolist() == rows


@pytest.mark.font
def test_every_look_has_an_image_of_its_own() -> None:
    images: dict[bytes, str] = {}
    for kind in CLASSES:
        for look in kind.looks:
            image = sprite(look.glyph, look.hue)
            assert min(image.size) > 60
            assert (np.asarray(image)[..., 3] > 127).mean() > 0.1, kind.name
            pixels = image.tobytes()
            assert pixels not in images, (kind.name, images[pixels])
            images[pixels] = kind.name
    with pytest.raises(ValueError, match="no image for"):
        sprite("\ue000")


@pytest.mark.font
@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    for out, workers in (("one", 1), ("two", 2)):
        write_split(tmp_path / out, "train", 30, workers=workers)
    for name in ("images.npy", "instances.npy", "scenes.jsonl", "meta.json"):
        first, second = (tmp_path / part / "train" / name for part in ("one", "two"))
        assert first.read_bytes() == second.read_bytes(), name
    data = load_scenes(tmp_path / "one/train")
    assert np.array_equal(data.instances[29], make_scene(0, "train", 29).instances[2::4, 2::4])


@pytest.mark.font
def test_folder_is_read_back(folder: Path, rendered: list[Rendered]) -> None:
    data = load_scenes(folder)
    assert len(data) == 6
    assert isinstance(data.images, np.memmap)
    for index, item in enumerate(rendered[:6]):
        assert data.scenes[index] == item.scene
        assert np.array_equal(data.images[index], item.image)
        assert np.array_equal(data.instances[index], item.instances)


@pytest.mark.font
def test_damaged_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load_scenes(tmp_path / "nowhere")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    meta = json.loads((copy / "meta.json").read_text())
    for change, message in (
        ({"world_version": 0}, "of another world .version 0"),
        ({"twins_version": 1}, "of another world"),  # written by an older version of this code
        ({"split": None}, "not finished"),
    ):
        (copy / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ValueError, match=message):
            load_scenes(copy)
    (copy / "meta.json").write_text(json.dumps(meta))
    lines = (copy / "scenes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for text, message in (("".join(lines[:-1]), "should hold"), ("{", "damaged")):
        (copy / "scenes.jsonl").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load_scenes(copy)


@pytest.mark.font
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """Named before anything is rendered, or in the midst of writing."""
    free = shutil.disk_usage(tmp_path).free
    out = ["--out", str(tmp_path / "data"), "--workers", "1", "--split", "train", "--count"]
    with pytest.raises(SystemExit) as early:
        main([*out, str(free // SIZE**2 // 3 + 1)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))  # fails as a full disk does
    try:
        with pytest.raises(SystemExit) as late:
            main([*out, "4"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    folder = tmp_path / "data" / "train"
    assert f"the disk is full: {folder} needs more than" in str(early.value)
    assert "delete files there" in str(early.value)
    assert f"{folder} cannot be written: File too large" in str(late.value)
    assert "\n" not in f"{early.value}{late.value}"
    assert not list((tmp_path / "data").iterdir())


def test_missing_font_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(render.FONT_ENV, str(tmp_path / "none.ttf"))
    with pytest.raises(SystemExit, match=f"(?s)fonts-noto-color-emoji.*{render.FONT_ENV}"):
        main(["--out", str(tmp_path / "out"), "--split", "val", "--count", "2"])
    monkeypatch.delenv(render.FONT_ENV)
    monkeypatch.setattr(render, "FONT_FILE", "no-such-font.ttf")
    with pytest.raises(ValueError, match="fonts-noto-color-emoji"):
        find_font()
