"""The SQLite file: made once, shared, set aside when damaged, and never in the way."""

import os
import sqlite3
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from app.gallery import database as module
from app.gallery.database import Database

SCHEMA = "CREATE TABLE words (word TEXT UNIQUE);"


def words(database: Database) -> list[str] | None:
    return database.run(
        lambda db: [word for (word,) in db.execute("SELECT word FROM words ORDER BY word")], None
    )


def add(database: Database, *new: str) -> bool:
    def insert(db: sqlite3.Connection) -> bool:
        with db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO words VALUES (?)", [(word,) for word in new])
        return True

    return database.run(insert, False)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "words.sqlite"
    database = Database(path, SCHEMA, 1)
    assert add(database, *(f"{i:03} {'x' * 100}" for i in range(200)))
    database.close()
    return path


def test_it_is_there_again_and_opens_after_it_was_closed(filled: Path) -> None:
    database = Database(filled, SCHEMA, 1)
    for _ in range(2):
        assert len(words(database) or []) == 200
        database.close()


def test_many_may_begin_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "words.sqlite"
    with ThreadPoolExecutor(8) as pool:
        done = pool.map(lambda i: add(Database(path, SCHEMA, 1), str(i)), range(8))
    assert all(done)
    assert len(words(Database(path, SCHEMA, 1)) or []) == 8


@pytest.mark.parametrize("damage", ["nonsense", "cut", "scribbled", "version"])
def test_a_damaged_one_is_remade(
    filled: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = filled.read_bytes()
    if damage == "nonsense":
        filled.write_bytes(b"this is no database, whatever its name says" * 100)
    elif damage == "cut":
        filled.write_bytes(content[: len(content) // 2])
    elif damage == "scribbled":
        filled.write_bytes(content[:4096] + bytes(8192) + content[12288:])
    else:
        with sqlite3.connect(filled) as db:
            db.execute("PRAGMA user_version = 7")
    database = Database(filled, SCHEMA, 1)
    assert words(database) == []
    assert f"{filled} is set aside" in caplog.text
    assert filled.with_suffix(".damaged").is_file()
    assert add(database, "new")
    assert words(Database(filled, SCHEMA, 1)) == ["new"]


def test_who_notices_damage_late_uses_what_another_made(filled: Path) -> None:
    late = Database(filled, SCHEMA, 1)
    filled.write_bytes(b"no database" * 1000)
    assert add(Database(filled, SCHEMA, 1), "new")
    assert words(late) == ["new"]


def test_a_failed_transaction_leaves_nothing(filled: Path) -> None:
    database = Database(filled, SCHEMA, 1)

    def twice(db: sqlite3.Connection) -> bool:
        with db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO words VALUES ('a')")
            db.execute("INSERT INTO words VALUES ('a')")
        return True

    assert database.run(twice, False) is False
    assert "a" not in (words(database) or [])
    assert add(database, "a")


def test_one_warning_where_it_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "blocked").write_text("a file where the folder should be")
    database = Database(tmp_path / "blocked" / "words.sqlite", SCHEMA, 1)
    assert not add(database, "a")
    assert words(database) is None
    assert len(caplog.records) == 1
    assert "cannot be used" in caplog.text


def test_another_process_that_holds_it_is_waited_for_once(
    filled: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    database = Database(filled, SCHEMA, 1)
    with closing(sqlite3.connect(filled, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        for i in range(20):
            assert not add(database, str(i))
            assert len(words(database) or []) == 200  # readers are not held up
        assert 0.5 <= time.monotonic() - began < 5
        assert [record.message.split(": ")[-1] for record in caplog.records] == [
            "database is locked"
        ]
        other.execute("ROLLBACK")
        assert add(database, "new")


def test_a_held_lock_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    path = tmp_path / "words.sqlite"
    with FileLock(path.with_suffix(".lock")):
        database = Database(path, SCHEMA, 1)
        began = time.monotonic()
        assert not any(add(database, str(i)) for i in range(20))
        assert time.monotonic() - began < 5
    assert add(database, "new")


@pytest.mark.parametrize("fresh", [True, False])
def test_a_folder_that_is_read_only_is_left_alone(fresh: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made)
        path = folder / "words.sqlite"
        if not fresh:
            assert add(Database(path, SCHEMA, 1), "a")
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        child = os.fork()
        if not child:  # root may write anywhere, so ask as somebody else
            if os.getuid() == 0:
                os.setuid(65534)
            database = Database(path, SCHEMA, 1)
            os._exit(0 if not add(database, "b") and words(database) is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        folder.chmod(stat.S_IRWXU)
