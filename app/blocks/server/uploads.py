"""Uploaded files: the one folder they lie in, the one way to them, and how many may lie there.

gradio keeps what visitors upload, and what it sends them, in folders below `GRADIO_TEMP_DIR`. No
other file of this machine is ever opened because a request names it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MOST_BYTES = 50_000_000  # of one upload
FORM_BYTES = MOST_BYTES + 65_536  # with what a form says of its files
MOST_FILES = 10  # of one upload
FOLDER_BYTES = 2_000_000_000  # of all files together
FOLDER_FILES = 5_000
AGE = 2 * 3600.0  # seconds that a file is kept
YOUNG = 600.0  # seconds in which a file is not deleted to make room for others
SPARE = 500_000_000  # bytes that stay free on the disk
DATA = "data:image/"  # how a picture begins that is sent in the request itself
_LONGEST_NAME = 200  # characters
_EVERY = 60.0  # seconds between two looks at what is too old
_FRESH = 2.0  # seconds for which a count of all files holds

_WHOLE_DATA = re.compile(r"data:image/[a-zA-Z0-9.+-]+;base64,[A-Za-z0-9+/=]*")
_HASH, _PARTIAL = re.compile("[0-9a-f]{32,64}"), re.compile("tmp[a-z0-9_]{8}")


class UploadError(ValueError):
    """What a request names is no uploaded file; the message is a sentence without paths."""


def folder() -> Path:
    """Where uploads lie: `GRADIO_TEMP_DIR`, as gradio has it."""
    return _given().resolve()


def is_inside(path: str) -> bool:
    """Whether a path lies in the folder of uploads, links followed; it need not exist."""
    home, plain = folder(), Path(os.path.normpath(path))
    # First by its letters alone: what is elsewhere on this machine is not even looked at.
    if "\0" in path or not (plain.is_relative_to(_given()) or plain.is_relative_to(home)):
        return False
    try:
        return home in plain.resolve().parents
    except (ValueError, OSError, RuntimeError):
        return False


def is_data(path: str) -> bool:
    """Whether a path is an image that is sent in the request itself, and no path at all."""
    return _WHOLE_DATA.fullmatch(path) is not None


def uploaded(image: Any) -> Path:
    """The file that a request names: of an upload, or sent with the request itself.

    Args:
        image: what gradio calls FileData, {"path": ...}; the path alone; or a data URI.

    Raises:
        UploadError: it names nothing, an address, or anything but a regular file in the folder of
            uploads.
    """
    path = image.get("path") if isinstance(image, dict) else image
    if not isinstance(path, str | Path) or not str(path):
        raise UploadError(
            "there is no picture; upload one, with gradio_client by handle_file(path)"
        )
    path = str(path)
    if path.startswith(DATA):
        return _keep(path)
    if not is_inside(path):
        raise UploadError(
            "the picture was not uploaded; upload it first, or send it as a data URI "
            f"({DATA}png;base64,...)"
        )
    try:
        regular = stat.S_ISREG(Path(path).stat().st_mode)
    except OSError:
        regular = False
    if not regular:
        raise UploadError("the picture is not there any more; upload it again")
    return Path(path).resolve()


async def receive(parts: AsyncIterator[bytes]) -> Path:
    """Keeps an image that is a request's whole body; the front door holds room for it."""
    digest = hashlib.sha256()
    with _partial() as partial:
        async for part in parts:
            digest.update(part)
            partial.write(part)
        return _placed(partial, digest.hexdigest())


def named(image: Any) -> tuple[Path, str]:
    """The file that a request names, see `uploaded`, and what it was called."""
    path = uploaded(image)
    given = image.get("orig_name") if isinstance(image, dict) else None
    return path, Path(str(given or path.name)).name[:_LONGEST_NAME]


def path_of(upload: Any) -> str:
    """The path of what a widget says was uploaded; empty where nothing was.

    Raises:
        UploadError: see `uploaded`.
    """
    return str(uploaded(upload)) if upload else ""


def sweep(room: int = 0) -> tuple[int, int]:
    """Deletes what is too old, and the oldest files where all together are too many.

    Args:
        room: bytes that are to come.

    Returns:
        How many files are left, and their bytes.
    """
    now, home = time.time(), folder()
    found = sorted(_files(home), reverse=True)
    total = count = 0
    for changed, size, path in found:
        full = total + size + room > FOLDER_BYTES or count >= FOLDER_FILES
        if now - changed > AGE or (full and now - changed > YOUNG):
            file = Path(path)
            file.unlink(missing_ok=True)
            if file.parent != home:
                with suppress(OSError):  # others are in it
                    file.parent.rmdir()
            continue
        total, count = total + size, count + 1
    return count, total


