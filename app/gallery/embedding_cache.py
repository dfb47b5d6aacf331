"""What was computed once for a gallery and need not be computed again, kept on disk.

A gallery's folder holds `catalogue.sqlite` and `vectors/`, one file of rows (`VectorFile`) for each
*space*: one model's embeddings of one kind of thing. Spaces are named after the checksum of the
model, so that another pack finds a space of its own and never numbers it did not make. Things go by
what they are, not by where they are: an image by the SHA-256 of its file, a caption by its words.
An image that was moved or copied is therefore known, one that was changed is another.

**Nothing reported is lost, nothing half written is read.** `save` takes SQLite's write lock, gives
out rows that nobody owns, writes them, waits for the disk, and commits who owns them; it returns
after that. A process that dies earlier leaves rows that nobody owns, to be written over. The write
lock is the only one that is needed: SQLite holds it for one process at a time, and the system frees
it when that process ends, however it ends. Readers take no lock. Where a row's owner changes while
it is read, or a file was damaged, the checksum beside the owner does not fit, and the row counts as
not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from app.gallery.database import Database
from app.gallery.image_files import Contents, Refusal, Stamp

# the SHA-256 of a picture's file, with the numbers of frames after that of a clip; or a caption
Key = bytes | str

_VERSION = 5
_DIGEST = 32  # bytes of a SHA-256
_AT_ONCE = 500  # values in one SQL statement
_REFUSALS = """
    CREATE TABLE refusals (
        item INTEGER PRIMARY KEY REFERENCES items, reader TEXT NOT NULL, file BLOB NOT NULL,
        reason TEXT NOT NULL
    );
"""
_CLIPS = """
    CREATE TABLE clips (item INTEGER REFERENCES items, reader TEXT, moments TEXT NOT NULL,
        PRIMARY KEY (item, reader)) WITHOUT ROWID;
