"""What a gallery keeps: by contents, for each model, and never anything that is not right."""

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.gallery import embedding_cache as module
from app.gallery import image_files
from app.gallery.embedding_cache import Catalogue, VectorFile
from app.gallery.image_files import Contents, Refusal, Stamp
from tests.app.filling import SHAPE, contents, vectors

LONG_AGO = 10**18  # ns
A, B, C = (bytes([i]) * 32 for i in range(3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gallery"


def save(catalogue: Catalogue, space: str, *keys: bytes) -> None:
    catalogue.save({space: (keys, vectors(space, list(keys)))})


def holds(catalogue: Catalogue, space: str, *keys: bytes) -> bool:
    """Whether a space holds exactly these of all keys, each with the right row."""
    found = catalogue.load(space, [A, B, C])
    for key, row in found.items():
        assert isinstance(key, bytes)
        np.testing.assert_array_equal(row, vectors(space, [key])[0])
    return found.keys() == set(keys)


def write(path: Path, content: bytes, mtime: int = LONG_AGO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))
    return path


def rows_on_disk(folder: Path) -> int:
    return sum(p.stat().st_size for p in (folder / "vectors").iterdir()) // (
        4 * SHAPE[0] * SHAPE[1]
    )


def test_each_space_gives_back_its_own(folder: Path) -> None:
    save(Catalogue(folder), "one", A, B)
    save(Catalogue(folder), "two", B, C)
    again = Catalogue(folder)
    assert holds(again, "one", A, B)
    assert holds(again, "two", B, C)
    assert holds(again, "a pack with another checksum")


def test_images_and_captions_have_keys_of_their_own(folder: Path) -> None:
    catalogue = Catalogue(folder)
    text = "a dog on a beach"
    catalogue.save({"texts": ([text, "", "💙"], vectors("texts", [A, B, C]))})
    save(catalogue, "texts", text.encode().ljust(32))
    found = catalogue.load("texts", ["💙", text, "unknown"])
    np.testing.assert_array_equal(found[text], vectors("texts", [A])[0])
    np.testing.assert_array_equal(found["💙"], vectors("texts", [C])[0])
    assert len(found) == 2


def test_what_is_there_is_not_written_again(folder: Path) -> None:
    catalogue = Catalogue(folder)
    save(catalogue, "one", A, B)
    save(catalogue, "one", B, C, C)
    assert holds(catalogue, "one", A, B, C)
    assert rows_on_disk(folder) == 3


def test_thousands_at_once(folder: Path) -> None:
    keys = [f"caption {i}" for i in range(1234)]
    rows = np.arange(1234, dtype=np.float32)[:, None]
    Catalogue(folder).save({"texts": (keys, rows)})
    found = Catalogue(folder).load("texts", reversed(keys))
    assert [float(found[key][0]) for key in keys] == rows[:, 0].tolist()


def test_rows_of_another_shape_are_refused(folder: Path) -> None:
    catalogue = Catalogue(folder)
    save(catalogue, "one", A)
    with pytest.raises(ValueError, match=r"\[2\] do not fit one, which has \[3, 40\]"):
        catalogue.save({"two": ([B], vectors("two", [B])), "one": ([B], np.zeros((1, 2)))})
    assert holds(catalogue, "one", A)
    assert holds(catalogue, "two")  # all or nothing


def test_a_write_that_fails_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue = Catalogue(folder)
    save(catalogue, "one", A)
    honest = VectorFile.write

    def half(self: VectorFile, rows: list[int], values: np.ndarray) -> None:
        honest(self, rows[:1], values[:1])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(VectorFile, "write", half)
        save(catalogue, "one", B, C)
    assert "No space left" in caplog.text
    assert holds(catalogue, "one", A)
    save(catalogue, "one", C)
    assert holds(catalogue, "one", A, C)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "emptied"])
def test_damaged_rows_are_remade(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue = Catalogue(folder)
    save(catalogue, "one", A, B)
    save(catalogue, "two", A, B)
    path = next(
        p for p in (folder / "vectors").iterdir() if vectors("one", [A]).tobytes() in p.read_bytes()
    )
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-10])
    elif damage == "emptied":
        path.write_bytes(b"")
    else:
        content[-1] ^= 4
        path.write_bytes(content)
    kept = [] if damage in ("gone", "emptied") else [A]
    assert holds(catalogue, "one", *kept)
    assert f"{path} is damaged" in caplog.text
    assert holds(catalogue, "two", A, B)
    save(catalogue, "one", A, B)
    assert holds(Catalogue(folder), "one", A, B)
    assert rows_on_disk(folder) == 4


def test_a_damaged_database_is_made_anew(folder: Path) -> None:
    catalogue = Catalogue(folder)
    save(catalogue, "one", A, B)
    catalogue.close()
    (folder / "catalogue.sqlite").write_bytes(b"nonsense" * 1000)
    assert holds(catalogue, "one")
    save(catalogue, "one", B, C)
    assert holds(Catalogue(folder), "one", B, C)
    assert rows_on_disk(folder) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where the folder should be")
    catalogue = Catalogue(tmp_path / "blocked")
    save(catalogue, "one", A)
    assert holds(catalogue, "one")
    catalogue.record({"a": Contents(A, Stamp(1, 1, 1), 2)})
    assert catalogue.digests({"a": Stamp(1, 1, 1)}) == {}
    catalogue.prune(tmp_path, [])
    catalogue.close()


