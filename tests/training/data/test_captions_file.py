"""Folders of photographs: caption formats, splits, missing and damaged files."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.training.data.image_files import ImageFiles
from polyview.training.data.open_split import main, open_split, open_training
from polyview.training.data.photographs import find_captions, open_photographs, read_captions
from tests.training.conftest import write_photographs

IMAGES = {"a.jpg": ["A dog, running", "a cat"], "in/b.jpg": ["A man"], "c.jpg": ["Two red birds"]}
SPLITS = {"a.jpg": "train", "in/b.jpg": "val", "c.jpg": "test"}
PAIRS = [(file, caption) for file, captions in IMAGES.items() for caption in captions]


def table(separator: str, *head: str, quote: str = "") -> str:
    rows = [(file, f"{quote}{caption}{quote}", SPLITS[file]) for file, caption in PAIRS]
    return "".join(f"{separator.join(row)}\n" for row in (head, *rows))


LINES = [{"file": "a.jpg", "captions": IMAGES["a.jpg"], "split": "train"}]
LINES += [{"file": f, "caption": c, "split": SPLITS[f]} for f, c in PAIRS[2:]]
ENTRIES = [
    {
        "filename": Path(file).name,
        "filepath": str(Path(file).parent).replace(".", ""),
        "split": SPLITS[file],
        "sentences": [{"raw": caption.replace(" ", " \n\t ")} for caption in captions],
    }
    for file, captions in IMAGES.items()
]
FORMS = {
    "mine.csv": table(",", "file", "caption", "split", quote='"'),
    "semicolons.csv": table(";", "Image", "Text", "Split") + "\n ; ; \n",
    "bars.csv": table("| ", "image_name", " comment", " split"),
    "tabs.tsv": table("\t", "filename", "caption", "split"),
    "mark.csv": "\ufeff" + table(",", "file", "caption", "split", quote='"'),
    "lines.jsonl": "\n".join(map(json.dumps, LINES)),
    "anything.json": json.dumps({"images": ENTRIES}),
}
FORMS["numbers.csv"] = ",comment_number," + FORMS["mine.csv"].strip().replace("\n", "\n0,1,")


def folder_with(root: Path, name: str, text: str, images: str = "images") -> Path:
    for file in IMAGES:
        path = root / images / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), "red").save(path)
    (root / name).write_text(text, "utf-8")
    return root


@pytest.mark.parametrize("name", FORMS)
def test_all_formats_are_read_alike(name: str, tmp_path: Path) -> None:
    path = folder_with(tmp_path, name, FORMS[name]) / name
    assert find_captions(tmp_path) == path
    images = read_captions(path)
    assert {image.file: image.captions for image in images} == IMAGES
    assert {image.file: image.split for image in images} == SPLITS
    train = open_split(tmp_path, "train")
    assert (train.captions, len(train.images)) == (["A dog, running", "a cat"], 1)
    assert open_split(path, "val").captions == ["A man"]


def test_drawn_splits_depend_on_file_names_only(tmp_path: Path) -> None:
    """Tables without a column for the split, and COCO's JSON, which has none."""
    lines = [f"{n}.jpg,caption {m} of {n}" for n in range(50) for m in range(2)]
    path, coco = tmp_path / "captions.csv", tmp_path / "c.json"
    path.write_text("\n".join(["file,caption", *lines]))
    splits = {image.file: image.split for image in read_captions(path)}
    assert Counter(splits.values()) == {"train": 40, "val": 5, "test": 5}
    path.write_text("\n".join(["file,caption", *reversed(lines)]))
    assert {image.file: image.split for image in read_captions(path)} == splits
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(50)]
    captions = [{"image_id": n % 50, "caption": f"caption {n // 50}"} for n in range(100)]
    coco.write_text(json.dumps({"images": images, "annotations": captions}))
    read = read_captions(coco)
    assert {image.file: image.split for image in read} == splits
    assert read[7].captions == ["caption 0", "caption 1"]


def test_karpathys_split_of_coco_has_folders_restval_and_up_to_six_captions(tmp_path: Path) -> None:
    counts = {"train": 2, "restval": 1, "val": 2, "test": 1}
    folders = {split: "train2014" if split == "train" else "val2014" for split in counts}
    folder = write_photographs(tmp_path, counts, "coco", captions=6, folders=folders)
    train, val, test = (open_photographs(folder, split) for split in ("train", "val", "test"))
    assert [len(split.images) for split in (train, val, test)] == [3, 2, 1]
    assert isinstance(train.images, ImageFiles)
    names = [path.relative_to(folder / "images").as_posix() for path in train.images.paths]
    assert names == ["train2014/000.jpg", "train2014/001.jpg", "val2014/002.jpg"]
    assert len(train.captions) == 18  # training uses all six
    assert [len(train.head(count).captions) for count in (2, 0)] == [12, 18]
    assert test.captions == [f"A green field, number {n} ." for n in range(5)]
    assert test.image_of.tolist() == [0] * 5


