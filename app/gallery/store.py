"""Stores computed features and views of a gallery in one SQLite file.

Images are identified by the SHA-256 of their file, so moved and copied files are recognised and
changed files are new. A *space* contains the output of one model for images or captions; its name
includes the model's checksum, so packs share a gallery without mixing their values. SQLite's
transactions make `save` atomic.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from polyview.app.gallery.images import Stamp
from polyview.app.gallery.video_decoder import Moment

# the SHA-256 of a file (of a clip, followed by frame numbers), or a caption
Key = bytes | str
Vectors = dict[str, dict[Key, np.ndarray]]  # by space and key
DIGEST = 32  # bytes of a SHA-256
_VERSION = 7  # files of another version are discarded
_WAIT = 10.0  # seconds to wait for another process that writes
# A file modified this shortly before it was read may change again with the same time stamp: some
# file systems count in steps of two seconds.
_UNSURE_NS = 2_000_000_000
_SCHEMA = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER,
        ctime_ns INTEGER, read_ns INTEGER, sha256 BLOB) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS notes (sha256 BLOB, reader TEXT, refusal TEXT, moments TEXT,
        PRIMARY KEY (sha256, reader)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS vectors (space INTEGER, key, rows INTEGER, data BLOB,
        UNIQUE (space, key));
    PRAGMA user_version = {_VERSION};
    COMMIT;
"""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Note:
    """A reader's note about a file: the reason for refusing it, or the moments of its frames.

    A still image has neither.
    """

    refusal: str = ""
    moments: tuple[Moment, ...] = ()


