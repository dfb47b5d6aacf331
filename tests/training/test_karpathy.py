"""Karpathy's splits: what a folder of photographs becomes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.photographs import read_entries, write_entries, write_photographs
from training.karpathy import karpathy_file, load_karpathy

SHARED = Path(__file__).parents[3] / "shared" / "flickr8k"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_photographs(tmp_path / "photos", {"train": 3, "val": 2})


def test_a_split_has_its_own_photographs_and_captions(folder: Path) -> None:
    val = load_karpathy(folder, "val")
    assert [path.name for path in val.paths] == ["003.jpg", "004.jpg"]
    assert val.ids.tolist() == [103, 104]
    assert val.image_of.tolist() == [0] * 5 + [1] * 5
    assert val.captions[5] == "A red field, number 0 ."
    assert len(load_karpathy(folder, "train")) == 3
    assert len(load_karpathy(folder, "train", limit=2).captions) == 10


def test_line_breaks_within_a_caption_go(folder: Path) -> None:
    entries = read_entries(folder)
    entries[0]["sentences"][0]["raw"] = "two\nlines  and \t a tab "
    write_entries(folder, entries)
    assert load_karpathy(folder, "train").captions[0] == "two lines and a tab"


def test_coco_has_folders_restval_and_six_captions(tmp_path: Path) -> None:
    counts = {"train": 2, "restval": 1, "val": 1, "test": 1}
    folders = {split: "train2014" if split == "train" else "val2014" for split in counts}
    folder = write_photographs(tmp_path, counts, "coco", captions=6, folders=folders)
    train, test = load_karpathy(folder, "train"), load_karpathy(folder, "test")
    assert [path.relative_to(folder / "images").as_posix() for path in train.paths] == [
        "train2014/000.jpg",
        "train2014/001.jpg",
        "val2014/002.jpg",
    ]
    assert len(train.captions) == 18  # all of them to learn from
    assert test.captions == [f"A red field, number {n} ." for n in range(5)]


def test_photographs_can_be_left_out(folder: Path) -> None:
    train = load_karpathy(folder, "train").without([1])
    assert [path.name for path in train.paths] == ["000.jpg", "002.jpg"]
    assert train.ids.tolist() == [100, 102]
    assert train.image_of.tolist() == [0] * 5 + [1] * 5
    assert train.captions[5].startswith("A blue field")


def test_a_missing_split_names_those_there_are(folder: Path) -> None:
    with pytest.raises(ValueError, match=r'split "test"; it has train \(3\), val \(2\)'):
        load_karpathy(folder, "test")


def test_missing_files_are_counted_and_named(folder: Path) -> None:
    for name in ("000.jpg", "002.jpg"):
        (folder / "images" / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of the 3 photographs.*images/000\.jpg"):
        load_karpathy(folder, "train")
    assert len(load_karpathy(folder, "val")) == 2


def test_a_folder_without_images_says_where_they_go(folder: Path) -> None:
    (folder / "images").rename(folder / "pictures")
    with pytest.raises(FileNotFoundError, match=r"3 of the 3 .* image files into .*images"):
        load_karpathy(folder, "train")


def _no_captions(entry: dict[str, Any]) -> None:
    entry["sentences"] = []


def _blank_caption(entry: dict[str, Any]) -> None:
    entry["sentences"][1]["raw"] = " \n"


def _no_split(entry: dict[str, Any]) -> None:
    del entry["split"]


def _outside(entry: dict[str, Any]) -> None:
    entry["filename"] = "../../secret.jpg"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_captions, r"000\.jpg has no caption"),
        (_blank_caption, r"000\.jpg has an empty caption"),
        (_no_split, r'image 0 has no "split" of type str'),
        (_outside, r"secret\.jpg\", which leaves the folder"),
    ],
)
def test_damaged_entries_are_refused(
    folder: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    entries = read_entries(folder)
    damage(entries[0])
    write_entries(folder, entries)
    with pytest.raises(ValueError, match=message):
        load_karpathy(folder, "train")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"images": 3}', '{"pictures": []}', "\xff"])
def test_damaged_json_is_refused(folder: Path, text: str) -> None:
    (folder / "dataset_flickr8k.json").write_text(text, "latin-1")
    with pytest.raises(ValueError, match=r"dataset_flickr8k\.json.*fetch it again"):
        load_karpathy(folder, "train")


def test_two_data_sets_in_a_folder_are_refused(folder: Path) -> None:
    (folder / "dataset_coco.json").write_text("{}")
    with pytest.raises(ValueError, match=r"dataset_flickr8k\.json and dataset_coco\.json"):
        karpathy_file(folder)


def test_a_folder_without_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none of dataset_flickr8k\.json"):
        load_karpathy(tmp_path, "train")


@pytest.mark.shared
def test_flickr8k_has_its_official_splits() -> None:
    train, val = load_karpathy(SHARED, "train"), load_karpathy(SHARED, "val")
    assert (len(train), len(val)) == (6000, 1000)
    assert (len(train.captions), len(val.captions)) == (30000, 5000)
    assert not set(train.ids.tolist()) & set(val.ids.tolist())