class _Ledger:
    """What lies in the folder and what is on its way to it.

    Files are counted every two seconds at most, by one thread. Between, all that came is taken for
    kept. The event loop takes the lock of the sums, so nothing is counted under it.
    """

    def __init__(self) -> None:
        self._sums, self._counting = threading.Lock(), threading.Lock()
        self._home: Path | None = None  # whose files were counted
        self._until = 0.0  # when they are counted again
        self._files = self._bytes = 0  # as counted
        self._since_files = self._since_bytes = 0  # that came after the count began
        self._coming = 0  # bytes

    def reserve(self, size: int) -> bool:
        """See the function of this name."""
        home = folder()
        home.mkdir(parents=True, exist_ok=True)
        with self._counting:
            if self._home != home or time.monotonic() >= self._until:
                self._count(home, size)
        free = shutil.disk_usage(home).free
        with self._sums:
            coming = self._coming + size
            files, stored = self._files + self._since_files, self._bytes + self._since_bytes
            if (
                files >= 2 * FOLDER_FILES
                or stored + coming > FOLDER_BYTES
                or free - coming <= SPARE
            ):
                return False
            self._coming = coming
            return True

    def release(self, size: int) -> None:
        """See the function of this name."""
        with self._sums:
            self._coming -= size
            self._since_bytes += size
            self._since_files += 1

    def _count(self, home: Path, size: int) -> None:
        with self._sums:
            before = self._since_files, self._since_bytes
        files, total = sweep(room=size + self._coming)
        with self._sums:
            self._files, self._bytes = files, total
            self._since_files -= before[0]
            self._since_bytes -= before[1]
        self._home, self._until = home, time.monotonic() + _FRESH


_ledger = _Ledger()


def reserve(size: int) -> bool:
    """Holds room for so many bytes; `release` them whatever comes of it.

    Old files make room. Young files are not deleted, so there may be more than `FOLDER_FILES`, but
    not twice as many. Not for the event loop: it looks at every file.

    Returns:
        Whether there is room.
    """
    return _ledger.reserve(size)


def release(size: int) -> None:
    """Gives room back that was held."""
    _ledger.release(size)


@contextmanager
def room(size: int) -> Iterator[None]:
    """Holds room while a file is written.

    Raises:
        UploadError: there is none.
    """
    if not reserve(size):
        raise UploadError("there is no room for more files; try again in some minutes")
    try:
        yield
    finally:
        release(size)


def keep_swept() -> threading.Event:
    """Looks once a minute for what is too old; setting the event ends it."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_EVERY):
            try:
                sweep()
            except OSError:
                continue  # somebody else deletes, too

    threading.Thread(target=run, daemon=True, name="uploads").start()
    return ended


def _files(home: Path) -> Iterator[tuple[float, int, str]]:
    """When each file changed, its bytes and its path; of files that gradio would call so.

    `GRADIO_TEMP_DIR` may name a folder with other files in it, such as the system's own.
    """
    system = home == Path(tempfile.gettempdir()).resolve()
    with os.scandir(home) as entries:
        for entry in entries:
            if _HASH.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError), os.scandir(entry) as inner:
                    yield from _about(inner)
            elif not system and _PARTIAL.fullmatch(entry.name):
                yield from _about([entry])


def _about(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[float, int, str]]:
    for entry in entries:
        with suppress(FileNotFoundError):
            if not entry.is_dir(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                yield about.st_mtime, about.st_size, entry.path


def _given() -> Path:
    given = os.environ.get("GRADIO_TEMP_DIR")
    return Path(given or Path(tempfile.gettempdir()) / "gradio").absolute()


def _keep(uri: str) -> Path:
    """Writes a picture that was sent as a data URI to where uploads lie."""
    head, comma, encoded = uri.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("not base64")
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UploadError(f"the picture is no data URI; send {DATA}png;base64,...") from error
    with room(len(content)), _partial() as partial:
        partial.write(content)
        return _placed(partial, hashlib.sha256(content).hexdigest())


@contextmanager
def _partial() -> Iterator[Any]:
    """A file that is being written where uploads lie; it is gone unless it was `_placed`."""
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder(), delete=False) as partial:
        try:
            yield partial
        finally:
            Path(partial.name).unlink(missing_ok=True)


def _placed(partial: Any, digest: str) -> Path:
    partial.flush()
    place = folder() / digest
    place.mkdir(exist_ok=True)
    return Path(partial.name).replace(place / "picture")
