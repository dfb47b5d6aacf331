"""The files of packs, folders, archives and uploads; refused files and archives."""

import errno
import os
import shutil
import stat
import struct
import time
import zipfile
from collections.abc import Callable
from copy import copy
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest

from polyview.app.gallery import scan
from polyview.app.gallery.images import ImageError, open_file
from polyview.app.gallery.scan import from_folder, from_uploads, open_images
from tests.app.api.conftest import encoded
from tests.app.conftest import draw
from tests.app.gallery.conftest import FakeRuntime, indexed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one image; another image is outside the folder."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    draw(0)[0].save(folder / "trip/0.png")
    (tmp_path / "private").mkdir()
    draw(1)[0].save(tmp_path / "private/secret.png")
    return folder


def write_below(folder: Path, name: str, depth: int) -> None:
    """Writes an image in nested folders; its path may be longer than the system accepts."""
    draft, outer = folder / "draft", folder / "outer"
    draft.mkdir()
    draw(5)[0].save(draft / "deep.png")
    for _ in range(depth - 1):
        outer.mkdir()
        draft.rename(outer / name)
        outer.rename(draft)
    draft.rename(folder / name)


def set_traps(folder: Path) -> None:
    """Fills a folder with links, pipes and files that must not be read."""
    outside = folder.parent / "outside"
    outside.mkdir()
    draw(7)[0].save(outside / "secret.png")
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "links").symlink_to(outside)
    (folder / "zeros.jpg").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jpg")
    with (folder / "huge.jpg").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    write_below(folder, "d" * 200, 22)


def test_folders_are_read_recursively(tmp_path: Path) -> None:
    names = "b.JPG deep/er/a.png deep/c.webp .hidden/d.png .e.png a.txt deep/f.zip"
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(b"x")
    write_below(tmp_path, "n", 300)
    collection = from_folder(tmp_path)
    files = [image.file for image in collection.images]
    deepest = f"{'n/' * 300}deep.png"
    assert files == ["b.JPG", "caf\\xe9.png", "deep/c.webp", "deep/er/a.png", deepest]
    assert [image.image_id for image in collection.images] == [0, 1, 2, 3, 4]
    assert collection.images[1].path.read_bytes() == b"x"
    folders = {"deep": {2}, "deep/er": {3}, deepest.rpartition("/")[0]: {4}}
    assert collection.facts == {"folder": folders}
    [left] = collection.left_out
    assert left.reason == "deep/f.zip is an archive in a folder; unpack it, or open it by itself"


def test_folders_without_images_or_access(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="holds no images"):
        from_folder(Path(__file__).parent)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        from_folder(root / "missing")
    honest = os.walk

    def walk(place: str, onerror: Callable[[OSError], object]) -> object:
        if place == str(root):
            onerror(PermissionError(13, "Permission denied", str(root / "closed")))
        yield from honest(place)

    monkeypatch.setattr(os, "walk", walk)
    [refusal] = from_folder(root).left_out
    advice = "check permissions and disk"
    assert refusal.file == "closed"
    assert refusal.reason == f"closed cannot be read (Permission denied); {advice}"


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["deep" * 20] * 80), "nul\0byte", "\ud800"])
def test_impossible_names_are_refused(root: Path, name: str) -> None:
    with pytest.raises(ImageError) as refusal:
        open_file(root / name, "it", root)
    assert str(root) not in str(refusal.value)


def test_traps_in_a_folder_are_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "islink", lambda _: False)  # as for junctions of Windows
    set_traps(root)
    (root / "inner").symlink_to(root / "trip")
    (root / "trip/again").symlink_to(root)
    (root / "nothing.jpg").symlink_to(root / "missing.jpg")
    (root / "loop.png").symlink_to("loop.png")
    index = indexed(root, root.parent / "cache", FakeRuntime())
    assert len(index) == 1
    left = {refusal.file[:9]: refusal.reason for refusal in index.refused}
    assert left.keys() == {
        "link.png", "links", "zeros.jpg", "nothing.j", "loop.png", "pipe.jpg", "huge.jpg", "d" * 9,
    }  # fmt: skip
    assert "is not a regular file" in left["pipe.jpg"]
    assert all("put a copy in its place" in left[n] for n in ("link.png", "links", "zeros.jpg"))
    assert all(str(root) not in reason for reason in left.values())


def test_uploads_of_one_name_get_numbers(tmp_path: Path) -> None:
    names = ["a.png", "a.png", "a (2).png", "a.png", "notes.txt"]
    files = [(tmp_path / str(number), name) for number, name in enumerate(names)]
    uploads = from_uploads(tmp_path, files)
    unique_names = [image.file for image in uploads.images]
    assert unique_names == ["a.png", "a (2).png", "a (2) (2).png", "a (3).png"]
    assert [left.file for left in uploads.left_out] == ["notes.txt"]
    with pytest.raises(ValueError, match="none of these files is an image"):
        from_uploads(tmp_path, files[4:])


