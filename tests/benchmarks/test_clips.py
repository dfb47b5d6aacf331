"""The benchmark of clips measures decoding, encoding and both at once on the same clips."""

from pathlib import Path

import pytest

from benchmarks import clips


def test_rates_and_ratios_are_printed(tiny_pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--pack", str(tiny_pack), "--clips", "1", "--seconds", "1", "--repeats", "1"]
    assert clips.main(given) == 0
    about, _, head, *rows = capsys.readouterr().out.splitlines()
    assert "1 clips of 1 s" in about
    assert head.split() == ["seconds", "frames", "looked", "at/s"]
    rates = {row.split()[0]: [float(value) for value in row.split()[1:]] for row in rows[:3]}
    assert rates.keys() == {"decoding", "encoding", "indexing"}
    for seconds, rate in rates.values():
        assert seconds * rate == pytest.approx(clips.RATE, rel=0.2, abs=0.006 * rate)
    indexing = rates["indexing"][0]
    ratio = float(rows[3].removeprefix("indexing / decoding: ").split()[0])
    assert ratio == pytest.approx(indexing / rates["decoding"][0], rel=0.1)
