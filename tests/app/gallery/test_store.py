"""The SQLite file of a gallery: concurrent and killed processes, damaged and unusable files."""

import hashlib
import multiprocessing
import random
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest

from polyview.app.gallery.images import Stamp
from polyview.app.gallery.store import Content, Store, Vectors, cache_folder
from polyview.app.gallery.video import Moment

IMAGES, AT_ONCE = 60, 4
SPACES = ("views one", "views two")
FORKING = multiprocessing.get_context("forkserver")  # torch is imported once, not by each process
FORKING.set_forkserver_preload([__name__])


def vector(space: str, digest: bytes) -> np.ndarray:
    """The correct rows (3, 40) of a content in a space."""
    seed = hashlib.sha256(space.encode() + digest).digest()
    return np.random.default_rng(list(seed)).standard_normal((3, 40)).astype(np.float32)


def digest_of(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def fill(begins: Connection, photos: Path, gallery: Path, report: Path, seed: int) -> None:
    """Stores vectors of a folder in random order; appends the SHA-256 of stored files."""
    begins.send(None)
    files = sorted(photos.iterdir())
    random.Random(seed).shuffle(files)
    store, new = Store(gallery), dict[str, Vectors]()
    with report.open("a", buffering=1) as out:
        for start in range(0, len(files), AT_ONCE):
            digests = {path: digest_of(path) for path in files[start : start + AT_ONCE]}
            for space in SPACES:
                known = store.load(space, digests.values())
                new[space] = {d: vector(space, d) for d in digests.values() if d not in known}
            now = time.time_ns()
            store.save(new, {p.name: (Stamp.of(p), now, Content(d)) for p, d in digests.items()})
            out.writelines(f"{digest.hex()}\n" for digest in digests.values())
    store.prune(photos, [path.name for path in files])
    store.close()


class Place:
    """A folder of files, its gallery, and the report of stored files."""

    def __init__(self, folder: Path) -> None:
        self.photos, self.gallery = folder / "photos", folder / "gallery"
        self.report = folder / "report"
        self.photos.mkdir()
        self.report.touch()
        for name in range(IMAGES):
            self.add(name)

    def add(self, name: int) -> None:
        """Writes a file; numbers 2n and 2n + 1 have the same content."""
        (self.photos / f"{name}.png").write_bytes(f"image {name // 2}".encode())

    def start(self, seed: int) -> ForkServerProcess:
        """Starts a process that fills the gallery in random order."""
        ready, begins = FORKING.Pipe(duplex=False)
        arguments = (begins, self.photos, self.gallery, self.report, seed)
        process = FORKING.Process(target=fill, args=arguments)
        process.start()
        ready.recv()
        return process

    def check(self, whole: bool = False) -> None:
        """Asserts that reported contents are stored, and that all stored vectors are correct."""
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


def finish(process: ForkServerProcess) -> None:
    process.join(60)
    assert process.exitcode == 0


LONG = pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])


@pytest.mark.slow
@pytest.mark.parametrize("times", [12, LONG])
def test_killed_at_any_moment(tmp_path: Path, times: int) -> None:
    place, chance = Place(tmp_path), random.Random(times)
    first, began = place.start(0), time.perf_counter()
    finish(first)
    whole, name = time.perf_counter() - began, IMAGES
    for seed in range(times):
        for path in chance.sample(sorted(place.photos.iterdir()), IMAGES // 2):
            path.unlink()  # so that rows are deleted, and their space is used again
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


KEY = b"a" * 32
CLIP = Content(KEY, moments=(Moment(0.5, 1),))


def save(store: Store, path: Path, content: Content = CLIP) -> None:
    """Saves a file with vectors, as if it was read ten seconds after writing."""
    stamp = Stamp.of(path)
    vectors = {"views": {content.digest: np.arange(6, dtype=np.float32).reshape(2, 3)}}
    store.save(vectors, {path.name: (stamp, stamp.mtime_ns + 10**10, content)})  # type: ignore[arg-type]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(b"an image")
    return path


def test_results_are_stored_while_their_file_exists(tmp_path: Path, photo: Path) -> None:
    store, stamp = Store(tmp_path / "gallery"), Stamp.of(photo)
    store.save({}, {photo.name: (stamp, stamp.mtime_ns + 10**9, CLIP)})
    assert store.files({photo.name: stamp}) == {}  # it may have changed with the same time stamp
    save(store, photo)
    store.save({"captions": {"a dog": np.ones((1, 3), np.float32)}})
    assert store.files({photo.name: stamp}) == {photo.name: CLIP}
    assert store.content(KEY) == CLIP
    [rows] = store.load("views", [KEY]).values()
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert store.load("other views", [KEY]) == {}
    store.prune(tmp_path, [])  # the file exists, though it is not listed
    assert store.load("views", [KEY])
    changed = Content(b"b" * 32)
    save(store, photo, changed)
    store.prune(tmp_path, [photo.name])
    assert store.load("views", [KEY, changed.digest]).keys() == {changed.digest}
    photo.unlink()
    store.prune(tmp_path, [])
    assert store.load("views", [changed.digest]) == {}
    assert store.content(changed.digest) is None
    assert store.load("captions", ["a dog"])


@pytest.mark.parametrize("damage", ["text", "cut", "version"])
def test_a_damaged_file_is_replaced(
    tmp_path: Path, photo: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gallery/gallery.sqlite"
    store = Store(path.parent)
    save(store, photo)
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
    assert again.load("views", [KEY]) == {}
    assert "cannot be read and is replaced" in caplog.text
    save(again, photo)
    assert again.load("views", [KEY])


def test_a_gallery_in_memory(tmp_path: Path, photo: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gallery").write_text("a file in the folder's place")
    store = Store(tmp_path / "gallery")
    save(store, photo)
    save(store, photo)
    assert store.load("views", [KEY])  # stored in memory
    assert caplog.text.count("cannot be used") == 1


def test_an_unusable_cache_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "file"))
    assert cache_folder().is_dir()


def test_connections_make_one_new_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite fails without waiting if two connections switch a file to WAL."""
    for number in range(8):
        with ThreadPoolExecutor(4) as pool:
            stores = [Store(tmp_path / str(number)) for _ in range(4)]
            list(pool.map(lambda store: store.content(KEY), stores))
        assert caplog.text == ""
