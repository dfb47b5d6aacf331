"""Checksums of files, and atomic writes."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class DiskFullError(OSError):
    """A disk has no space left; the message names the file and the remedy."""


class UnwritableError(OSError):
    """A file or folder cannot be created; the message names the path and the remedy."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written: {self.strerror}; choose another folder"


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as 64 lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path, whose file or folder replaces `path` when the block succeeds.

    Until then an existing `path` stays; if the block fails, the temporary file is deleted. Missing
    parent folders are created. Raises DiskFullError if the disk is full, and UnwritableError if
    nothing can be created in the parent folder.
    """
    with naming_full_disk(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise UnwritableError(error.errno, error.strerror, str(path)) from error
        with folder as temporary:
            draft = Path(temporary) / path.name
            yield draft
            if path.is_dir():
                path.rename(Path(temporary) / "replaced")
            draft.replace(path)


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a file atomically; encodes text as UTF-8."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which replaces `path` as in `replacing`."""
    with replacing(path) as draft:
        draft.mkdir()
        yield draft


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Converts the system's error for a full disk or quota to a `DiskFullError` about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"the disk is full: {path} needs more than the free space; free space on this disk, "
            "or choose a folder on another disk"
        ) from error


def no_such(kind: str, path: Path, advice: str) -> str:
    """Returns an error message for a missing path; suggests the most similar existing name.

    `kind` names the kind of path, such as "file"; `advice` follows if no existing name is similar.

    >>> no_such("file", Path(__file__).with_name("fils.py"), "check it").rpartition("/")[2]
    'files.py?'
    """
    target = path
    while not target.parent.exists():
        target = target.parent
    names = {child.name for child in target.parent.iterdir()} if target.parent.is_dir() else set()
    matches = get_close_matches(target.name, names - {target.name}, 1)
    end = f"did you mean {target.parent / matches[0]}?" if matches else advice
    return f"there is no {kind} {path}; {end}"
