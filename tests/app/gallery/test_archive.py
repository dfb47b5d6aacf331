"""ZIP archives of pictures: unpacked once, or refused as a whole."""

import errno
import io
import resource
import stat
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest

from app.gallery import archive as module
from app.gallery.archive import ArchiveError, _Bounded, open_images, unpack
from app.gallery.image_files import StoppedError
from app.packs.opened import ForbiddenError, Opened
from app.settings import Settings
from tests.app.conftest import draw, find


def image(seed: int = 0) -> bytes:
    out = io.BytesIO()
    draw(seed)[0].save(out, "PNG")
    return out.getvalue()


def make(path: Path, entries: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    return path


def test_images_are_unpacked_once_and_others_left(tmp_path: Path) -> None:
    mine = make(
        tmp_path / "trip.zip",
        {
            "a.png": image(),
            "sea/b.PNG": image(1),
            "sea/notes.txt": b"not a picture",
            "__MACOSX/._a.png": b"what another system leaves",
            ".hidden/c.png": image(2),
        },
    )
    collection = open_images(mine, tmp_path / "cache")
    assert collection.title == "trip"
    assert [p.file for p in collection.images] == ["a.png", "sea/b.PNG"]
    assert collection.images[1].path.read_bytes() == image(1)
    first = collection.images[0].path.stat()
    again = open_images(mine.rename(tmp_path / "renamed.zip"), tmp_path / "cache")
    assert again.folder == collection.folder
    assert again.images[0].path.stat() == first
    unpacked = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sum(path.suffix != ".lock" for path in unpacked) == 2


def deep(path: Path) -> None:
    make(path, {f"{'a/' * 1000}a.png": image()})


def header(at: int, value: int) -> Callable[[Path], None]:
    """A list of entries that states something else of the first."""

    def write(path: Path) -> None:
        make(path, {"a.png": image()})
        content = bytearray(path.read_bytes())
        struct.pack_into("<H", content, content.rindex(b"PK\x01\x02") + at, value)
        path.write_bytes(content)

    return write


def link(path: Path) -> None:
    info = zipfile.ZipInfo("a.png")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(info, "/etc/passwd")


def named(name: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        info = zipfile.ZipInfo("x.png")
        info.filename = name  # as it is, where the constructor would mend it
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr(info, image())
            packed.writestr("fine.png", image())

    return write


def bomb(path: Path) -> None:
    make(path, {"a.bmp": bytes(64 * 2**20)})


def states(size: int) -> Callable[[Path], None]:
    """An entry that states another size than it has."""

    def write(path: Path) -> None:
        make(path, {"a.png": image()}, zipfile.ZIP_STORED)
        content = bytearray(path.read_bytes())
        place = content.rindex(b"PK\x01\x02")
        content[place + 20 : place + 28] = struct.pack("<II", size, size)
        path.write_bytes(content)

    return write


def locked(path: Path) -> None:
    make(path, {"a.png": image()})
    content = bytearray(path.read_bytes())
    for sign, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.rindex(sign) + at] |= 1
    path.write_bytes(content)


def flipped(path: Path) -> None:
    make(path, {"a.png": image()}, zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def many(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        for i in range(100_000):
            packed.writestr(f"{i}.png", b"")


def twice(path: Path) -> None:
    make(path, {"a.png": image(), "A.png": image(1)})


def below_a_file(path: Path) -> None:
    make(path, {"a.png": image(), "a.png/b.png": image()})


def nested(path: Path) -> None:
    inner = make(path.with_name("inner.zip"), {"a.png": image()}).read_bytes()
    make(path, {"a.png": image(), "more/inner.zip": inner})


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "upwards": (named("../../upwards.png"), r"names a file outside of itself \(\.\./\.\./upwards"),
    "absolute": (named("/tmp/absolute.png"), "names a file outside of itself"),
    "windows": (named("..\\windows.png"), "names a file outside of itself"),
    "drive": (named("C:drive.png"), "names a file outside of itself"),
    "link": (link, "holds a link"),
    "bomb": (bomb, "unpacks to more than 200 times its size"),
    "huge": (states(2**31), "takes 2,048 MB, more than 512 MB"),
    "longer": (states(5_000), "damaged or is no ZIP archive"),
    "locked": (locked, "locked with a password"),
    "lzma": (lambda p: make(p, {"a.png": image()}, zipfile.ZIP_LZMA), "another way than ZIP's"),
    "flipped": (flipped, "damaged or is no ZIP archive"),
    "cut": (lambda p: p.write_bytes(image()[:50]), "damaged or is no ZIP archive"),
    "empty": (lambda p: p.write_bytes(b""), "damaged or is no ZIP archive"),
    "many": (many, "more than 50,000 entries"),
    "twice": (twice, "two files of one name"),
    "below_a_file": (below_a_file, "two files of one name"),
    "nested": (nested, r"holds another archive \(more/inner.zip\)"),
    "name": (
        lambda path: make(path, {f"{'n' * 300}.png": image()}),
        "has a name of more than 255 bytes",
    ),
    "path": (
        lambda path: make(path, {f"{'deep/' * 900}a.png": image()}),
        "lies under a path of more than 2048 bytes",
    ),
    "deep": (deep, "lies more than 100 folders deep"),
    "patched": (header(8, 0x20), "damaged or is no ZIP archive"),
    "encrypted": (header(8, 0x40), "damaged or is no ZIP archive"),
    "version": (header(6, 99), "damaged or is no ZIP archive"),
    "none": (lambda p: make(p, {"a.txt": b"words"}), "holds no pictures"),
}


def test_a_full_disk_is_told_pathless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = make(tmp_path / "trip.zip", {"a.png": image()})
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "cache"))
    monkeypatch.setattr(module.shutil, "copyfileobj", Mock(side_effect=full))
    with pytest.raises(ArchiveError, match=r"cannot be unpacked \(No space left") as refused:
        unpack(mine, tmp_path / "cache")
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize("kind", list(REFUSED))
def test_bad_archives_are_refused_and_leave_nothing(kind: str, tmp_path: Path) -> None:
    write, sentence = REFUSED[kind]
    (tmp_path / "from").mkdir()
    hostile = tmp_path / "from" / f"{kind}.zip"
    write(hostile)
    cache = tmp_path / "some" / "deep" / "cache"
    with pytest.raises(ArchiveError, match=sentence) as refused:
        unpack(hostile, cache)
    assert str(refused.value).startswith(f"{kind}.zip")
    assert str(tmp_path) not in str(refused.value)
    assert [path.suffix for path in (tmp_path / "some").rglob("*") if path.is_file()] == [".lock"]
    assert not list(tmp_path.rglob("*.partial"))
    assert not (tmp_path / "upwards.png").exists()