def make(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    return path


def test_images_of_an_archive_are_unpacked_once(tmp_path: Path) -> None:
    entries = {
        "a.png": encoded(0), "c.mp4": b"clip", "sea/b.PNG": encoded(1), ".hidden/c.png": encoded(2),
        "sea/notes.txt": b"text", "__MACOSX/._a.png": b"metadata", "more/inner.zip": b"PK",
    }  # fmt: skip
    mine = make(tmp_path / "trip.zip", entries)
    collection = open_images(mine, tmp_path / "cache")
    assert collection.title == "trip"
    assert [p.file for p in collection.images] == ["a.png", "c.mp4", "sea/b.PNG"]
    assert collection.images[2].path.read_bytes() == encoded(1)
    first, folder = collection.images[0].path.stat(), collection.folder
    (tmp_path / "elsewhere").mkdir()
    mine = mine.rename(tmp_path / "elsewhere/trip.zip")
    draft = folder.with_name(f".{folder.name}.x")  # left by a killed process
    draft.mkdir()
    again = open_images(mine, tmp_path / "cache")
    assert again.folder == folder
    assert again.images[0].path.stat() == first
    folder.rename(draft / "half")
    assert open_images(mine, tmp_path / "cache").folder == folder
    assert not draft.exists()
    day = 24 * 3600
    for days, remains in ((80, True), (100, False)):
        os.utime(folder, (0, time.time() - days * day))
        open_images(make(tmp_path / f"{days}.zip", {"a.png": encoded(0)}), tmp_path / "cache")
        assert folder.is_dir() == remains


def test_entries_never_leave_their_folder(tmp_path: Path) -> None:
    mine = tmp_path / "mine.zip"
    with zipfile.ZipFile(mine, "w") as packed:
        for name in ("../../up.png", "/tmp/absolute.png", "..\\windows.png", "fine.png"):
            info = zipfile.ZipInfo("x.png")
            info.filename = name  # the constructor would change the name
            packed.writestr(info, encoded(0))
        link = zipfile.ZipInfo("link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, "/etc/passwd")
    folder = open_images(mine, tmp_path / "some/deep/cache").folder
    written = list((tmp_path / "some").rglob("*.png"))
    assert all(path.is_relative_to(folder) and not path.is_symlink() for path in written)
    assert not Path("/tmp/absolute.png").exists()


def altered(*changes: tuple[bytes, int, bytes]) -> Callable[[Path], object]:
    """Returns a writer of a one-image archive; a change is a signature, an offset, new bytes."""

    def write(path: Path) -> None:
        content = bytearray(make(path, {"a.png": encoded(0)}, zipfile.ZIP_STORED).read_bytes())
        for signature, offset, data in changes:
            start = content.rindex(signature) + offset
            content[start : start + len(data)] = data
        path.write_bytes(content)

    return write


def overlapping(path: Path) -> None:
    """Writes an archive of 30 entries that share the same compressed bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("0.bmp", bytes(3 * 2**20) + os.urandom(2**14))
        for number in range(1, 30):
            info = copy(packed.infolist()[0])
            info.filename = f"{number}.bmp"
            packed.filelist.append(info)


LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"  # signatures of an entry's two headers
BOMBS = {f"{i}.bmp": bytes(2**23) for i in range(4)}
DAMAGED = "damaged, encrypted or not a ZIP archive"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "bombs": (lambda p: make(p, BOMBS), "32 MB, more than 200 times"),
    # files other than images do not raise the limit on the unpacked size
    "padded": (lambda p: make(p, BOMBS | {"x.txt": os.urandom(2**20)}), "32 MB, more than 200"),
    "shared": (overlapping, "90 MB, more than 200 times"),
    "longer": (altered((CENTRAL, 20, struct.pack("<II", 5000, 5000))), DAMAGED),
    "locked": (altered((LOCAL, 6, b"\1"), (CENTRAL, 8, b"\1")), DAMAGED),
    "flipped": (altered((b"IDAT", 20, b"damage")), DAMAGED),
    "cut": (lambda p: p.write_bytes(encoded(0)[:50]), DAMAGED),
    "empty": (lambda p: p.write_bytes(b""), DAMAGED),
    "many": (lambda p: make(p, {f"{i}.png": b"" for i in range(51)}), "51 entries, more than 50"),
    "deep": (lambda p: make(p, {f"{'a/' * 1000}a.png": encoded(0)}), "recursion depth exceeded"),
    "name": (lambda p: make(p, {f"{'n' * 300}.png": encoded(0)}), "cannot be unpacked"),
    "none": (lambda p: make(p, {"a.txt": b"words"}), "holds no images"),
    "full": (lambda p: make(p, {"a.png": encoded(0)}), "GB are free; unpack it elsewhere"),
    "disk": (lambda p: make(p, {"a.png": encoded(0)}), "cannot be unpacked [(]no answer[)]"),
    "stopped": (lambda p: make(p, {"a.png": encoded(0)}), "^$"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_archives(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_ENTRIES", 50)
    monkeypatch.setattr(scan, "_MIN_FREE_BYTES", 2**62 if kind == "full" else 0)
    if kind == "disk":
        failing = Mock(side_effect=OSError(errno.EIO, "no answer"))
        monkeypatch.setattr(shutil, "disk_usage", failing)
    write, sentence = REFUSED[kind]
    archive, stopped = tmp_path / f"{kind}.zip", Event()
    write(archive)
    if kind == "stopped":
        stopped.set()
    error = scan.StoppedError if kind == "stopped" else ValueError
    with pytest.raises(error, match=sentence) as refused:
        open_images(archive, tmp_path / "cache", stopped=stopped)
    assert kind == "stopped" or str(refused.value).startswith(f"{kind}.zip")
    assert str(tmp_path) not in str(refused.value)
    assert {path.suffix for path in (tmp_path / "cache/archives").iterdir()} == {".lock"}
