"""The one place where the app opens an image file, whoever's it is, and knows it again.

What a folder calls an image may be a link that leads elsewhere, a pipe that nobody writes to, a
device, or a sparse file of a terabyte, and may become one of these after it was listed. So the
checks are made on the open descriptor, which can no longer change into something else.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 512 * 2**20  # of one file
_CHUNK = 2**20  # bytes of a file read at once
# A file written to within this time of being read may have changed again without a new time:
# some file systems count in steps of two seconds. It is read again the next time.
_UNSURE_NS = 2_000_000_000
# A pipe answers at once instead of waiting for a writer; a terminal does not become ours.
_FLAGS = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")


class StoppedError(Exception):
    """Somebody stopped what was being done."""


class ImageError(ValueError):
    """A file cannot be used as a picture; the message is a sentence that says why."""


class NotNowError(ImageError):
    """A file cannot be used now, which may be otherwise although its contents are the same."""


@dataclass(frozen=True)
class Refusal:
    """A file that was skipped, and why, in a sentence."""

    file: str
    reason: str

    def of(self, file: str) -> Refusal:
        """The same of another file with the same contents."""
        return Refusal(file, self.reason.replace(self.file, file))


@dataclass(frozen=True)
class Stamp:
    """By what a file is taken to be unchanged.

    Attributes:
        size: in bytes.
        mtime_ns: when it was written to, which anybody can set.
        ctime_ns: when it, its name or its rights changed, which nobody can set.
    """

    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: Path | BinaryIO) -> Stamp:
        """A file's stamp now.

        Raises:
            OSError: the file is not there.
        """
        found = file.stat() if isinstance(file, Path) else os.fstat(file.fileno())
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def latest_ns(self) -> int:
        """When anything of the file changed last."""
        return max(self.mtime_ns, self.ctime_ns)


@dataclass(frozen=True)
class Contents:
    """What was in a file: its SHA-256, its stamp before it was read, and when that was."""

    digest: bytes
    stamp: Stamp
    read_ns: int

    @classmethod
    def of(cls, file: BinaryIO, stop: threading.Event | None = None) -> Contents:
        """Reads a file that was just opened.

        Args:
            file: from `open_image_file`.
            stop: ends it between two chunks.

        Raises:
            StoppedError: `stop` was set.
            OSError: it cannot be read.
        """
        stamp, now, digest = Stamp.of(file), time.time_ns(), hashlib.sha256()
        while file.tell() <= MAX_BYTES and (chunk := file.read(_CHUNK)):  # it may grow
            if stop is not None and stop.is_set():
                raise StoppedError
            digest.update(chunk)
        return cls(digest.digest(), stamp, now)

    def still_in(self, now: Stamp) -> bool:
        """Whether a file with this stamp has not changed since it was read."""
        return now == self.stamp and now.latest_ns + _UNSURE_NS < self.read_ns


def open_image_file(path: Path, name: str, root: Path | None = None) -> BinaryIO:
    """Opens a regular file of at most `MAX_BYTES`; never waits for one.

    Args:
        path: the file.
        name: what to call it in messages.
        root: a resolved folder that links may not lead out of; None for anywhere.

    Raises:
        ImageError: it is missing, empty, too large, no regular file, or outside of `root`.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        if root is not None and not real.is_relative_to(root):
            raise outside(name)
        file = open(real, "rb", opener=_descriptor)  # noqa: SIM115
    except OSError as error:
        raise unreadable(name, error) from error
    except ValueError as error:
        raise error if isinstance(error, ImageError) else unreadable(name, error) from error
    try:
        _check(file, name, root)
    except BaseException:
        file.close()
        raise
    return file


def _descriptor(path: str, flags: int) -> int:
    return os.open(path, flags | sum(getattr(os, flag, 0) for flag in _FLAGS))


def _check(file: BinaryIO, name: str, root: Path | None) -> None:
    """Looks at the file that was really opened."""
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise NotNowError(f"{name} is no regular file; put the image itself in its place")
    with suppress(OSError):  # only Linux says so: a folder on the way may be a link by now
        where = Path(f"/proc/self/fd/{file.fileno()}").readlink()
        if root is not None and not where.is_relative_to(root):
            raise outside(name)
    if found.st_size == 0:
        raise ImageError(f"{name} is empty (0 bytes)")
    if found.st_size > MAX_BYTES:
        raise ImageError(
            f"{name} takes {found.st_size / 2**20:,.0f} MB, more than the {MAX_BYTES // 2**20} MB "
            "allowed; make it smaller"
        )


def outside(name: str) -> NotNowError:
    """Why a link is not followed."""
    return NotNowError(
        f"{name} is a link that leads out of the gallery's folder; put the image itself there, or "
        "start the app with --follow-links"
    )


def refusal(name: str, error: OSError | ImageError) -> Refusal:
    """A file that was skipped because it cannot be read."""
    return Refusal(name, str(unreadable(name, error) if isinstance(error, OSError) else error))


def unreadable(name: str, error: Exception) -> NotNowError:
    """Why a file, or a folder, cannot be read."""
    if isinstance(error, FileNotFoundError):
        return NotNowError(f"{name} is not there any more")
    return NotNowError(f"{name} cannot be read ({reason(error)})")


def reason(error: Exception) -> str:
    """An exception's first line, short enough for a sentence and without paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return type(error).__name__ if len(text) > 90 or "/" in text or "\\" in text else text
