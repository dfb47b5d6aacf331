"""Stores the features and views of a gallery in one SQLite file.

Images are identified by the SHA-256 of their file, so moved and copied files are recognised. A
*space* has the output of one model for images or captions; its name has the model's checksum.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from filelock import FileLock

from polyview.app.gallery.images import Stamp
from polyview.app.gallery.video import Moment

# the SHA-256 of a file, followed by frame numbers if it is a clip; or a caption
Key = bytes | str
Vectors = dict[Key, np.ndarray]  # (n, d) by key
_VERSION = 8  # SQLite files of another version are discarded
_WAIT_SECONDS = 10.0  # time to wait for another process that writes
# A file that was modified less than 2 seconds before it was read may change again without a new
# modification time, because some file systems round times to 2 seconds.
_UNSURE_NS = 2_000_000_000
_SCHEMA = f"""
    CREATE TABLE files (path BLOB, reader TEXT, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER,
        read_ns INTEGER, sha256 BLOB, refusal TEXT, moments TEXT,
        PRIMARY KEY (path, reader)) WITHOUT ROWID;
    CREATE INDEX contents ON files (sha256);
    CREATE TABLE vectors (space INTEGER, key, rows INTEGER, data BLOB, UNIQUE (space, key));
    PRAGMA user_version = {_VERSION};
"""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Content:
    """The result of reading a file."""

    digest: bytes = b""  # SHA-256; empty if the file could not be read
    refusal: str = ""  # why the file cannot be used, without its name; empty if it can be used
    moments: tuple[Moment, ...] = ()  # of a clip's frames; empty for a still image


class Store:
    """The files of one gallery, and vectors by space and key; safe to use from several threads.

    Several processes may use a store at once. If its SQLite file cannot be used, for example on a
    full disk, this process uses memory instead. A damaged file is replaced. Warnings report both.

    Args:
        folder: the folder of the SQLite file, created at first use.
        encoders: identifies the image encoders whose features are saved with the files.
        decoders: identifies the decoders, and the rules that refuse files and choose frames of
            clips. If it changes, clips and refused files are read again, but not still images.
    """

    def __init__(self, folder: Path, encoders: str = "", decoders: str = "") -> None:
        self._path = folder / "gallery.sqlite"
        # values of the column `reader`: for still images; for clips and for refused files
        self._readers = encoders, f"{encoders} {decoders}"
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None

    def files(self, stamps: Mapping[str, Stamp]) -> dict[str, Content]:
        """Returns the contents, by path, of files that have not changed since they were read."""
        contents, stamps_by_path = {}, {os.fsencode(path): stamp for path, stamp in stamps.items()}
        for path, *stamp, read_ns, content in self._contents("path", stamps_by_path):
            if stamps_by_path[path] == Stamp(*stamp) and max(stamp[1:]) + _UNSURE_NS < read_ns:
                contents[os.fsdecode(path)] = content
        return contents

    def content(self, digest: bytes) -> Content | None:
        """Returns the content with the SHA-256 `digest`; None if no such file was read."""
        return next((content for *_, content in self._contents("sha256", [digest])), None)

    def _contents(self, column: str, values: Iterable[bytes]) -> list[tuple]:
        """Finds files by a column; returns (path, size, mtime_ns, ctime_ns, read_ns, `Content`)."""
        fields = "path, size, mtime_ns, ctime_ns, read_ns, sha256, refusal, moments FROM files"
        rows = self._select(f"{fields} WHERE reader IN (?, ?) AND {column}", values, *self._readers)
        return [
            (*row, Content(digest, refusal, tuple(Moment(*moment) for moment in json.loads(text))))
            for *row, digest, refusal, text in rows
        ]

    def load(self, space: str, keys: Iterable[Key]) -> Vectors:
        """Loads vectors (n, d) float32 of a space by key; omits keys that the space lacks."""
        columns = "key, rows, data FROM vectors WHERE space = ? AND key"
        rows = self._select(columns, keys, _space_id(space))
        return {key: np.frombuffer(data, np.float32).reshape(n, -1) for key, n, data in rows}

    def cached(
        self, space: str, keys: Iterable[Key], compute: Callable[[list[Key]], Iterable[np.ndarray]]
    ) -> Vectors:
        """Returns the vectors (n, d) of all keys; computes and saves missing vectors."""
        unique_keys = list(dict.fromkeys(keys))
        vectors = self.load(space, unique_keys)
        if missing_keys := [key for key in unique_keys if key not in vectors]:
            new_vectors = dict(zip(missing_keys, compute(missing_keys), strict=True))
            self.save({space: new_vectors})
            vectors |= new_vectors
        return vectors

    def save(
        self,
        vectors: Mapping[str, Vectors],
        files: Mapping[str, tuple[Stamp, int, Content]] | None = None,
    ) -> None:
        """Saves vectors and files in one transaction; replaces existing entries.

        `vectors` are arrays (n, d) by space and key. `files` maps a path to the file's stamp, the
        time of reading in ns since the epoch, and the content.
        """
        vector_rows = [
            (_space_id(space), key, len(data), np.ascontiguousarray(data, np.float32).data)
            for space, by_key in vectors.items()
            for key, data in by_key.items()
        ]
        file_rows = []
        for path, (stamp, read_ns, content) in (files or {}).items():
            reader = self._readers[bool(content.refusal or content.moments)]
            values = content.digest, content.refusal, json.dumps(content.moments)
            file_rows.append((os.fsencode(path), reader, *stamp, read_ns, *values))

        def write(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", vector_rows)
            pairs = [(path, digest) for path, *_, digest, _, _ in file_rows]
            db.executemany("DELETE FROM files WHERE path = ? AND sha256 <> ?", pairs)
            db.executemany(f"INSERT OR REPLACE INTO files VALUES (?{', ?' * 8})", file_rows)

        if vector_rows or file_rows:
            self._run(write, None)

    def prune(self, root: Path, existing: Iterable[str]) -> None:
        """Deletes entries of missing files, and vectors of images whose file has no entry left.

        Paths are relative to `root`. Paths in `existing` are not checked.
        """
        existing_paths = {os.fsencode(path) for path in existing}

        def write(db: sqlite3.Connection) -> None:
            paths = [path for (path,) in db.execute("SELECT DISTINCT path FROM files")]
            for path in paths:
                if path not in existing_paths and not (root / os.fsdecode(path)).exists():
                    db.execute("DELETE FROM files WHERE path = ?", (path,))
            digest = "substr(key, 1, 32)"  # a key starts with the SHA-256 of a file
            condition = f"NOT {digest} IN (SELECT sha256 FROM files)"
            db.execute(f"DELETE FROM vectors WHERE typeof(key) = 'blob' AND {condition}")

        self._run(write, None)

    def close(self) -> None:
        """Closes the SQLite file; the next call reopens it."""
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db = None

    def _select(self, fragment: str, values: Iterable[object], *parameters: object) -> list[tuple]:
        """Selects the rows whose column, named at the end of `fragment`, is among `values`."""
        items = list(dict.fromkeys(values))
        statement = f"SELECT {fragment} IN ({', '.join('?' * len(items))})"
        return self._run(lambda db: db.execute(statement, [*parameters, *items]).fetchall(), [])

    def _run(self, work: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Runs `work` in a transaction; returns `default` if both file and memory fail."""
        with self._lock:
            for _ in range(3):  # tries the file, then a new file in its place, then memory
                try:
                    if self._db is None:
                        self._db = _open(self._path)
                    with self._db:
                        return work(self._db)
                except (sqlite3.OperationalError, OSError) as error:
                    self.close()
                    _log.warning("%s cannot be used; results are not stored: %s", self._path, error)
                    self._db = sqlite3.connect(":memory:", check_same_thread=False)
                    self._db.executescript(_SCHEMA)
                except sqlite3.Error as error:
                    self.close()
                    _log.warning("%s cannot be read and is replaced: %s", self._path, error)
                    for suffix in ("", "-wal", "-shm"):
                        Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            return default


