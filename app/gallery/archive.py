"""Pictures in a ZIP archive, unpacked once into the user's cache folder.

An archive from outside may be anything: names that lead out of the folder, a few bytes that unpack
to terabytes, a million entries. All of it is looked at before anything is written, and an archive
that is not what it should be is refused as a whole, in a sentence.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any

from filelock import FileLock

from app.gallery.collection import MAX_DEPTH, SUFFIXES, Collection, from_folder, hidden
from app.gallery.image_files import MAX_BYTES as IMAGE_BYTES
from app.gallery.image_files import StoppedError, reason

MAX_ENTRIES = 50_000
MAX_BYTES = 64 * 2**30  # of all pictures, unpacked
_MAX_DIRECTORY = (
    16 * 2**20
)  # bytes of the list of entries, of which each takes a kilobyte in memory
_MAX_RATIO = 200  # of an entry's size to what it takes in the archive
_SMALL = 16 * 2**20  # bytes, below which no ratio is suspicious
_MAX_NAME, _MAX_PATH = 255, 2048  # bytes of an entry's name, and of the whole path
_SPARE = 2**30  # bytes of the disk that are left free
_ARCHIVES = frozenset({".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst"})
_CHUNK = 2**20
# What zipfile raises; a RuntimeError of kinds of packing that it does not know.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)


class ArchiveError(ValueError):
    """An archive cannot be used; the message is a sentence that says why."""


def open_images(
    place: Path, cache: Path, follow_links: bool = False, stopped: Event | None = None
) -> Collection:
    """The pictures of a folder, or those of a ZIP archive.

    Args:
        place: the folder or the archive.
        cache: the user's cache folder; archives are unpacked there.
        follow_links: see `from_folder`; an archive holds none.
        stopped: once it is set, an archive is read no further.

    Raises:
        FileNotFoundError: there is no such place, or it holds no picture.
        ArchiveError: the archive cannot be used; nothing of it was kept.
        OSError: the archive cannot be read, or the cache folder not written.
    """
    if not place.is_file():
        return from_folder(place, follow_links)
    folder = unpack(place, cache / "archives", stopped)
    return replace(from_folder(folder), title=place.stem)


def unpack(archive: Path, folder: Path, stopped: Event | None = None) -> Path:
    """Unpacks the pictures of an archive, unless that was done before.

    Args:
        archive: a ZIP archive; other files in it than pictures stay in it.
        folder: of all unpacked archives.
        stopped: once it is set, it is read no further.

    Returns:
        The folder of its pictures; the same for the same contents.

    Raises:
        ArchiveError: see the module.
        StoppedError: `stopped` was set.
        OSError: the archive cannot be read, or the folder not written.
    """
    stopped = stopped or Event()
    name = archive.name
    size = archive.stat().st_size
    if size > MAX_BYTES + _MAX_DIRECTORY:
        raise ArchiveError(
            f"{name} takes {size / 2**30:,.0f} GB, more than {MAX_BYTES // 2**30} GB; unpack it "
            "yourself, and give the folder"
        )
    with _Bounded(archive, name, stopped) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / digest
    with FileLock(folder / f".{digest}.lock"):
        if place.is_dir():
            return place
        for left in folder.glob(f".{digest}.*.partial"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(dir=folder, prefix=f".{digest}.", suffix=".partial"))
        try:
            with _Bounded(archive, name, stopped) as bounded, zipfile.ZipFile(bounded) as opened:
                images = _checked(opened.infolist(), name)
                _check_room(images, folder, name)
                for info in images:
                    _write(opened, info, partial, name)
            return partial.rename(place)
        except ArchiveError:
            raise
        except _DAMAGE as error:
            raise ArchiveError(
                f"{name} is damaged or is no ZIP archive; make it again ({str(error)[:90]})"
            ) from error
        except OSError as error:  # whose own words name the cache
            raise ArchiveError(
                f"{name} cannot be unpacked ({reason(error)}); make room in the cache folder, or "
                "set POLYVIEW_CACHE to another disk"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


class _Bounded(io.FileIO):
    """A file of which only so much is read at once: a list of entries is read in one piece."""

    def __init__(self, path: Path, name: str, stopped: Event) -> None:
        super().__init__(path, "rb")
        self._name, self._size, self._stopped = name, path.stat().st_size, stopped

    def read(self, size: int | None = -1) -> bytes:
        """As of any file.

        Raises:
            ArchiveError: it is too much.
        """
        self._go_on()
        left = max(0, self._size - self.tell())
        if min(left, left if size is None or size < 0 else size) > _MAX_DIRECTORY:
            raise ArchiveError(_too_many(self._name))
        return super().read(size) or b""

    def readinto(self, buffer: Any) -> int:
        """As of any file."""
        self._go_on()
        return super().readinto(buffer) or 0

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise StoppedError


def _too_many(name: str) -> str:
    return f"{name} has more than {MAX_ENTRIES:,} entries; make several archives of it"


def _checked(entries: Sequence[zipfile.ZipInfo], name: str) -> list[zipfile.ZipInfo]:
    """The pictures among the entries, each of which was looked at."""
    if len(entries) > MAX_ENTRIES:
        raise ArchiveError(_too_many(name))
    images, seen = [], set()
    for info in entries:
        shown = ascii(info.filename)[1:-1][:80]
        if reason := _leads_out(info):
            raise ArchiveError(f"{name} {reason} ({shown}); make the archive anew")
        suffix = PurePosixPath(info.filename).suffix.lower()
        if info.is_dir() or hidden(info.filename) or suffix not in SUFFIXES | _ARCHIVES:
            continue
        if suffix in _ARCHIVES:
            raise ArchiveError(
                f"{name} holds another archive ({shown}); unpack that one first, or take it out"
            )
        if reason := _too_large(info):
            raise ArchiveError(f"{name} holds a file that {reason} ({shown}); take it out")
        if info.filename.casefold() in seen:
            raise ArchiveError(f"{name} holds two files of one name ({shown}); rename one")
        seen.add(info.filename.casefold())
        images.append(info)
    if not images:
        raise ArchiveError(f"{name} holds no pictures; looked for {', '.join(sorted(SUFFIXES))}")
    return images


def _leads_out(info: zipfile.ZipInfo) -> str:
    """What is wrong with where an entry would be written; empty where nothing is."""
    path, given = PurePosixPath(info.filename), info.orig_filename
    odd = "\\" in given or "\0" in given or re.match("[A-Za-z]:", given)
    if odd or path.is_absolute() or ".." in path.parts:
        return "names a file outside of itself"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "holds a link"
    return ""


def _too_large(info: zipfile.ZipInfo) -> str:
    """Why an entry is not unpacked; empty where it is."""
    if info.flag_bits & 1:
        return "is locked with a password"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is packed in another way than ZIP's usual two"
    if max(len(os.fsencode(part)) for part in PurePosixPath(info.filename).parts) > _MAX_NAME:
        return f"has a name of more than {_MAX_NAME} bytes, which disks do not take"
    if len(os.fsencode(info.filename)) > _MAX_PATH:
        return f"lies under a path of more than {_MAX_PATH} bytes"
    if len(PurePosixPath(info.filename).parts) > MAX_DEPTH + 1:
        return f"lies more than {MAX_DEPTH} folders deep"
    if info.file_size > IMAGE_BYTES:
        return f"takes {info.file_size / 2**20:,.0f} MB, more than {IMAGE_BYTES // 2**20} MB"
    if info.file_size > max(_SMALL, _MAX_RATIO * info.compress_size):
        return f"unpacks to more than {_MAX_RATIO} times its size, as no photograph does"
    return ""


def _check_room(images: Sequence[zipfile.ZipInfo], folder: Path, name: str) -> None:
    total = sum(info.file_size for info in images)
    if total > MAX_BYTES:
        raise ArchiveError(
            f"{name} unpacks to {total / 2**30:,.0f} GB, more than {MAX_BYTES // 2**30} GB; "
            "unpack it yourself, and give the folder"
        )
    free = shutil.disk_usage(folder).free
    if total + _SPARE > free:
        raise ArchiveError(
            f"{name} unpacks to {total / 2**30:,.1f} GB, and {free / 2**30:,.1f} GB are free in "
            f"the cache folder; make room, or set POLYVIEW_CACHE to another disk"
        )


def _write(opened: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path, name: str) -> None:
    """Writes one picture; zipfile gives no more than the entry states, and checks its CRC."""
    target = folder / info.filename
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with opened.open(info) as packed, target.open("xb") as file:
            shutil.copyfileobj(packed, file, _CHUNK)
    except (FileExistsError, NotADirectoryError) as error:
        shown = ascii(info.filename)[1:-1][:80]
        raise ArchiveError(f"{name} holds two files of one name ({shown}); rename one") from error