def test_captions_csv_has_priority_and_images_may_be_in_its_folder(tmp_path: Path) -> None:
    folder_with(tmp_path, "captions.csv", FORMS["mine.csv"], images=".")
    (tmp_path / "notes.json").write_text("{}")
    assert find_captions(tmp_path) == tmp_path / "captions.csv"
    assert len(open_photographs(tmp_path, "train").images) == 1
    (tmp_path / "captions.csv").rename(tmp_path / "mine.csv")
    with pytest.raises(ValueError, match=r"holds mine\.csv and notes\.json; name the one"):
        find_captions(tmp_path)


DAMAGED = {
    "c.csv": [
        ("a.jpg,A dog\n", 'no column "file": its first line is "a.jpg, a dog"'),
        ("file,what\na.jpg,A dog\n", 'no column "caption"'),
        ("file,Caption,caption\na.jpg,A,B\n", 'several columns "caption"; keep only one'),
        ("file,caption,splits\na.jpg,A,test\n", 'line 2 .* field "splits"; rename it to file'),
        ("file,caption\na.jpg,A dog, running\n", 'line 2 has 3 values.*"quotation marks"'),
        ("file,caption\na.jpg,\n", r"line 2: a\.jpg has an empty caption"),
        ('file,caption\na.jpg,"A dog\n', "line 2 is not readable"),
        ("file,caption\n../x.jpg,A dog\n", "line 2: .* is outside the folder of images"),
        ("file,caption,split\na.jpg,A,train\na.jpg,B,val\n", 'line 3: a.jpg is in .*"val"'),
        ("file,caption,split\na.jpg,A,train\nb.jpg,B,\n", r"b\.jpg has no split"),
        ("\xff", r"c\.csv is not text in UTF-8"),
    ],
    "c.jsonl": [
        ('{"file": "a.jpg"}', 'line 1 is not readable: "captions?": Field required'),
        ('{"file": 3, "caption": "A"}', 'line 1 .*"file": Input should be a valid str'),
        ('{"file": "a.jpg", "caption": "A", "splitt": "val"}', 'line 1 .* field "splitt"; rename'),
        ('{"file": "a.jpg", "caption": "A", "captions": []}', 'repeated field "captions"; rename'),
        ('{"file":\n', "line 1 is not readable: Invalid JSON"),
    ],
    "c.json": [
        ("", r"c\.json is not readable: Invalid JSON.*fetch it again"),
        ('{"pictures": []}', r'c\.json is not readable: "images": Field required'),
        ('{"images": [{"filename": "a.jpg"}]}', r"a\.jpg has no caption"),
        (
            '{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}',
            'no image has the "id" 1',
        ),
    ],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    for text, message in DAMAGED[name]:
        (tmp_path / name).write_text(text, "latin-1")
        with pytest.raises(ValueError, match=message):
            read_captions(tmp_path / name)


def test_missing_splits_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no file of captions \(\.csv"):
        open_photographs(tmp_path, "train")
    folder = write_photographs(tmp_path / "photos", {"train": 3, "val": 2})
    with pytest.raises(ValueError, match=r'split "test"; it has train \(3\), val \(2\)'):
        open_photographs(folder, "test")
    for name in ("000.jpg", "002.jpg"):
        (folder / "images" / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of the 3 photographs.*images/000\.jpg"):
        open_photographs(folder, "train")
    assert len(open_photographs(folder, "val").images) == 2
    (folder / "images").rename(folder / "pictures")
    with pytest.raises(FileNotFoundError, match=r"3 of the 3 .* image files into .*images"):
        open_photographs(folder, "train")


def test_more_folders_are_appended_to_the_training_split(tmp_path: Path) -> None:
    first = write_photographs(tmp_path / "first", {"train": 3, "val": 2})
    other = write_photographs(tmp_path / "other", {"train": 2, "val": 1}, captions=2)
    (other / "dataset_flickr8k.json").rename(other / "captions.json")
    alone = other / "images" / "alone.jpg"
    Image.new("RGB", (8, 8), "red").save(alone)
    joined = open_training(first, [str(other)], without_captions=True)
    assert isinstance(joined.images, ImageFiles)
    assert [path.parents[1].name for path in joined.images.paths] == ["first"] * 3 + ["other"] * 3
    assert joined.images.paths[-1] == alone  # without the validation photograph
    assert joined.image_of.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 2 + [4] * 2
    assert joined.captions[15:] == open_photographs(other, "train").captions
    assert len(open_training(first, [str(other)]).images) == 5
    assert len(open_training(first).images) == 3


def test_a_summary_names_damaged_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path, "mine.csv", "file,caption\n" + "".join(f'{f},"{c}"\n' for f, c in PAIRS))
    random, path = np.random.default_rng(0), tmp_path / "images/in/b.jpg"
    Image.fromarray(random.integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-900])  # truncated; the header is whole
    (tmp_path / "images" / "c.jpg").write_text("no image")
    main([str(tmp_path)])
    printed = capsys.readouterr().out
    assert "photographs, captions in mine.csv" in printed
    assert "train       1 images" in printed
    assert "words: 3 in the training captions, 0 of them twice or more" in printed
    assert "files: 3, of which 2 cannot be read" in printed
    assert {"b.jpg", "c.jpg"} <= set(printed.replace(";", ",").replace(": ", ", ").split(", "))
    with pytest.raises(SystemExit, match="holds neither photographs"):
        main([str(tmp_path / "nothing")])