def test_unchanged_files_are_known_without_being_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "_UNSURE_NS", 0)
    catalogue = Catalogue(folder)
    names = ["a.png", "deep/b.png", os.fsdecode(b"not \xff utf-8.png")]
    found = {name: contents(write(tmp_path / name, name[:3].encode())) for name in names}
    catalogue.record(found)
    stamps = {name: Stamp.of(tmp_path / name) for name in names}
    known = Catalogue(folder).digests(stamps)
    assert known == {name: found[name].digest for name in names}
    for change in ({"size": 4}, {"mtime_ns": LONG_AGO + 1}, {"ctime_ns": LONG_AGO + 1}):
        changed = stamps | {"a.png": replace(stamps["a.png"], **change)}
        assert catalogue.digests(changed).keys() == set(names[1:])


def test_a_file_that_has_just_changed_is_read_again(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.png", b"1", time.time_ns())
    catalogue = Catalogue(folder)
    catalogue.record({"a.png": contents(path)})
    path.write_bytes(b"2")  # with a coarse clock, at the same time
    os.utime(path, ns=(0, Stamp.of(path).mtime_ns))
    assert catalogue.digests({"a.png": Stamp.of(path)}) == {}


def test_only_what_no_file_shows_is_forgotten(folder: Path, tmp_path: Path) -> None:
    catalogue = Catalogue(folder)
    there = [write(tmp_path / name, b"") for name in ("a", "b", "same as b")]
    stamp = Stamp(1, 1, 1)
    catalogue.record({p.name: Contents(A if p.name == "a" else B, stamp, 9) for p in there})
    catalogue.save({"one": ([A, B, "a caption"], vectors("one", [A, B, C]))})
    catalogue.prune(tmp_path, ["a"])  # b was not listed, and yet is there
    assert holds(catalogue, "one", A, B)
    (tmp_path / "b").unlink()
    (tmp_path / "a").unlink()
    catalogue.prune(tmp_path, [])
    assert holds(catalogue, "one", B)
    assert len(catalogue.load("one", ["a caption"])) == 1
    save(catalogue, "one", C)
    assert holds(catalogue, "one", B, C)
    assert rows_on_disk(folder) == 3  # the row of what was forgotten is used again


def test_a_moved_file_keeps_its_rows(folder: Path, tmp_path: Path) -> None:
    catalogue = Catalogue(folder)
    catalogue.record({"old": Contents(A, Stamp(1, 1, 1), 9)})
    save(catalogue, "one", A)
    write(tmp_path / "new", b"")
    catalogue.record({"new": Contents(A, Stamp(1, 1, 1), 9)})
    catalogue.prune(tmp_path, ["new"])
    assert holds(catalogue, "one", A)
    with sqlite3.connect(folder / "catalogue.sqlite") as db:
        assert db.execute("SELECT path FROM files").fetchall() == [(b"new",)]


def test_a_row_that_finds_another_owner_meanwhile_is_not_mistaken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = Catalogue(folder), Catalogue(folder)
    save(writer, "one", A, B)
    honest, asked = VectorFile.read, []

    def late(self: VectorFile, rows: list[int], sums: list[int]) -> tuple[np.ndarray, np.ndarray]:
        asked.append(rows)
        if len(asked) == 1:  # after the reader learned where A is, and before it looks there
            writer.prune(folder, [])
            save(writer, "one", C, B)
        return honest(self, rows, sums)

    monkeypatch.setattr(VectorFile, "read", late)
    found = reader.load("one", [A])
    assert found == {}
    assert "damaged" not in caplog.text
    assert holds(reader, "one", B, C)


def test_long_statements_are_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    catalogue = Catalogue(folder)
    save(catalogue, "one", A, B, C)
    assert holds(catalogue, "one", A, B, C)


def test_why_a_file_was_refused_is_known_to_the_same_reader(folder: Path, tmp_path: Path) -> None:
    why = Refusal("a.jpg", "a.jpg is damaged")
    Catalogue(folder).refuse({A: why}, "reader 1")
    again = Catalogue(folder)
    assert again.refused([A, B], "reader 1") == {A: why}
    assert again.refused([A, B], "reader 2") == {}
    assert why.of("copy.jpg") == Refusal("copy.jpg", "copy.jpg is damaged")
    again.refuse({A: Refusal("a.jpg", "a.jpg is too large")}, "reader 2")
    assert again.refused([A], "reader 1") == {}
    again.prune(tmp_path, [])  # no file shows it
    assert again.refused([A], "reader 2") == {}


def test_what_an_older_version_kept_is_there(folder: Path) -> None:
    save(Catalogue(folder), "one", A, B)
    with closing(sqlite3.connect(folder / "catalogue.sqlite")) as db:
        db.executescript(
            "DROP TABLE clips; DROP TABLE refusals; ALTER TABLE files DROP COLUMN ctime_ns; "
            "PRAGMA user_version = 1"
        )
    again = Catalogue(folder)
    assert holds(again, "one", A, B)
    again.refuse({A: Refusal("a.jpg", "no")}, "reader")
    assert Catalogue(folder).refused([A], "reader").keys() == {A}
    assert not list(folder.glob("*.damaged"))