def _open(path: Path) -> sqlite3.Connection:
    """Opens or creates a SQLite file; raises DatabaseError if its version is not `_VERSION`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=_WAIT_SECONDS, check_same_thread=False)
    try:
        # SQLite fails at once, without waiting, if two processes switch a file to WAL
        with FileLock(path.with_suffix(".lock"), _WAIT_SECONDS):
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            [version] = db.execute("PRAGMA user_version").fetchone()
            if not version:
                db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            elif version != _VERSION:
                raise sqlite3.DatabaseError(f"version {version} instead of {_VERSION}")
    except BaseException:
        db.close()
        raise
    return db


def _space_id(space: str) -> int:
    """Hashes the name of a space to 56 bits, which take less room in each row."""
    return int.from_bytes(hashlib.sha256(space.encode()).digest()[:7], "big")


def cache_folder() -> Path:
    """Returns the user's cache folder: POLYVIEW_CACHE, or `polyview` in XDG_CACHE_HOME or ~/.cache.

    Returns a temporary folder instead if the cache folder cannot be written.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "polyview"
    folder = Path(os.environ.get("POLYVIEW_CACHE") or default).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        _log.warning("results are not stored (%s); set POLYVIEW_CACHE to another folder", error)
        return Path(tempfile.mkdtemp(prefix="polyview-"))
