"""Files: their checksums, and writing them whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file as 64 lower-case hexadecimal digits; read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a file beside `path` to write, which takes its place only when all went well.

    A file already at `path` stays until then; of a draft that fails nothing is left. Missing
    folders are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = f"{os.getpid()}-{threading.get_ident()}"
    draft = path.with_name(f".{path.name}.{writer}.partial")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file, text in UTF-8, as `replacing` does."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder beside `path`, which takes its place only when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as beside:
        draft = Path(beside) / "draft"
        draft.mkdir()
        yield draft
        if path.exists():
            path.rename(Path(beside) / "replaced")
        draft.rename(path)
