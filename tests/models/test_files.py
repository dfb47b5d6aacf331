"""Files and folders are written completely or not at all."""

import hashlib
import os
from pathlib import Path

import pytest

from polyview.models import files


def fail_half_way(path: Path) -> None:
    path.write_text("half")
    path.with_name("nothing").read_text()


def fill_disk(path: Path) -> None:
    path.write_text("half")
    Path("/dev/full").write_text("raises the error of a full disk")


def test_a_file_is_replaced_only_by_a_complete_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    files.atomic_write(path, "ä")
    assert files.sha256_of(path) == hashlib.sha256(b"\xc3\xa4").hexdigest()
    with pytest.raises(FileNotFoundError), files.replacing(path) as draft:
        fail_half_way(draft)
    assert path.read_text("utf-8") == "ä"
    assert list(path.parent.iterdir()) == [path]
    os.link(path, tmp_path / "old")  # the old file is not overwritten in place
    files.atomic_write(path, "new")
    assert (path.read_text("utf-8"), (tmp_path / "old").read_text("utf-8")) == ("new", "ä")


def test_a_folder_is_replaced_only_by_a_complete_one(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    for content in ("one", "two"):
        with files.replacing_folder(path) as draft:
            (draft / content).write_text(content)
    with pytest.raises(FileNotFoundError), files.replacing_folder(path) as draft:
        fail_half_way(draft / "three")
    assert [file.name for file in path.iterdir()] == ["two"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "pack"
    for replaced in (files.replacing, files.replacing_folder):
        sentence = rf"full: {path} does not fit"
        with pytest.raises(files.DiskFullError, match=sentence) as refused, replaced(path) as draft:
            fill_disk(draft / "a" if draft.is_dir() else draft)
        assert "\n" not in str(refused.value)
        assert not list(path.parent.iterdir())


def test_the_nearest_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "runs" / "yours_pack").mkdir(parents=True)
    for name, end in (
        ("runs/yours_pak", f"yours_pak; did you mean {tmp_path}/runs/yours_pack?"),
        ("runs/yours_pak/best.safetensors", f"; did you mean {tmp_path}/runs/yours_pack?"),
        ("rusn/a", f"mean {tmp_path}/runs?"),
        ("else", "else; look"),
    ):
        assert str(files.not_found_error("folder", tmp_path / name, "look")).endswith(end)
