"""Twins: scenes of the same things, told apart by sides, numbers, colours and what is not there."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.pack.reading import load_info
from export.pack.writing import describe_file, summarize_gallery, write_info
from training.data.open_split import open_split
from training.data.pack_gallery import from_pack
from training.evaluation.kinds import kind_metrics
from training.scenes.__main__ import main
from training.scenes.gallery import write_gallery
from training.scenes.generate import generate
from training.scenes.readers import TWIN_READERS, reader_recalls
from training.scenes.readers import main as read
from training.scenes.relevance import relevant_images, satisfies, without
from training.scenes.store import SceneData, SceneDataError, load_scenes
from training.scenes.twins import KINDS, make_twins
from training.scenes.world import Scene

PAIRS = 16
BUNDLED = Path("app/bundled/scenes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("twins")
    generate(out, "val", 2 * PAIRS, twins=True, progress=False)
    return out


@pytest.fixture(scope="module")
def data(folder: Path) -> SceneData:
    return load_scenes(folder / "val")


def pairs(data: SceneData) -> list[tuple[Scene, Scene]]:
    return list(zip(data.scenes[::2], data.scenes[1::2], strict=True))


def test_a_caption_is_false_of_the_twin_in_one_regard_alone(data: SceneData) -> None:
    told = [(a, b) for one, two in pairs(data) for a, b in ((one, two), (two, one))]
    for scene, twin in told:
        assert [caption.view for caption in scene.captions] == list(KINDS)
        for caption in scene.captions:
            assert satisfies(scene, caption.fact), caption
            assert not satisfies(twin, caption.fact), caption
            assert satisfies(twin, without(caption.fact, KINDS[caption.view])), caption
            others = [part for kind, part in KINDS.items() if part != KINDS[caption.view]]
            rest = without(caption.fact, [part for parts in others for part in parts])
            assert not satisfies(twin, rest), caption


def test_twins_hold_the_same_things_at_the_same_spots(data: SceneData) -> None:
    for one, two in pairs(data):
        assert (one.setting, one.time, one.weather) == (two.setting, two.time, two.weather)
        here, there = (Counter(item.name for item in scene.objects) for scene in (one, two))
        assert len(here) == len(there) == 7
        assert len(here.keys() - there.keys()) == 1
        assert sorted(here.values()) == sorted(there.values())
        changed = [name for name in here if name in there and here[name] != there[name]]
        assert len(changed) == 2
        assert here[changed[0]] == there[changed[1]]
        assert here[changed[1]] == there[changed[0]]
        colors = [{i.name: i.color for i in scene.objects if i.color} for scene in (one, two)]
        assert colors[0].keys() == colors[1].keys()
        assert [*colors[0].values()] == [*colors[1].values()][::-1]
        for left, right in zip(one.objects, two.objects, strict=True):
            centers = [np.reshape(item.box, (2, 2)).mean(axis=0) for item in (left, right)]
            assert np.abs(centers[0] - centers[1]).max() < 0.08


def test_what_is_said_to_be_absent_is(data: SceneData) -> None:
    captions = [caption for scene in data.scenes for caption in scene.captions]
    truth = relevant_images(data.scenes)
    for caption, found in zip(captions, truth, strict=True):
        brute = [row for row, scene in enumerate(data.scenes) if satisfies(scene, caption.fact)]
        assert found.tolist() == brute
    absent = [caption for caption in captions if caption.view == "absence"]
    assert all(caption.fact["absent"] for caption in absent)
    assert all(
        any(f" {word} " in f" {c.text} " for word in ("no", "not", "without", "lacks"))
        for c in absent
    )


def test_who_knows_things_alone_finds_half_at_most(
    folder: Path, data: SceneData, capsys: pytest.CaptureFixture[str]
) -> None:
    recalls = {
        title: reader_recalls(data.scenes, unread)["t2i_r1"]
        for title, unread in TWIN_READERS.items()
    }
    everything, *others, colored, bag = recalls.values()
    assert bag <= 50
    assert all(bag < colored < value < everything for value in others)
    assert read(["--data", str(folder / "val")]) == 0
    assert list(TWIN_READERS)[-1] in capsys.readouterr().out


def test_training_knows_twins_and_kinds(folder: Path) -> None:
    split = open_split(folder, "val")
    assert split.alike is not None
    assert split.alike.tolist() == [row // 2 for row in range(2 * PAIRS)]
    assert list(split.kinds[:5]) == list(KINDS)
    assert split.relevant is not None
    own = np.equal.outer(np.arange(split.image_count), split.image_of)
    pair = np.equal.outer(split.alike, split.alike[split.image_of])
    told, bag = (kind_metrics(scores.astype(np.float32), split) for scores in (own, pair))
    for kind in KINDS:
        assert told[f"{kind}_above_alike"] == 100
        assert bag[f"{kind}_above_alike"] <= 50


def test_a_gallery_keeps_who_is_whose_twin(tmp_path: Path, data: SceneData) -> None:
    pack = shutil.copytree(BUNDLED, tmp_path / "pack")
    info = load_info(pack)
    shutil.rmtree(pack / "gallery")
    write_gallery(data, "val", pack / "gallery")
    index = "gallery/gallery.json"
    files = info.files | {index: describe_file(pack / index)}
    write_info(replace(info, gallery=summarize_gallery(pack), files=files))
    split = from_pack(pack, "val")
    assert split.alike is not None
    assert split.alike.tolist() == [row // 2 for row in range(2 * PAIRS)]
    assert list(split.kinds) == [*KINDS] * 2 * PAIRS


def test_the_same_dice_give_the_same_pixels(tmp_path: Path, data: SceneData) -> None:
    for row, rendered in enumerate(make_twins(0, "val", 3), 6):
        assert np.array_equal(rendered.image, data.images[row])
        assert rendered.scene == data.scenes[row]
    command = ["--out", str(tmp_path), "--split", "val", "--twins", "--count", "4"]
    assert main([*command, "--workers", "2"]) == 0
    fewer = load_scenes(tmp_path / "val")
    assert np.array_equal(fewer.images, data.images[:4])
    assert fewer.scenes == data.scenes[:4]


def test_worlds_are_not_mixed_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SceneDataError, match="count must be even"):
        generate(folder, "test", 5, twins=True, progress=False)
    assert main(["--out", str(folder), "--split", "val", "--count", str(2 * PAIRS)]) == 2
    assert "holds other scenes (seed, count, world or font differ)" in capsys.readouterr().err
