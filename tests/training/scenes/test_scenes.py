"""Rendered scenes: captions, relevance, pixels, masks, stored splits and foils."""

import json
import re
import resource
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.gallery import GalleryImage, load_gallery
from polyview.export.runtime import Runtime
from polyview.training.data.open_split import open_pack_gallery
from polyview.training.evaluation.kinds import foil_metrics
from polyview.training.scenes import render
from polyview.training.scenes.captions import SENTENCES
from polyview.training.scenes.classes import CLASSES, names_of
from polyview.training.scenes.foils import KINDS, Foil, make_foils
from polyview.training.scenes.relevance import relevant_rows, satisfies
from polyview.training.scenes.render import RenderedScene, find_font
from polyview.training.scenes.store import load_scenes, main, make_scene, write_split
from polyview.training.scenes.world import LABELS, SIZE, Scene, SceneObject, label_matrix
from tests.training.sample import BUNDLED, write_sample


def test_no_word_names_two_classes() -> None:
    names = [(form, kind.name) for kind in CLASSES for form in names_of(kind.name)]
    for form, kind in names:
        part = re.compile(rf"\b{re.escape(form)}\b")
        assert [(form, x, y) for x, y in names if y != kind and part.search(x)] == []


@pytest.fixture(scope="module")
def rendered() -> list[RenderedScene]:
    return [make_scene(0, "test", index) for index in range(60)]


@pytest.mark.font
def test_labels_describe_the_scene(rendered: list[RenderedScene]) -> None:
    scenes = [entry.scene for entry in rendered]
    for scene, row in zip(scenes, label_matrix(scenes), strict=True):
        on = {name for name, value in zip(LABELS, row, strict=True) if value}
        expected = {item.name for item in scene.objects} | {f"setting:{scene.setting}"}
        expected |= {f"color:{item.color} {item.name}" for item in scene.objects if item.color}
        expected |= {f"time:{scene.time}"} if scene.time else set()
        expected |= {f"weather:{scene.weather}"} if scene.weather else set()
        assert on == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scenes")
    assert write_split(out, "test", 6, workers=1)
    return out / "test"


@pytest.mark.font
def test_the_seed_gives_the_scenes_of_the_bundled_gallery(rendered: list[RenderedScene]) -> None:
    """The metrics of the bundled pack are valid only for these scenes."""
    gallery = load_gallery(BUNDLED)
    relevant = iter(relevant_rows([entry.scene for entry in rendered], satisfies))
    for entry, image in zip(rendered, gallery.images, strict=False):
        mask = np.asarray(Image.open(gallery.folder / str(image.mask)).convert("L"))
        assert np.array_equal(entry.instances, mask)
        displayed = np.asarray(Image.open(gallery.folder / image.file).convert("RGB"), float)
        assert np.abs(displayed - entry.image).mean() < 6  # lossy compression
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
@pytest.mark.slow
def test_scenes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    for out, workers in (("one", 1), ("two", 2)):
        write_split(tmp_path / out, "train", 30, workers=workers)
    for name in ("images.npy", "instances.npy", "scenes.jsonl", "meta.json"):
        first, second = (tmp_path / part / "train" / name for part in ("one", "two"))
        assert first.read_bytes() == second.read_bytes(), name
    data, expected = load_scenes(tmp_path / "one/train"), make_scene(0, "train", 29)
    assert (len(data), data.scenes[29]) == (30, expected.scene)
    assert np.array_equal(data.images[29], expected.image)
    assert np.array_equal(data.instances[29], expected.instances[2::4, 2::4])