"""
_SCHEMA = f"""
    CREATE TABLE items (id INTEGER PRIMARY KEY, key UNIQUE NOT NULL);
    CREATE TABLE files (
        path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
        read_ns INTEGER NOT NULL, item INTEGER NOT NULL REFERENCES items,
        ctime_ns INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE INDEX files_of_items ON files (item);
    CREATE TABLE spaces (
        id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, shape TEXT NOT NULL,
        rows INTEGER NOT NULL
    );
    CREATE TABLE owners (
        space INTEGER NOT NULL, item INTEGER NOT NULL, row INTEGER NOT NULL, crc INTEGER NOT NULL,
        PRIMARY KEY (space, item)
    ) WITHOUT ROWID;
    CREATE INDEX owners_of_items ON owners (item);
    CREATE TABLE free (space INTEGER, row INTEGER, PRIMARY KEY (space, row)) WITHOUT ROWID;
    {_REFUSALS}
    {_CLIPS}
"""
_UPGRADES = {
    1: _REFUSALS,
    2: "ALTER TABLE files ADD COLUMN ctime_ns INTEGER NOT NULL DEFAULT 0;",  # all are read again
    3: _CLIPS,
    4: f"DROP TABLE clips; {_CLIPS}",  # which are looked at again
}

_log = logging.getLogger(__name__)


def checksums(values: np.ndarray) -> list[int]:
    """The CRC-32 of each of the rows (B, ...)."""
    return [zlib.crc32(row) for row in np.ascontiguousarray(values)]


class VectorFile:
    """The rows of one model's embeddings, in a file that is mapped into memory to be read.

    It holds float32 rows of one shape, one after the other, and nothing else: row `i` begins at
    byte `i * size`. It only grows: other processes may have it mapped, and a map of a file that
    shrinks ends a process.

    Args:
        path: the file; made when the first row is written.
        shape: of one row.
    """

    def __init__(self, path: Path, shape: Sequence[int]) -> None:
        self.path = path
        self._shape = tuple(shape)
        self._size = 4 * math.prod(self._shape)  # bytes of a row

    def read(self, rows: Sequence[int], sums: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Rows, and which of them are as they were written.

        Args:
            rows: their numbers.
            sums: their checksums when they were written.

        Returns:
            (B, *shape) float32, a copy; and (B,) bool, where False marks a row not to be used.

        Raises:
            OSError: the file is there and cannot be read.
        """
        values = np.zeros((len(rows), *self._shape), np.float32)
        numbers = np.asarray(rows, np.int64)
        there = numbers < self._count()
        if there.any():
            shape = (self._count(), *self._shape)
            values[there] = np.memmap(self.path, np.float32, "r", shape=shape)[numbers[there]]
        return values, there & (np.asarray(checksums(values)) == np.asarray(sums))

    def write(self, rows: Sequence[int], values: np.ndarray) -> None:
        """Writes rows, and returns once the disk has them.

        Args:
            rows: their numbers, ascending; rows that are left out below them may hold anything.
            values: (B, *shape) with B = len(rows).

        Raises:
            OSError: they cannot be written; the rows may then hold anything.
        """
        values = np.ascontiguousarray(values, np.float32)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        with self.path.open("r+b") as file:
            for row, value in zip(rows, values, strict=True):
                file.seek(row * self._size)
                file.write(value.data)
            file.flush()
            os.fsync(file.fileno())

    def _count(self) -> int:
        """How many whole rows the file holds."""
        try:
            return self.path.stat().st_size // self._size
        except FileNotFoundError:
            return 0


class Catalogue:
    """The files of one gallery and the embeddings of what is in them; see the module.

    Safe to use from several threads and processes. A folder that cannot be used costs only time:
    nothing is found, nothing is kept, and a warning says so once. A damaged database is set aside,
    and everything is computed again.

    Args:
        folder: belongs to this gallery alone; made when it is first used.
    """

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder / "catalogue.sqlite", _SCHEMA, _VERSION, _UPGRADES)
        self._vectors = folder / "vectors"

    def digests(self, stamps: Mapping[str, Stamp]) -> dict[str, bytes]:
        """What is in those files that have not changed since they were read last.

        Args:
            stamps: the files as they are now, by path.
        """

        def look(db: sqlite3.Connection) -> dict[str, bytes]:
            known = {}
            paths = {os.fsencode(path): path for path in stamps}
            sql = (
                "SELECT path, size, mtime_ns, ctime_ns, read_ns, key "
                "FROM files JOIN items ON id = item WHERE path IN"
            )
            for path, *stamp, read, key in _select(db, sql, paths):
                if Contents(key, Stamp(*stamp), read).still_in(stamps[paths[path]]):
                    known[paths[path]] = key
            return known

        return self._database.run(look, {})

    def record(self, files: Mapping[str, Contents]) -> None:
        """Keeps what is in files, by path; `prune` then leaves the embeddings of that alone."""

        def write(db: sqlite3.Connection) -> None:
            items = _items(db, [found.digest for found in files.values()])
            rows = [
                (os.fsencode(path), *astuple(f.stamp), f.read_ns, items[f.digest])
                for path, f in files.items()
            ]
            db.executemany(
                "INSERT OR REPLACE INTO files (path, size, mtime_ns, ctime_ns, read_ns, item) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )

        if files:
            self._database.write(write)

    def refuse(self, refusals: Mapping[bytes, Refusal], reader: str) -> None:
        """Keeps why files of these contents cannot be used.

        Args:
            refusals: by the SHA-256 of the file.
            reader: what read them; another one may be able to.
        """
        notes = {key: (os.fsencode(why.file), why.reason) for key, why in refusals.items()}
        self.note("refusals", reader, notes)

    def refused(self, digests: Iterable[bytes], reader: str) -> dict[bytes, Refusal]:
        """Those of these contents that a reader could not use, and why."""
        found = self.noted("refusals", "file, reason", reader, digests)
        return {key: Refusal(os.fsdecode(file), reason) for key, file, reason in found}

    def note(self, table: str, reader: str, notes: Mapping[bytes, Sequence[object]]) -> None:
        """Keeps what a reader found of contents.

        Args:
            table: `refusals` or `clips`.
            reader: what looked at them; another one may find something else.
            notes: the further columns of the table, by the SHA-256 of the file.
        """

        def write(db: sqlite3.Connection) -> None:
            items = _items(db, list(notes))
            rows = [(items[digest], reader, *values) for digest, values in notes.items()]
            places = ", ".join("?" * len(rows[0]))
            db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)

        if notes:
            self._database.write(write)

    def noted(
        self, table: str, columns: str, reader: str, digests: Iterable[bytes]
    ) -> list[tuple[Any, ...]]:
        """The SHA-256 and some columns of those contents that a reader looked at; see `note`."""

        def look(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            sql = f"SELECT key, reader, {columns} FROM {table} JOIN items ON id = item WHERE key IN"
            found = _select(db, sql, digests)
            return [(key, *values) for key, by, *values in found if by == reader]

        return self._database.run(look, [])

    def load(self, space: str, keys: Iterable[Key]) -> dict[Key, np.ndarray]:
        """The rows of those keys that a space holds, float32; the others are left out."""
        wanted = list(dict.fromkeys(keys))

        def read(db: sqlite3.Connection) -> dict[Key, np.ndarray]:
            found, damaged = self._read(db, space, wanted)
            if damaged:
                with db:  # nobody writes now, so what is damaged still is so
                    db.execute("BEGIN IMMEDIATE")
                    again, damaged = self._read(db, space, damaged)
                    self._disown(db, space, damaged)
                found |= again
            return found

        return self._database.run(read, {})

    def save(self, parts: Mapping[str, tuple[Sequence[Key], np.ndarray]]) -> None:
        """Keeps rows, and returns when nothing short of a broken disk can lose them.

        Args:
            parts: for each space, keys and their rows (B, ...) with B = len(keys); keys that the
                space holds already keep the row they have.

        Raises:
            ValueError: rows do not have the shape of those that the space holds.
        """

        def write(db: sqlite3.Connection) -> None:
            for space, (keys, rows) in parts.items():
                if len(keys):
                    self._append(db, space, keys, np.asarray(rows, np.float32))

        self._database.write(write)

    def prune(self, root: Path, keep: Iterable[str]) -> None:
        """Forgets files that are gone, and what was computed of pictures that no file shows.

        Args:
            root: the folder that paths begin at.
            keep: paths known to be there; others are looked for.
        """

        def write(db: sqlite3.Connection) -> None:
            there = {os.fsencode(path) for path in keep}
            orphans = (  # a frame's key begins with that of its clip's file
                "SELECT id FROM items WHERE typeof(key) = 'blob' AND NOT EXISTS (SELECT 1 FROM "
                "items AS file JOIN files ON files.item = file.id "
                f"WHERE file.key = substr(items.key, 1, {_DIGEST}))"
            )
            # looks for files only now, when nobody can record one that has just come
            known = [path for (path,) in db.execute("SELECT path FROM files")]
            gone = [
                p
                for p in known
                if p not in there and not os.path.exists(root / os.fsdecode(p))  # noqa: PTH110
            ]
            db.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in gone])
            db.execute(f"INSERT INTO free SELECT space, row FROM owners WHERE item IN ({orphans})")
            for table in ("owners", "refusals", "clips"):
                db.execute(f"DELETE FROM {table} WHERE item IN ({orphans})")
            db.execute(f"DELETE FROM items WHERE id IN ({orphans})")

        self._database.write(write)

    def close(self) -> None:
        """Lets go of the files; whatever is asked next opens them again."""
        self._database.close()

    def _file(self, space: str, shape: str) -> VectorFile:
        name = hashlib.sha256(space.encode()).hexdigest()[:24]
        return VectorFile(self._vectors / f"{name}.f32", json.loads(shape))

    def _read(
        self, db: sqlite3.Connection, space: str, keys: Sequence[Key]
    ) -> tuple[dict[Key, np.ndarray], list[Key]]:
        """The rows that are there, and the keys of those that are damaged."""
        known = db.execute("SELECT id, shape FROM spaces WHERE name = ?", (space,)).fetchone()
        if known is None:
            return {}, []
        sql = f"SELECT key, row, crc FROM items JOIN owners ON item = id AND space = {known[0]:d}"
        owned = _select(db, f"{sql} WHERE key IN", keys)
        values, whole = self._file(space, known[1]).read(
            [r for _, r, _ in owned], [c for *_, c in owned]
        )
        found = {key: values[i] for i, (key, *_) in enumerate(owned) if whole[i]}
        return found, [key for i, (key, *_) in enumerate(owned) if not whole[i]]

    def _disown(self, db: sqlite3.Connection, space: str, keys: Sequence[Key]) -> None:
        """Frees the rows of keys; within a transaction."""
        if not keys:
            return
        shape, number = db.execute(
            "SELECT shape, id FROM spaces WHERE name = ?", (space,)
        ).fetchone()
        path = self._file(space, shape).path
        _log.warning("%s is damaged: %d of its rows are computed again", path, len(keys))
        items = [(number, item) for item in _items(db, keys).values()]
        which = "WHERE space = ? AND item = ?"
        db.executemany(f"INSERT INTO free SELECT space, row FROM owners {which}", items)
        db.executemany(f"DELETE FROM owners {which}", items)

    def _append(
        self, db: sqlite3.Connection, space: str, keys: Sequence[Key], rows: np.ndarray
    ) -> None:
        """Writes the rows that a space does not hold; within a transaction."""
        shape = json.dumps(rows.shape[1:])
        db.execute("INSERT OR IGNORE INTO spaces VALUES (NULL, ?, ?, 0)", (space, shape))
        number, known, used = db.execute(
            "SELECT id, shape, rows FROM spaces WHERE name = ?", (space,)
        ).fetchone()
        if known != shape:
            raise ValueError(f"rows of shape {shape} do not fit {space}, which has {known}")
        items = _items(db, keys)
        sql = f"SELECT item FROM owners WHERE space = {number:d} AND item IN"
        there = {item for (item,) in _select(db, sql, items.values())}
        new = {items[key]: i for i, key in enumerate(keys) if items[key] not in there}
        free = db.execute(
            "SELECT row FROM free WHERE space = ? ORDER BY row LIMIT ?", (number, len(new))
        )
        places = [row for (row,) in free]
        last = max(places, default=-1)
        db.execute("DELETE FROM free WHERE space = ? AND row <= ?", (number, last))
        added = len(new) - len(places)
        places += range(used, used + added)
        db.execute("UPDATE spaces SET rows = rows + ? WHERE id = ?", (added, number))
        values = rows if len(new) == len(rows) else rows[list(new.values())]
        if len(values):
            self._file(space, shape).write(places, values)
        owners = zip(new, places, checksums(values), strict=True)
        db.executemany(
            "INSERT INTO owners VALUES (?, ?, ?, ?)", [(number, *owner) for owner in owners]
        )


def _items(db: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, int]:
    """The number of each key; those that are new get one."""
    db.executemany("INSERT OR IGNORE INTO items VALUES (NULL, ?)", [(key,) for key in keys])
    return dict(_select(db, "SELECT key, id FROM items WHERE key IN", keys))


def _select(db: sqlite3.Connection, sql: str, values: Iterable[object]) -> list[tuple]:
    """All rows of a statement that ends in IN, for any number of values."""
    found, rest = [], iter(values)
    while batch := list(islice(rest, _AT_ONCE)):
        found += db.execute(f"{sql} ({','.join('?' * len(batch))})", batch).fetchall()
    return found