class Store:
    """The files of one gallery, and vectors by space and key; safe to use from several threads.

    Several processes may use it at once. If the file cannot be used, for example on a full disk,
    this process uses memory instead. A damaged file is replaced. Both are logged as warnings.

    Args:
        folder: the gallery's own folder, created at first use.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gallery.sqlite"
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def digests(self, stamps: Mapping[str, Stamp]) -> dict[str, bytes]:
        """The SHA-256, by path, of files that have not changed since they were read."""
        paths = {os.fsencode(path): path for path in stamps}
        columns = "path, size, mtime_ns, ctime_ns, read_ns, sha256"
        return {
            paths[path]: digest
            for path, *stamp, read_ns, digest in self._select(columns, "files WHERE path", paths)
            if stamps[paths[path]] == Stamp(*stamp) and max(stamp[1:]) + _UNSURE_NS < read_ns
        }

    def notes(self, digests: Iterable[bytes], reader: str) -> dict[bytes, Note]:
        """A reader's notes by SHA-256.

        Notes about still images hold for every reader whose name has the same first word.
        """
        notes, family = {}, reader.partition(" ")[0]
        columns = "sha256, refusal, moments, reader"
        for digest, refusal, text, by in self._select(columns, "notes WHERE sha256", digests):
            moments = tuple(Moment(*moment) for moment in json.loads(text))
            still = by.partition(" ")[0] == family and not (refusal or moments)
            if by == reader or still:
                notes[digest] = Note(refusal, moments)
        return notes

    def load(self, space: str, keys: Iterable[Key]) -> dict[Key, np.ndarray]:
        """The vectors (n, d) float32 of the keys that a space contains."""
        rows = self._select("key, rows, data", _in_space(space), keys)
        return {key: np.frombuffer(data, np.float32).reshape(n, -1) for key, n, data in rows}

    def known(self, space: str, keys: Iterable[Key]) -> set[Key]:
        """The keys that a space contains."""
        return {key for (key,) in self._select("key", _in_space(space), keys)}

    def cached(
        self, space: str, keys: Iterable[Key], make: Callable[[list[Key]], Iterable[np.ndarray]]
    ) -> dict[Key, np.ndarray]:
        """The vectors (n, d) of all keys; `make` computes missing ones, which are saved."""
        distinct = list(dict.fromkeys(keys))
        known = self.load(space, distinct)
        if missing := [key for key in distinct if key not in known]:
            fresh = dict(zip(missing, make(missing), strict=True))
            self.save({space: fresh})
            known |= fresh
        return known

    def save(
        self,
        vectors: Mapping[str, Mapping[Key, np.ndarray]],
        files: Mapping[str, tuple[Stamp, int, bytes]] | None = None,
        notes: Mapping[bytes, Note] | None = None,
        reader: str = "",
    ) -> None:
        """Saves everything in one transaction.

        Args:
            vectors: (n, d) by space and key; existing ones are replaced.
            files: by path, the stamp, the time of reading in ns, and the SHA-256.
            notes: notes by SHA-256.
            reader: the reader that made the notes.
        """
        rows: dict[str, list[tuple[object, ...]]] = {
            "vectors": [
                (_number(space), key, len(data), np.ascontiguousarray(data, np.float32).data)
                for space, parts in vectors.items()
                for key, data in parts.items()
            ],
            "notes": [
                (digest, reader, note.refusal, json.dumps(note.moments))
                for digest, note in (notes or {}).items()
            ],
            "files": [
                (os.fsencode(path), *stamp, read_ns, digest)
                for path, (stamp, read_ns, digest) in (files or {}).items()
            ],
        }

        def write(db: sqlite3.Connection) -> None:
            for table, values in rows.items():
                if values:
                    places = ", ".join("?" * len(values[0]))
                    db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", values)

        if any(rows.values()):
            self._run(write, None)

    def prune(self, root: Path, keep: Iterable[str]) -> None:
        """Deletes entries of missing files, and results for content that no file has.

        Args:
            root: the folder to which paths are relative.
            keep: paths known to exist; others are checked.
        """
        existing = {os.fsencode(path) for path in keep}

        def write(db: sqlite3.Connection) -> None:
            paths = [path for (path,) in db.execute("SELECT path FROM files")]
            gone = [p for p in paths if p not in existing and not (root / os.fsdecode(p)).exists()]
            db.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in gone])
            used = "IN (SELECT sha256 FROM files)"
            db.execute(f"DELETE FROM notes WHERE NOT sha256 {used}")
            digest = f"substr(key, 1, {DIGEST})"  # a frame's key starts with that of its clip
            db.execute(f"DELETE FROM vectors WHERE typeof(key) = 'blob' AND NOT {digest} {used}")

        self._run(write, None)

    def close(self) -> None:
        """Closes the file; the next call reopens it."""
        with self._lock:
            self._close()

    def _select(self, columns: str, table: str, values: Iterable[object]) -> list[tuple]:
        """Selects rows whose column, named at the end of `table`, is among `values`."""
        distinct = list(dict.fromkeys(values))
        query = f"SELECT {columns} FROM {table} IN ({', '.join('?' * len(distinct))})"
        return self._run(lambda db: db.execute(query, distinct).fetchall(), [])

    def _run(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Runs `work` in a transaction; returns `otherwise` if the file cannot be used."""
        with self._lock:
            for _ in range(3):
                try:
                    if self._db is None:
                        self._path.parent.mkdir(parents=True, exist_ok=True)
                        self._db = _connect(str(self._path))
                    with self._db:
                        return work(self._db)
                except (sqlite3.OperationalError, OSError) as error:
                    self._close()
                    _log.warning("%s cannot be used, results are not stored: %s", self._path, error)
                    self._db = _connect(":memory:")
                except sqlite3.Error as error:
                    self._close()
                    _log.warning("%s is damaged and made anew: %s", self._path, error)
                    for suffix in ("", "-wal", "-shm"):
                        Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            return otherwise

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None


def _connect(name: str) -> sqlite3.Connection:
    """Opens a new file, or one of this version."""
    db = sqlite3.connect(name, timeout=_WAIT, check_same_thread=False)
    try:
        use_wal(db)
        db.execute("PRAGMA synchronous = NORMAL")
        [version] = db.execute("PRAGMA user_version").fetchone()
        if not version:
            db.executescript(_SCHEMA)
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"version {version} instead of {_VERSION}")
    except BaseException:
        db.close()
        raise
    return db


def use_wal(db: sqlite3.Connection) -> None:
    """Switches a file to WAL.

    SQLite refuses at once, without its own wait, if another connection is switching the file, too.
    """
    deadline = time.monotonic() + _WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _number(space: str) -> int:
    return int.from_bytes(hashlib.sha256(space.encode()).digest()[:7], "big")


def _in_space(space: str) -> str:
    return f"vectors WHERE space = {_number(space)} AND key"


def cache_folder() -> Path:
    """The user's cache folder: POLYVIEW_CACHE, or the platform's usual place.

    If it cannot be written, a temporary folder for this run.
    """
    if sys.platform == "win32":
        usual = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "polyview"
    elif sys.platform == "darwin":
        usual = Path.home() / "Library/Caches/polyview"
    else:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyview"
    folder = Path(os.environ.get("POLYVIEW_CACHE") or usual).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        _log.warning("the cache %s cannot be written, results are not stored: %s", folder, error)
        return Path(tempfile.mkdtemp(prefix="polyview-"))