@pytest.mark.font
def test_damaged_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        load_scenes(tmp_path / "nowhere")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    meta = json.loads((copy / "meta.json").read_text())
    for change, message in (
        ({"world_version": 0}, "from another version of the world"),
        ({"twins_version": 1}, "from another version"),  # written by an older version
        ({"split": None}, "not finished"),
    ):
        (copy / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ValueError, match=message):
            load_scenes(copy)
    (copy / "meta.json").write_text(json.dumps(meta))
    lines = (copy / "scenes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for text, message in (("".join(lines[:-1]), "lines, not"), ("{", "damaged")):
        (copy / "scenes.jsonl").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load_scenes(copy)


@pytest.mark.font
def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    """Before the first scene is rendered, and while the split is written."""
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
    assert f"the disk is full: {folder} does not fit" in str(early.value)
    assert "delete files on this disk" in str(early.value)
    assert f"{folder} cannot be written: File too large" in str(late.value)
    assert "\n" not in f"{early.value}{late.value}"
    assert not list((tmp_path / "data").iterdir())


def test_a_missing_font_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(render.FONT_ENV, str(tmp_path / "none.ttf"))
    with pytest.raises(SystemExit, match=f"(?s)fonts-noto-color-emoji.*{render.FONT_ENV}"):
        main(["--out", str(tmp_path / "out"), "--split", "val", "--count", "2"])
    monkeypatch.delenv(render.FONT_ENV)
    monkeypatch.setattr(render, "FONT_FILE", "no-such-font.ttf")
    with pytest.raises(ValueError, match="fonts-noto-color-emoji"):
        find_font()


def foils_of(pack: Path) -> list[Foil]:
    data = open_pack_gallery(pack, "test")
    assert data.foils is not None
    return data.foils()


NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4, "five": 5}
NOUNS = {form: kind.name for kind in CLASSES for form in kind.nouns[0]}
PART = re.compile(rf"(\w+)(?: (\w+))? ({'|'.join(NOUNS)})")
SIDES = {" to the left of ": (0, 1), " to the right of ": (0, -1), " above ": (1, 1)}
SIDES[" below "] = (1, -1)  # axis, sign


def is_true(image: GalleryImage, text: str) -> bool:
    """Parses a sentence independently of the module; returns whether it is true of the image."""
    for setting, phrases in SENTENCES["places"].items():
        if text.endswith(f" {phrases[0]}"):
            text = text.removesuffix(f" {phrases[0]}")
            if setting != image.setting:
                return False
    side, places = next((words for words in SIDES if words in text), " and "), []
    for part in re.split(f"{side}|, ", text):
        read = PART.fullmatch(part)
        assert read, part
        number, color, noun = read.groups()
        objects = [entry for entry in image.objects if entry.name == NOUNS[noun]]
        enough = len(objects) == NUMBERS[number] if NUMBERS[number] > 1 else objects
        if not enough or (color and color not in {entry.color for entry in objects}):
            return False
        places.append(np.array(objects[-1].box).reshape(2, 2).sum(axis=0))
    axis, sign = SIDES.get(side, (0, 0))
    return not sign or bool(sign * places[0][axis] < sign * places[1][axis])


def test_foils_are_false_and_swaps_keep_the_words() -> None:
    gallery, foils = load_gallery(BUNDLED), foils_of(BUNDLED)
    counts = Counter(foil.kind for foil in foils)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) > 150
    assert len({(foil.image, foil.kind) for foil in foils}) == len(foils)
    for foil in foils:
        image = gallery.images[foil.image]
        assert (is_true(image, foil.true), is_true(image, foil.false)) == (True, False), foil
        true, false = (re.findall(r"\w+", text) for text in (foil.true, foil.false))
        if foil.kind == "swapped_objects":
            assert sorted(true) == sorted(false)
        if foil.kind.startswith("added"):
            assert not Counter(true) - Counter(false) - Counter(["and", "a", "an"])


def test_equal_numbers_and_mixed_colours_give_no_foil() -> None:
    pairs = [("car", "red"), ("car", "blue"), ("dog", None), ("dog", None)]
    box = (0.1, 0.1, 0.2, 0.2)
    objects = [SceneObject(name, "", color, box, 1.0, "", False, 0.0) for name, color in pairs]
    foils = {foil.kind: foil for foil in make_foils([Scene("", "sea", None, None, tuple(objects))])}
    assert foils["added_color"].true in ("two cars and two dogs", "two dogs and two cars")
    assert not foils.keys() & {"replaced_color", "swapped_numbers"}


def test_accuracy_on_foils_agrees_with_single_scores_and_ties_count_half(tmp_path: Path) -> None:
    pack = write_sample(tmp_path / "scenes", 6, ["avse"])
    runtime, foils = Runtime.load(pack, "cpu"), foils_of(pack)
    images = open_pack_gallery(pack, "test").images
    features = runtime.image_features([images[row] for row in range(6)])
    views, right = runtime.image_views(features, "avse"), dict[str, list[bool]]()
    for foil in foils:
        texts = runtime.text_views([foil.true, foil.false], "avse")
        true, false = runtime.methods["avse"].score(views[[foil.image]], texts)[0].tolist()
        right.setdefault(foil.kind, []).append(true > false)
    results = foil_metrics(runtime, "avse", views, foils)
    for kind, each in right.items():
        assert results[f"foil_{kind}"] == pytest.approx(100 * sum(each) / len(each))
        assert results[f"foil_{kind}_pairs"] == len(each)
    same = [foil._replace(false=foil.true) for foil in foils if foil.image == 0]
    results = foil_metrics(runtime, "avse", views, same)
    assert {results[key] for key in results if key.removeprefix("foil_") in KINDS} == {50.0}
