"""Image files are opened in one place, which refuses what is no regular file of the gallery."""

import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from app.gallery import collection as collection_module
from app.gallery.collection import from_folder
from app.gallery.image_files import (
    MAX_BYTES,
    Contents,
    ImageError,
    NotNowError,
    StoppedError,
    open_image_file,
)
from app.gallery.indexing import Index
from tests.app import hostile
from tests.app.conftest import draw
from tests.app.pretended import Pretended


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one picture; another lies outside of it."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    draw(0)[0].save(folder / "trip/0.png")
    (tmp_path / "private").mkdir()
    draw(1)[0].save(tmp_path / "private/secret.png")
    return folder


def test_what_lies_in_the_folder_is_opened(root: Path) -> None:
    inner = root / "link.png"
    inner.symlink_to("trip/0.png")
    for path in (root / "trip/0.png", inner, root / "trip/../trip/0.png"):
        with open_image_file(path, "it", root) as file:
            assert file.read(4) == b"\x89PNG"


def test_links_that_lead_out_are_refused(root: Path) -> None:
    secret = root.parent / "private/secret.png"
    (root / "a.png").symlink_to(secret)
    (root / "b").symlink_to(secret.parent)
    (root / "loop.png").symlink_to("loop.png")
    for path in (root / "a.png", root / "b/secret.png", root / "../private/secret.png"):
        with pytest.raises(NotNowError, match="--follow-links"):
            open_image_file(path, "it", root)
        open_image_file(path, "it").close()
    with pytest.raises(NotNowError, match="cannot be read"):
        open_image_file(root / "loop.png", "it", root)


def test_a_folder_that_becomes_a_link_while_a_file_is_opened_leads_nowhere(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root.parent / "private/0.png").write_bytes(b"secret")
    honest = os.path.realpath

    def swapped(path: Path, strict: bool = False) -> str:
        real = honest(path, strict=strict)
        (root / "trip").rename(root.parent / "away")
        (root / "trip").symlink_to(root.parent / "private")
        return real

    monkeypatch.setattr(os.path, "realpath", swapped)
    with pytest.raises(NotNowError, match="leads out"):
        open_image_file(root / "trip/0.png", "it", root)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket"])
def test_what_is_no_regular_file_neither_blocks_nor_opens(root: Path, kind: str) -> None:
    path = root / "it.png"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path = root / "trip"
    with pytest.raises(NotNowError):
        open_image_file(path, "it.png")


def test_files_of_no_bytes_and_of_too_many_are_refused(root: Path) -> None:
    with pytest.raises(ImageError, match="empty"):
        open_image_file(hostile.sparse(root / "none.png", 0), "it", root)
    with pytest.raises(ImageError, match="1,048,576 MB, more than the 512 MB"):
        open_image_file(hostile.sparse(root / "huge.png", 2**40), "it", root)


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["deep" * 20] * 80), "nul\0byte", "\ud800"])
def test_names_that_no_disk_takes_are_a_sentence(root: Path, name: str) -> None:
    with pytest.raises(NotNowError) as refusal:
        open_image_file(root / name, "it", root)
    assert str(root) not in str(refusal.value)


def test_a_hash_stops_in_the_middle_of_a_file(root: Path) -> None:
    stop = threading.Event()
    with open_image_file(hostile.sparse(root / "large.png", MAX_BYTES), "it", root) as file:
        threading.Timer(0.05, stop.set).start()
        began = time.process_time()
        with pytest.raises(StoppedError):
            _read_again_and_again(file, stop)
        assert time.process_time() - began < 5


def test_a_folder_full_of_traps_is_indexed_and_says_what_is_left_out(root: Path) -> None:
    hostile.set_traps(root)
    (root / "inner").symlink_to(root / "trip")
    (root / "nothing.jpg").symlink_to(root / "missing.jpg")
    index = Index(Pretended().runtime, from_folder(root), root.parent / "cache")
    index.start()
    assert index.wait(20)
    assert index.progress.stage == "ready", index.progress
    assert len(index) == 1
    left = {refusal.file[:9]: refusal.reason for refusal in index.refused}
    assert left.keys() == {
        "link.png", "links", "zeros.jpg", "nothing.j", "pipe.jpg", "huge.jpg", "d" * 9,
    }  # fmt: skip
    assert all(str(root) not in reason for reason in left.values())


def test_links_are_followed_where_somebody_wants_it(root: Path) -> None:
    hostile.set_traps(root)
    followed = {image.file: image for image in from_folder(root, follow_links=True).images}
    for name in ("links/secret.png", "link.png", "trip/0.png"):
        followed[name].open().close()
    for name in ("zeros.jpg", "pipe.jpg", "huge.jpg"):
        with pytest.raises(ImageError):
            followed[name].open()


def test_links_in_circles_end(root: Path) -> None:
    (root / "trip/again").symlink_to(root)
    assert [p.file for p in from_folder(root, follow_links=True).images] == ["trip/0.png"]


def test_unlisted_folders_are_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(place: Path, onerror: object, followlinks: bool) -> object:
        assert callable(onerror)
        onerror(PermissionError(13, "Permission denied", str(root / "closed")))
        yield from honest(place, followlinks=followlinks)

    honest = os.walk
    monkeypatch.setattr(collection_module.os, "walk", walk)
    [refusal] = from_folder(root).left_out
    assert (refusal.file, refusal.reason) == ("closed", "closed cannot be read (Permission denied)")


def _read_again_and_again(file: BinaryIO, stop: threading.Event) -> None:
    while True:  # a fast machine may be done with it before it is stopped
        Contents.of(file, stop)
        file.seek(0)
