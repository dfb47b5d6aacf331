"""Checksums of files, atomic writes, and errors about paths."""

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
    """Yields a temporary path; the file or folder written there replaces `path` after the block.

    If the block fails, `path` stays and the temporary path is deleted. Missing parent folders are
    created. Raises DiskFullError if the disk or quota is full, and UnwritableError if nothing can
    be created in the parent folder.
    """
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            directory = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise UnwritableError(error.errno, error.strerror, str(path)) from error
        with directory as folder:
            draft = Path(folder) / path.name
            yield draft
            if path.is_dir():  # a folder cannot be overwritten by a rename
                path.rename(Path(folder) / "replaced")
            draft.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"the disk is full: {path} does not fit; delete files on this disk, or choose a "
            "folder on another disk"
        ) from error


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


def not_found_error(kind: str, path: Path, advice: str) -> FileNotFoundError:
    """Builds the error for a missing path; its message suggests the most similar existing name.

    `kind` names the kind of path, such as "file". `advice` replaces a missing suggestion.

    >>> str(not_found_error("file", Path(__file__).with_name("fils.py"), "")).rpartition("/")[2]
    'files.py?'
    """
    missing = path  # becomes the outermost part of the path that does not exist
    while not missing.parent.exists():
        missing = missing.parent
    folder = missing.parent
    names = {child.name for child in folder.iterdir()} if folder.is_dir() else set()
    matches = get_close_matches(missing.name, names - {missing.name}, 1)
    suggestion = f"did you mean {folder / matches[0]}?" if matches else advice
    return FileNotFoundError(f"there is no {kind} {path}; {suggestion}")
