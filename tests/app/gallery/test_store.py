"""The SQLite file of a gallery: several processes, killed ones, damaged and unusable files."""

import multiprocessing
import random
import sqlite3
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyview.app.gallery.images import Stamp
from polyview.app.gallery.store import Note, Store, Vectors, cache_folder, use_wal
from polyview.app.gallery.video_decoder import Moment
from tests.app.filling import SPACES, digest_of, fill, vector

IMAGES = 60
FORKING = multiprocessing.get_context("forkserver")  # torch is imported once, not by each process
FORKING.set_forkserver_preload([fill.__module__])


class Place:
    """A folder of files, its gallery, and what was reported as indexed."""

    def __init__(self, folder: Path) -> None:
        self.photos, self.gallery = folder / "photos", folder / "gallery"
        self.report = folder / "report"
        self.photos.mkdir()
        self.report.touch()

    def add(self, name: int) -> None:
        """Writes a file; of each two numbers, both have the same content."""
        (self.photos / f"{name}.png").write_bytes(f"image {name // 2}".encode())

    def start(self, seed: int) -> ForkServerProcess:
        """A process that fills the gallery in an order of its own, and begins now."""
        ready, begins = FORKING.Pipe(duplex=False)
        arguments = (begins, self.photos, self.gallery, self.report, seed)
        process = FORKING.Process(target=fill, args=arguments)
        process.start()
        ready.recv()
        return process

    def check(self, whole: bool = False) -> None:
        """All that was reported and still has a file is kept, and all that is kept is right."""
        digests = {digest_of(path) for path in self.photos.iterdir()}
        lines = self.report.read_text().split("\n")[:-1]  # the last may be half a line
        reported = {bytes.fromhex(line) for line in lines} & digests
        store = Store(self.gallery)
        for space in SPACES:
            stored = store.load(space, list(digests))
            assert stored.keys() >= (digests if whole else reported)
            for digest, rows in stored.items():
                assert isinstance(digest, bytes)
                np.testing.assert_array_equal(rows, vector(space, digest))
        store.close()
        with sqlite3.connect(self.gallery / "gallery.sqlite") as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    for name in range(IMAGES):
        place.add(name)
    return place


def finish(process: ForkServerProcess) -> None:
    process.join(60)
    assert process.exitcode == 0


LONG = pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])


@pytest.mark.slow
@pytest.mark.parametrize("times", [20, LONG])
def test_killed_at_any_moment(place: Place, times: int) -> None:
    chance = random.Random(times)
    first, began = place.start(0), time.perf_counter()
    finish(first)
    whole, name = time.perf_counter() - began, IMAGES
    for seed in range(times):
        for path in chance.sample(sorted(place.photos.iterdir()), IMAGES // 2):
            path.unlink()  # so that rows are deleted, and their room is used again
        for _ in range(IMAGES // 2):
            place.add(name := name + 1)
        other = place.start(-seed) if seed % 3 == 2 else None
        process = place.start(seed)
        time.sleep(chance.uniform(0, whole))
        process.kill()
        process.join()
        if other is not None:
            finish(other)
        place.check()
    finish(place.start(times))
    place.check(whole=True)


def keep(store: Store, path: Path, key: bytes = b"a" * 32) -> None:
    """Keeps a file of some content, which was read long after it was written."""
    stamp = Stamp.of(path)
    contents = {path.name: (stamp, stamp.mtime_ns + 10**10, key)}
    vectors: Vectors = {"views": {key: np.arange(6, dtype=np.float32).reshape(2, 3)}}
    store.save(vectors, contents, {key: Note(moments=(Moment(0.5, 1),))}, "a reader")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(b"an image")
    return path


def test_what_is_kept_comes_back_until_the_file_is_gone(tmp_path: Path, photo: Path) -> None:
    store, key = Store(tmp_path / "gallery"), b"a" * 32
    keep(store, photo)
    store.save({"captions": {"a dog": np.ones((1, 3), np.float32)}})
    assert store.digests({photo.name: Stamp.of(photo)}) == {photo.name: key}
    assert store.notes([key], "a reader") == {key: Note(moments=(Moment(0.5, 1),))}
    assert store.notes([key], "another reader") == {}
    [rows] = store.load("views", [key]).values()
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert store.load("other views", [key]) == {}
    store.prune(tmp_path, [])  # the file exists, although nobody named it
    assert store.known("views", [key]) == {key}
    photo.unlink()
    store.prune(tmp_path, [])
    assert store.known("views", [key]) == set()
    assert store.notes([key], "a reader") == {}
    assert store.known("captions", ["a dog"]) == {"a dog"}


def test_a_file_that_may_change_without_a_new_time_is_read_again(
    tmp_path: Path, photo: Path
) -> None:
    store, stamp = Store(tmp_path / "gallery"), Stamp.of(photo)
    store.save({}, {photo.name: (stamp, stamp.mtime_ns + 10**9, b"a" * 32)})
    assert store.digests({photo.name: stamp}) == {}


@pytest.mark.parametrize("damage", ["text", "cut", "version"])
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, photo: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, key = tmp_path / "gallery/gallery.sqlite", b"a" * 32
    store = Store(path.parent)
    keep(store, photo)
    store.close()
    if damage == "text":
        path.write_text("not a database " * 1000)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    again = Store(path.parent)
    assert again.load("views", [key]) == {}
    assert "is damaged and made anew" in caplog.text
    keep(again, photo)
    assert again.known("views", [key]) == {key}


def test_what_cannot_be_written_costs_only_time(
    tmp_path: Path, photo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gallery").write_text("a file in the folder's place")
    store = Store(tmp_path / "gallery")
    keep(store, photo)
    keep(store, photo)
    assert store.known("views", [b"a" * 32]) == {b"a" * 32}  # in memory
    assert caplog.text.count("cannot be used") == 1


def test_a_cache_that_cannot_be_written_is_replaced_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "file"))
    assert cache_folder().is_dir()


def test_a_new_file_that_another_connection_opens_too_is_waited_for(tmp_path: Path) -> None:
    class Busy(sqlite3.Connection):
        refusals = 2

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if self.refusals:
                self.refusals -= 1
                raise sqlite3.OperationalError("database is locked")
            return super().execute(*arguments)

    db = sqlite3.connect(tmp_path / "gallery.sqlite", factory=Busy)
    use_wal(db)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
