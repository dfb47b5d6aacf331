"""The scenes world: captions, relevance, pixels, masks, folders and foils."""

import json
import re
import resource
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.gallery import load_gallery
from polyview.export.runtime import Runtime
from polyview.training.data.open_split import from_pack
from polyview.training.evaluation.kinds import foil_metrics
from polyview.training.scenes import render
from polyview.training.scenes.foils import KINDS, Foil
from polyview.training.scenes.relevance import relevant_images
from polyview.training.scenes.render import Rendered, find_font
from polyview.training.scenes.store import load_scenes, main, make_scene, write_split
from polyview.training.scenes.world import LABELS, SIZE, label_matrix
from tests.training.sample import BUNDLED, write_sample


@pytest.fixture(scope="module")
def rendered() -> list[Rendered]:
    """Sixty scenes with pixels."""
    return [make_scene(0, "test", index) for index in range(60)]


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
        mask = np.asarray(Image.open(gallery.folder / str(image.mask)).convert("L"))
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
@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
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


def foils_of(pack: Path) -> list[Foil]:
    data = from_pack(pack, "test")
    assert data.foils is not None
    return data.foils()


# one of each kind, read beside its image
WRITTEN = [
    (0, "replaced_object", "a parrot and a lollipop", "a parrot and a pretzel"),
    (0, "replaced_number", "four dancers and a parrot", "five dancers and a parrot"),
    (0, "replaced_place", "a magnet underwater", "a magnet in a desert"),
    (
        0,
        "replaced_relation",
        "a magnet to the right of a banana",
        "a magnet to the left of a banana",
    ),
    (0, "swapped_objects", "a tiger above a lollipop", "a lollipop above a tiger"),
    (0, "added_object", "a parrot and a magnet", "a parrot, a magnet and a heart"),
    (4, "replaced_color", "a key and a purple heart", "a key and a red heart"),
    (4, "added_color", "a sheep and a heart", "a sheep and a yellow heart"),
    (5, "swapped_numbers", "two palms and three suitcases", "three palms and two suitcases"),
]


def test_foils_change_one_thing_and_swaps_no_word() -> None:
    foils = foils_of(BUNDLED)
    counts = Counter(foil.kind for foil in foils)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) > 150
    assert len({(foil.image, foil.kind) for foil in foils}) == len(foils)
    assert {*WRITTEN} <= {*foils}
    for foil in foils:
        true, false = (re.findall(r"\w+", text) for text in (foil.true, foil.false))
        if foil.kind == "swapped_objects":
            assert sorted(true) == sorted(false)
        if foil.kind.startswith("added"):
            assert not Counter(true) - Counter(false) - Counter(["and", "a", "an"])


def test_a_share_is_what_single_scores_say_and_half_for_ties(tmp_path: Path) -> None:
    pack = write_sample(tmp_path / "scenes", 6, ["avse"])
    runtime, foils = Runtime.load(pack, "cpu"), foils_of(pack)
    images = from_pack(pack, "test").images
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