def test_a_list_of_entries_that_takes_much_memory_is_not_read(tmp_path: Path) -> None:
    entry = struct.pack("<4s16xIIHHHHHII", b"PK\x01\x02", 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    count = 2_000_000  # as many entries would take gigabytes
    size = len(entry) * count
    path = tmp_path / "list.zip"
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, size, 0, 0)
    path.write_bytes(entry * count + end)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArchiveError, match="more than 50,000 entries"):
        unpack(path, tmp_path / "cache")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 300 * 2**20


def test_an_archive_is_read_no_further_than_somebody_wants(tmp_path: Path) -> None:
    mine = make(tmp_path / "mine.zip", {"a.png": image()})
    stopped = Event()
    stopped.set()
    with pytest.raises(StoppedError):
        unpack(mine, tmp_path / "cache", stopped)
    assert not (tmp_path / "cache").exists()
    opened = _Bounded(mine, "mine.zip", stopped)  # while it is unpacked, too
    with opened, pytest.raises(StoppedError):
        zipfile.ZipFile(opened)


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = make(tmp_path / "mine.zip", {"a.png": image()})
    monkeypatch.setattr(module, "_SPARE", 2**62)
    with pytest.raises(ArchiveError, match="are free in the cache folder"):
        unpack(mine, tmp_path / "cache")
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    with pytest.raises(ArchiveError, match="unpack it yourself"):
        unpack(mine, tmp_path / "cache")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    mine = make(tmp_path / "mine.zip", {"a.png": image()})
    place = unpack(mine, tmp_path / "cache")
    left = tmp_path / "cache" / f".{place.name}.x.partial"
    place.rename(left)
    assert unpack(mine, tmp_path / "cache") == place
    assert not left.exists()


def test_a_visitor_chooses_pictures_of_this_machine(tiny_pack: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").write_bytes(image())
    archive = make(tmp_path / "trip.zip", {"two.png": image(1), "three.png": image(2)})
    opened = Opened(Settings(str(tiny_pack), device="cpu"), tmp_path / "cache")
    folder = opened.open_place(str(tmp_path / "photos"))
    trip = opened.open_place(str(archive))
    assert opened.open_place(str(archive)) == trip
    for key, files in ((folder, {"one.png"}), (trip, {"two.png", "three.png"})):
        retriever = opened.retriever(opened.first_pack, key)
        assert retriever.runtime is opened.first.runtime
        assert retriever.index.wait(60)
        found = find(retriever, "a red circle", retriever.methods.best, 5)
        assert {hit.file for hit in found} == files
    (tmp_path / "empty").mkdir()
    for place in ("", str(tmp_path / "nowhere"), str(tmp_path / "empty")):
        with pytest.raises((ValueError, FileNotFoundError)):
            opened.open_place(place)


def test_visitors_from_elsewhere_choose_nothing(tiny_pack: Path, tmp_path: Path) -> None:
    opened = Opened(Settings(str(tiny_pack), device="cpu", host="0.0.0.0"), tmp_path / "cache")
    with pytest.raises(ForbiddenError, match="where the app runs"):
        opened.open_place(str(tmp_path))


def test_an_archive_is_a_gallery(tiny_pack: Path, tmp_path: Path) -> None:
    mine = make(tmp_path / "mine.zip", {"a.png": image()})
    opened = Opened(Settings(str(tiny_pack), gallery=mine, device="cpu"), tmp_path / "cache")
    assert [p.file for p in opened.first.collection.images] == ["a.png"]
