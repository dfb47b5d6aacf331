"""Captions files: four forms that hold the same, splits that are drawn, and what is refused."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.data.__main__ import main
from training.data.captions_file import find_captions, read_captions
from training.data.open_split import open_split
from training.data.photographs import open_photographs

IMAGES = {"a.jpg": ["A dog, running", "a cat"], "in/b.jpg": ["A man"], "c.jpg": ["Two red birds"]}
SPLITS = {"a.jpg": "train", "in/b.jpg": "val", "c.jpg": "test"}
PAIRS = [(file, caption) for file, captions in IMAGES.items() for caption in captions]


def table(mark: str, head: tuple[str, ...], *, quoted: bool = True) -> str:
    quote = '"' if quoted else ""
    lines = [mark.join(head)]
    for file, caption in PAIRS:
        cells = [file, f"{quote}{caption}{quote}", SPLITS[file]]
        lines.append(mark.join(cells[: len(head)]))
    return "\n".join(lines) + "\n"


def in_lines() -> str:
    first = {"file": "a.jpg", "captions": IMAGES["a.jpg"], "split": "train"}
    rest = [{"file": f, "caption": c, "split": SPLITS[f]} for f, c in PAIRS[2:]]
    return "\n".join(json.dumps(entry) for entry in (first, *rest))


def in_json() -> str:
    images = [
        {
            "filename": f.rpartition("/")[2],
            "split": SPLITS[f],
            "sentences": [{"raw": c} for c in cs],
        }
        | ({"filepath": "in"} if "/" in f else {})
        for f, cs in IMAGES.items()
    ]
    return json.dumps({"images": images})


FORMS = {
    "mine.csv": table(",", ("file", "caption", "split")),
    "semicolons.csv": table(";", ("Image", "Text", "Split")),
    "bars.csv": table("| ", ("image_name", " comment", " split"), quoted=False),
    "tabs.tsv": table("\t", ("filename", "caption", "split"), quoted=False),
    "mark.csv": "\ufeff" + table(",", ("file", "caption", "split")),
    "lines.jsonl": in_lines(),
    "anything.json": in_json(),
}


def folder_with(root: Path, name: str, text: str, images: str = "images") -> Path:
    for file in IMAGES:
        path = root / images / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), "red").save(path)
    (root / name).write_text(text, "utf-8")
    return root


@pytest.mark.parametrize("name", FORMS)
def test_all_forms_hold_the_same(name: str, tmp_path: Path) -> None:
    path = folder_with(tmp_path, name, FORMS[name]) / name
    assert find_captions(tmp_path) == path
    found = read_captions(path)
    assert {image.file: image.captions for image in found} == IMAGES
    assert {image.file: image.split for image in found} == SPLITS
    train = open_split(tmp_path, "train")
    assert (train.captions, len(train.images)) == (["A dog, running", "a cat"], 1)
    assert open_split(path, "val").captions == ["A man"]


def test_coco_s_own_form_has_no_splits_so_they_are_drawn(tmp_path: Path) -> None:
    numbers = {file: number for number, file in enumerate(IMAGES, 5)}
    images = [{"id": number, "file_name": file} for file, number in numbers.items()]
    said = [{"image_id": numbers[file], "caption": caption} for file, caption in PAIRS]
    folder_with(tmp_path, "c.json", json.dumps({"images": images, "annotations": said}))
    found = read_captions(tmp_path / "c.json")
    assert {image.file: image.captions for image in found} == IMAGES
    assert sorted(str(image.split) for image in found) == ["test", "train", "val"]


def test_splits_are_drawn_by_image_and_always_alike(tmp_path: Path) -> None:
    lines = [f"{n}.jpg,caption {m} of {n}" for n in range(50) for m in range(2)]
    path = tmp_path / "captions.csv"
    path.write_text("\n".join(["file,caption", *lines]))
    found = {image.file: image.split for image in read_captions(path)}
    assert Counter(found.values()) == {"train": 40, "val": 5, "test": 5}
    path.write_text("\n".join(["file,caption", *reversed(lines)]))
    assert {image.file: image.split for image in read_captions(path)} == found


def test_images_may_lie_beside_the_file(tmp_path: Path) -> None:
    folder_with(tmp_path, "captions.csv", FORMS["mine.csv"], images=".")
    assert len(open_photographs(tmp_path, "train").images) == 1


def test_the_usual_name_wins_over_other_files(tmp_path: Path) -> None:
    folder_with(tmp_path, "captions.csv", FORMS["mine.csv"])
    (tmp_path / "notes.json").write_text("{}")
    assert find_captions(tmp_path) == tmp_path / "captions.csv"
    (tmp_path / "captions.csv").rename(tmp_path / "mine.csv")
    with pytest.raises(ValueError, match=r"holds mine\.csv and notes\.json; name the one"):
        find_captions(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.csv", "a.jpg,A dog\n", 'no column "file": its first line is "a.jpg, a dog"'),
        ("c.csv", "file,what\na.jpg,A dog\n", 'no column "caption"'),
        ("c.csv", "file,caption\na.jpg,A dog, running\n", 'line 2 has 3 values.*"quotation marks"'),
        ("c.csv", "file,caption\na.jpg,\n", r"line 2: a\.jpg has an empty caption"),
        ("c.csv", 'file,caption\na.jpg,"A dog\n', "line 2 is not readable"),
        ("c.csv", "file,caption\n../x.jpg,A dog\n", "line 2 names .* which leaves the folder"),
        (
            "c.csv",
            "file,caption,split\na.jpg,A,train\na.jpg,B,val\n",
            'line 3: a.jpg is in .*"val"',
        ),
        ("c.csv", "file,caption,split\na.jpg,A,train\nb.jpg,B,\n", r"b\.jpg has no split"),
        ("c.jsonl", '{"file": "a.jpg"}', r'line 1 is not readable: "caption": Field required'),
        ("c.jsonl", '{"file": 3, "caption": "A"}', 'line 1 .*"file": Input should be a valid str'),
        ("c.jsonl", "[1]", "line 1 is not readable: Input should be an object"),
        ("c.jsonl", '{"file":\n', "line 1 is not readable: Invalid JSON"),
        ("c.json", '{"images": [{"id": 1}]}', r'"images\.0\.filename": Field required'),
        (
            "c.json",
            '{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}',
            'no image has the "id" 1',
        ),
    ],
)
def test_what_makes_no_sense_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_captions(tmp_path / name)


def test_a_folder_says_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path, "mine.csv", "file,caption\n" + "".join(f'{f},"{c}"\n' for f, c in PAIRS))
    (tmp_path / "images" / "c.jpg").write_text("no image")
    main([str(tmp_path)])
    printed = capsys.readouterr().out
    assert "photographs, captions in mine.csv; the splits are drawn here" in printed
    assert "train       1 images" in printed
    assert "files: 2 JPEG; the shorter side has 30 to 30 pixels" in printed
    assert "1 cannot be read: c.jpg" in printed
    with pytest.raises(SystemExit, match="holds neither photographs"):
        main([str(tmp_path / "nothing")])


def test_truncated_images_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path, "mine.csv", FORMS["mine.csv"])
    random = np.random.default_rng(0)
    for file in ("a.jpg", "in/b.jpg"):
        path = tmp_path / "images" / file
        Image.fromarray(random.integers(0, 255, (64, 64, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:-900])  # its head is whole
    main([str(tmp_path)])
    assert "2 cannot be read: a.jpg, b.jpg; replace them" in capsys.readouterr().out
