"""Rows on disk: they come back as they were, or are known not to."""

from pathlib import Path

import numpy as np
import pytest

from app.gallery.embedding_cache import VectorFile, checksums

SHAPE = (2, 3)


@pytest.fixture
def file(tmp_path: Path) -> VectorFile:
    return VectorFile(tmp_path / "deep" / "rows.f32", SHAPE)


def draw(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, *SHAPE)).astype(np.float32)


@pytest.mark.parametrize("rows", [[0], [0, 1, 2], [4], [1, 2, 5, 7, 8, 9]])
def test_what_is_written_is_read(file: VectorFile, rows: list[int]) -> None:
    values = draw(len(rows))
    file.write(rows, values)
    read, whole = file.read(rows, checksums(values))
    assert whole.all()
    np.testing.assert_array_equal(read, values)
    order = np.random.default_rng(1).permutation(len(rows))
    some, whole = file.read(
        np.asarray(rows)[order].tolist(), np.asarray(checksums(values))[order].tolist()
    )
    assert whole.all()
    np.testing.assert_array_equal(some, values[order])


def test_the_file_is_the_rows_and_nothing_else(file: VectorFile) -> None:
    values = draw(4)
    file.write(range(4), values)
    assert file.path.read_bytes() == values.tobytes()


def test_rows_that_never_were_are_not_whole(file: VectorFile) -> None:
    assert not file.read([0, 7], [0, 0])[1].any()
    values = draw(2)
    file.write([0, 3], values)
    sums = checksums(values)
    _, whole = file.read([0, 1, 3, 4], [sums[0], sums[0], sums[1], sums[1]])
    assert whole.tolist() == [True, False, True, False]


def test_damage_and_strangers_are_noticed(file: VectorFile) -> None:
    values = draw(4)
    file.write(range(4), values)
    content = bytearray(file.path.read_bytes())
    content[30] ^= 1  # within row 1
    file.path.write_bytes(content[:-1])
    _, whole = file.read(range(4), checksums(values))
    assert whole.tolist() == [True, False, True, False]
    file.write([0], draw(1))
    assert not file.read([0], checksums(values)[:1])[1].any()


def test_nothing_is_asked(file: VectorFile) -> None:
    values, whole = file.read([], [])
    assert values.shape == (0, *SHAPE)
    assert len(whole) == 0
