"""The lens benchmark measures two ways that give the same numbers."""

import pytest

from benchmarks import lens


def test_a_row_is_printed_for_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert lens.main(["--sizes", "5000", "100", "--copied-up-to", "100"]) == 0  # they are equal
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [" ".join(row[2:-2]) for row in rows] == [
        f"{what} {way}"
        for ways in (["in chunks"], ["in chunks", "copied"])
        for what in ("lens", "wins", "similarity")
        for way in ways
    ]
    assert int(rows[0][1]) >= 5000 * lens.VIEWS * lens.DIM * 4 / 2**20
