"""Karpathy's splits: what a folder of photographs becomes, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.training.photographs import read_entries, write_entries, write_photographs
from training.data.captions_file import find_captions
from training.data.image_files import ImageFiles
from training.data.open_split import open_training
from training.data.photographs import open_photographs
from training.data.split import Split

SHARED = Path(__file__).parents[4] / "shared" / "flickr8k"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_photographs(tmp_path / "photos", {"train": 3, "val": 2})


def names_of(split: Split) -> list[str]:
    assert isinstance(split.images, ImageFiles)
    return [path.relative_to(path.parents[1]).as_posix() for path in split.images.paths]


def test_a_split_has_its_own_photographs_and_captions(folder: Path) -> None:
    val = open_photographs(folder, "val")
    assert names_of(val) == ["images/003.jpg", "images/004.jpg"]
    assert val.image_of.tolist() == [0] * 5 + [1] * 5
    assert val.captions[5] == "A red field, number 0 ."
    assert len(open_photographs(folder, "train").images) == 3
    assert len(open_photographs(folder, "train").first(2).captions) == 10
    assert len(open_photographs(folder, "train").first(0).captions) == 15


def test_line_breaks_within_a_caption_go(folder: Path) -> None:
    entries = read_entries(folder)
    entries[0]["sentences"][0]["raw"] = "two\nlines  and \t a tab "
    write_entries(folder, entries)
    assert open_photographs(folder, "train").captions[0] == "two lines and a tab"


def test_coco_has_folders_restval_and_six_captions(tmp_path: Path) -> None:
    counts = {"train": 2, "restval": 1, "val": 1, "test": 1}
    folders = {split: "train2014" if split == "train" else "val2014" for split in counts}
    folder = write_photographs(tmp_path, counts, "coco", captions=6, folders=folders)
    train, test = open_photographs(folder, "train"), open_photographs(folder, "test")
    assert names_of(train) == ["train2014/000.jpg", "train2014/001.jpg", "val2014/002.jpg"]
    assert len(train.captions) == 18  # all of them to learn from
    assert test.captions == [f"A red field, number {n} ." for n in range(5)]


def test_a_missing_split_names_those_there_are(folder: Path) -> None:
    with pytest.raises(ValueError, match=r'split "test"; it has train \(3\), val \(2\)'):
        open_photographs(folder, "test")


def test_missing_files_are_counted_and_named(folder: Path) -> None:
    for name in ("000.jpg", "002.jpg"):
        (folder / "images" / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of the 3 photographs.*images/000\.jpg"):
        open_photographs(folder, "train")
    assert len(open_photographs(folder, "val").images) == 2


def test_a_folder_without_images_says_where_they_go(folder: Path) -> None:
    (folder / "images").rename(folder / "pictures")
    with pytest.raises(FileNotFoundError, match=r"3 of the 3 .* image files into .*images"):
        open_photographs(folder, "train")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda entry: entry["sentences"].clear(), r"000\.jpg has no caption"),
        (lambda entry: entry["sentences"][1].update(raw=" \n"), r"000\.jpg has an empty caption"),
        (lambda entry: entry.pop("split"), r"000\.jpg has no split and others have one"),
        (
            lambda entry: entry.update(filename="../../secret.jpg"),
            r"secret\.jpg\", which leaves the folder",
        ),
    ],
)
def test_bad_entries(folder: Path, damage: Callable[[dict[str, Any]], None], message: str) -> None:
    entries = read_entries(folder)
    damage(entries[0])
    write_entries(folder, entries)
    with pytest.raises(ValueError, match=message):
        open_photographs(folder, "train")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"images": 3}', '{"pictures": []}', "\xff"])
def test_damaged_json_is_refused(folder: Path, text: str) -> None:
    (folder / "dataset_flickr8k.json").write_text(text, "latin-1")
    with pytest.raises(ValueError, match=r"dataset_flickr8k\.json.*fetch it again"):
        open_photographs(folder, "train")


def test_two_data_sets_in_a_folder_are_refused(folder: Path) -> None:
    (folder / "dataset_coco.json").write_text("{}")
    with pytest.raises(ValueError, match=r"dataset_coco\.json and dataset_flickr8k\.json"):
        find_captions(folder)


def test_a_folder_without_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no file of captions \(\.csv"):
        open_photographs(tmp_path, "train")


@pytest.mark.shared
def test_flickr8k_has_its_official_splits() -> None:
    train, val = open_photographs(SHARED, "train"), open_photographs(SHARED, "val")
    assert (len(train.images), len(val.images)) == (6000, 1000)
    assert (len(train.captions), len(val.captions)) == (30000, 5000)
    assert not set(names_of(train)) & set(names_of(val))


def test_folders_join_behind_the_first(tmp_path: Path) -> None:
    first = write_photographs(tmp_path / "first", {"train": 3, "val": 2})
    other = write_photographs(tmp_path / "other", {"train": 2, "val": 1}, captions=2)
    (other / "dataset_flickr8k.json").rename(other / "captions.json")
    alone = other / "images" / "alone.jpg"
    Image.new("RGB", (8, 8), "red").save(alone)
    joined = open_training(first, [str(other)], without_captions=True)
    assert isinstance(joined.images, ImageFiles)
    assert [path.parents[1].name for path in joined.images.paths] == ["first"] * 3 + ["other"] * 3
    assert joined.images.paths[-1] == alone  # of the validation photograph nothing is seen
    assert joined.image_of.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 2 + [4] * 2
    assert joined.captions[15:] == open_photographs(other, "train").captions
    assert len(open_training(first, [str(other)]).images) == 5
    assert len(open_training(first).images) == 3
