"""The folder of uploads: what lies in it, what leads out of it, what is deleted."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.blocks.server import uploads
from app.blocks.server.uploads import UploadError, is_inside, sweep, uploaded


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of uploads, reached through a link."""
    home = tmp_path / "uploads"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "link"))
    monkeypatch.setattr(uploads, "_FRESH", 0.0)
    return home


def fits(size: int) -> bool:
    """Whether there is room for an upload, which then does not come."""
    if reserved := uploads.reserve(size):
        uploads.release(size)
    return reserved


def put(folder: Path, name: str, size: int = 3, age: float = 0.0) -> Path:
    path = folder / hashlib.sha256(name.encode()).hexdigest() / "picture.png"
    path.parent.mkdir()
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_uploaded_files_are_found(folder: Path, tmp_path: Path) -> None:
    path = put(folder, "a")
    assert uploaded({"path": str(path)}) == path
    assert uploaded(str(tmp_path / "link" / path.relative_to(folder))) == path


@pytest.mark.parametrize(
    "path",
    ["/etc/hostname", "{home}", "{home}/../outside.png", "{home}/{a}/out", "{home}2/x.png",
     "picture.png", "http://evil.example/x.png", "file:///etc/hostname", "{home}/\0", "~/x.png"],
)  # fmt: skip
def test_nothing_else_is(folder: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside.png").write_bytes(b"x")
    put(folder, "a").with_name("out").symlink_to(tmp_path / "outside.png")
    path = path.replace("{home}", str(folder)).replace("{a}", next(folder.iterdir()).name)
    assert not is_inside(path)
    with pytest.raises(UploadError) as error:
        uploaded(path)
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize("image", [None, "", 5, {}, {"path": None}, {"path": 5}, ["x"]])
@pytest.mark.usefixtures("folder")
def test_no_picture_is_a_sentence(image: Any) -> None:
    with pytest.raises(UploadError, match="no picture"):
        uploaded(image)


def test_what_is_no_file_is_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    for name in ("fifo", "gone.png", "loop"):
        with pytest.raises(UploadError):
            uploaded(str(folder / name))


def test_a_data_uri_is_kept_like_an_upload(folder: Path) -> None:
    content = bytes(range(200))
    uri = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    path = uploaded(uri)
    assert path.read_bytes() == content
    assert is_inside(str(path))
    assert uploaded({"path": uri}) == path
    assert len(list(folder.rglob("*"))) == 2
    for broken in ("data:image/png;base64", "data:image/png,xx", "data:image/png;base64,*"):
        with pytest.raises(UploadError, match="data URI"):
            uploaded(broken)


def test_old_files_are_deleted_and_the_oldest_make_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "FOLDER_BYTES", 1000)
    old = put(folder, "old", age=uploads.AGE + 60)
    middle, late = put(folder, "middle", 400, 3000), put(folder, "late", 400, 2000)
    young = put(folder, "young", 400, 1)
    assert sweep()[1] == 800
    assert not old.parent.exists()
    assert not middle.exists()
    assert late.exists()
    assert fits(600)
    assert not late.exists()
    assert not fits(601)  # the young one stays
    assert young.exists()


def test_the_number_of_files_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "FOLDER_FILES", 3)
    paths = [put(folder, str(number), age=1000 + number) for number in range(6)]
    sweep()
    assert [path.exists() for path in paths] == [True] * 3 + [False] * 3


@pytest.mark.usefixtures("folder")
def test_uploads_on_their_way_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "FOLDER_BYTES", 1000)
    assert uploads.reserve(600)
    assert not uploads.reserve(600)
    uploads.release(600)
    assert uploads.reserve(600)
    uploads.release(600)


def test_files_are_not_counted_for_every_upload(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "FOLDER_BYTES", 1000)
    monkeypatch.setattr(uploads, "_FRESH", 3600.0)
    put(folder, "a", 400)
    count = Mock(side_effect=sweep)
    monkeypatch.setattr(uploads, "sweep", count)
    assert [fits(100) for _ in range(8)] == [True] * 6 + [False] * 2  # as if they were kept
    count.assert_called_once()


@pytest.mark.usefixtures("folder")
def test_nobody_waits_for_the_count_to_give_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    def count(room: int) -> tuple[int, int]:
        begun.set()
        assert end.wait(20)
        return 0, room

    assert uploads.reserve(10)
    monkeypatch.setattr(uploads, "sweep", count)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(uploads.reserve, 10)
        assert begun.wait(20)
        began = time.monotonic()
        uploads.release(10)
        took = time.monotonic() - began
        end.set()
        assert other.result(20)
    uploads.release(10)
    assert took < 5


@pytest.mark.usefixtures("folder")
def test_a_full_disk_takes_no_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(10)
    monkeypatch.setattr(uploads, "SPARE", 10**18)
    assert not fits(10)


@pytest.mark.usefixtures("folder")
def test_images_sent_with_a_question_need_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"data:image/png;base64,{base64.b64encode(b'x' * 100).decode()}"
    monkeypatch.setattr(uploads, "FOLDER_BYTES", 150)
    assert uploaded(uri).is_file()
    with pytest.raises(UploadError, match="no room"):
        uploaded(uri.replace("eHh4", "eXl5", 1))


def test_young_files_are_bounded_in_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "FOLDER_FILES", 2)
    for number in range(4):
        assert fits(1)
        place = folder / f"{number:064x}"
        place.mkdir()
        (place / "x.png").write_bytes(b"x")
    assert not fits(1)


def test_nothing_but_uploads_is_deleted(folder: Path) -> None:
    others = [folder / "notes.txt", folder / "tmp.png", folder / "photos" / "mine.png"]
    partial = folder / "tmpab12_xyz"
    (folder / "photos").mkdir()
    for path in (*others, partial):
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    sweep()
    assert all(path.exists() for path in others)
    assert not partial.exists()
