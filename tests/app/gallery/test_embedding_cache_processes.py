"""Several processes on one gallery, and processes that are killed at any moment."""

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from app.gallery.embedding_cache import Catalogue
from tests.app import filling
from tests.app.filling import SHAPE, SPACES, contents, vectors

pytestmark = pytest.mark.slow

IMAGES = 60
Process = subprocess.Popen[bytes]


class Place:
    """A folder of files, its gallery, and what was reported as indexed."""

    def __init__(self, folder: Path) -> None:
        self.photos, self.gallery = folder / "photos", folder / "gallery"
        self.report = folder / "report"
        self.photos.mkdir()
        self.report.touch()

    def add(self, name: int) -> None:
        """Writes a file; of each two numbers, both have the same content."""
        (self.photos / f"{name}.png").write_bytes(f"picture {name // 2}".encode())

    def start(self, seed: int) -> Process:
        """A process that fills the gallery in an order of its own, and begins now."""
        arguments = [str(path) for path in (self.photos, self.gallery, self.report)]
        process = subprocess.Popen(
            [sys.executable, "-m", filling.__name__, *arguments, str(seed)],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        return process

    def check(self) -> None:
        """All that was reported and still has a file is there, and all that is there is right."""
        there = {contents(path).digest for path in self.photos.iterdir()}
        lines = self.report.read_text().split("\n")[:-1]  # the last may be half a line
        reported = {bytes.fromhex(line) for line in lines} & there
        catalogue = Catalogue(self.gallery)
        for space in SPACES:
            found = catalogue.load(space, list(there))
            assert found.keys() >= reported
            right = vectors(space, list(there))
            for digest, row in zip(there, right, strict=True):
                if digest in found:
                    np.testing.assert_array_equal(found[digest], row)
        catalogue.close()
        with sqlite3.connect(self.gallery / "catalogue.sqlite") as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            used = db.execute("SELECT space, row FROM owners").fetchall()
            used += db.execute("SELECT space, row FROM free").fetchall()
            counted = db.execute("SELECT COALESCE(SUM(rows), 0) FROM spaces").fetchone()[0]
        assert len(set(used)) == len(used) == counted  # each row has one owner, or is free
        db.close()
        names = {path.name.split("-")[0] for path in self.gallery.iterdir()}
        assert names <= {"catalogue.sqlite", "catalogue.lock", "vectors"}

    def rows(self) -> int:
        """How many rows all files together hold."""
        files = (self.gallery / "vectors").iterdir()
        return sum(path.stat().st_size for path in files) // (4 * SHAPE[0] * SHAPE[1])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    for name in range(IMAGES):
        place.add(name)
    return place


def finish(*processes: Process) -> None:
    for process in processes:
        assert process.wait(60) == 0


def test_two_processes_fill_one_gallery(place: Place) -> None:
    finish(*[place.start(seed) for seed in (1, 2)])
    place.check()
    assert len(set(place.report.read_text().split())) == IMAGES // 2
    assert place.rows() == len(SPACES) * IMAGES // 2  # nothing was written twice


LONG = pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])


@pytest.mark.parametrize("times", [10, LONG])
def test_killed_at_any_moment(place: Place, times: int) -> None:
    chance = random.Random(times)
    began = time.perf_counter()
    finish(place.start(0))
    whole, name = time.perf_counter() - began, IMAGES
    for seed in range(times):
        for path in chance.sample(sorted(place.photos.iterdir()), IMAGES // 2):
            path.unlink()  # so that rows are freed, and used again
        for _ in range(IMAGES // 2):
            place.add(name := name + 1)
        other = place.start(-seed) if seed % 3 == 2 else None
        process = place.start(seed)
        time.sleep(chance.uniform(0, whole))
        process.kill()
        process.wait()
        if other is not None:
            finish(other)
        place.check()
    finish(place.start(times))
    place.check()
    there = {contents(path).digest for path in place.photos.iterdir()}
    catalogue = Catalogue(place.gallery)
    for space in SPACES:
        assert catalogue.load(space, list(there)).keys() == there
