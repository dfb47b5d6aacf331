"""A SQLite file that several processes share, and that costs only time where it cannot be used.

A lock file guards what comes before SQLite's own locks can: making the database, and setting a
damaged one aside.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

T = TypeVar("T")

_PATIENCE = 10.0  # seconds to wait for other processes, in all, until one gives way

_log = logging.getLogger(__name__)


class _OtherVersionError(Exception):
    """The database is of another version than is wanted."""


class Database:
    """A database with one schema; safe to use from several threads and processes.

    A damaged database, or one of a version that cannot be upgraded, is set aside under a name that
    ends in `.damaged`, and an empty one takes its place. Where the file cannot be used at all, or
    not now, a warning says so once. Another process that holds it is waited for; one that holds it
    for longer than that costs the wait once, and no more until it gives way.

    Args:
        path: the file; made with its folder when it is first used.
        schema: SQL that makes the tables.
        version: of the schema, from 1.
        upgrades: SQL that makes the next version of an older one, by that older one.
    """

    def __init__(
        self, path: Path, schema: str, version: int, upgrades: Mapping[int, str] | None = None
    ) -> None:
        self._path = path
        self._schema = schema
        self._version = version
        self._upgrades = upgrades or {}
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._told = False
        self._patience = _PATIENCE

    def run(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Does some work with the database.

        Args:
            work: is given the connection, outside of a transaction; done again, once, where the
                database was damaged.
            otherwise: what is returned where the database, or a file that `work` needs, cannot be
                used.
        """
        with self._lock:
            began = time.monotonic()
            for _ in range(2):
                try:
                    if self._connection is None:
                        self._connection = self._open()
                    self._connection.execute(f"PRAGMA busy_timeout = {1000 * self._patience:.0f}")
                    before = self._connection.total_changes
                    done = work(self._connection)
                    if self._connection.total_changes > before:  # who only reads need not wait
                        self._patience = _PATIENCE
                    return done
                except (OSError, sqlite3.Error, _OtherVersionError) as error:
                    if _held(error):
                        self._patience = max(0.0, self._patience + began - time.monotonic())
                    if not _damaged(error) or not self._set_aside(error):
                        self._warn(f"cannot be used, which costs time: {error}")
                        break
            return otherwise

    def write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Does some work in a transaction, wholly or not at all; nobody else writes meanwhile."""

        def whole(db: sqlite3.Connection) -> None:
            with db:
                db.execute("BEGIN IMMEDIATE")
                work(db)

        self.run(whole, None)

    def close(self) -> None:
        """Lets go of the file; `run` opens it again."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._path.with_suffix(".lock"), self._patience):
            db = sqlite3.connect(
                self._path, timeout=self._patience, isolation_level=None, check_same_thread=False
            )
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version == 0:
                    self._change(db, self._schema, self._version)
                    version = self._version
                while version in self._upgrades:
                    self._change(db, self._upgrades[version], version + 1)
                    version += 1
                if version != self._version:
                    raise _OtherVersionError(f"it is of version {version}, not {self._version}")
            except BaseException:
                db.close()
                raise
        return db

    @staticmethod
    def _change(db: sqlite3.Connection, sql: str, version: int) -> None:
        """Makes a database of a version, wholly or not at all."""
        db.executescript(f"BEGIN IMMEDIATE; {sql} PRAGMA user_version = {version}; COMMIT")

    def _set_aside(self, error: Exception) -> bool:
        """Renames a damaged database; False where that fails. Another process may have done it."""
        self._let_go()
        aside = self._path.with_suffix(".damaged")
        try:
            with FileLock(self._path.with_suffix(".lock"), self._patience):
                if not self._sound():
                    _log.warning("%s is set aside, and is made anew: %s", self._path, error)
                    self._path.replace(aside)
                    for rest in ("-wal", "-shm"):
                        self._path.with_name(self._path.name + rest).unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as failed:
            self._warn(f"is damaged ({error}) and cannot be set aside: {failed}")
            return False
        return True

    def _sound(self) -> bool:
        """Whether the database is whole and of the right version."""
        db = sqlite3.connect(self._path, timeout=self._patience)
        try:
            whole = db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            return whole and db.execute("PRAGMA user_version").fetchone()[0] == self._version
        except sqlite3.DatabaseError as error:
            if _damaged(error):
                return False
            raise
        finally:
            db.close()

    def _warn(self, what: str) -> None:
        if not self._told:
            _log.warning("the index %s %s", self._path, what)
        self._told = True


def _held(error: Exception) -> bool:
    """Whether another process holds the database, or the lock file."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, TimeoutError) or code == sqlite3.SQLITE_BUSY


def _damaged(error: Exception) -> bool:
    codes = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, _OtherVersionError) or code in codes
