"""The benchmark times every method, of a pack and in the papers' sizes."""

from pathlib import Path

import pytest

from benchmarks import evidence
from models import METHODS


def rows(printed: str) -> dict[str, list[float]]:
    return {row.split()[0]: [float(x) for x in row.split()[1:]] for row in printed.splitlines()[2:]}


def test_every_method_gets_a_row(tiny_pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evidence.main(["--pack", str(tiny_pack), "--runs", "3", "--threads", "1"]) == 0
    found = rows(capsys.readouterr().out)
    assert found.keys() == {"vsepp", "vse_infty"}
    for median, least, baseline, off in found.values():
        assert 0 < least <= median
        assert baseline > 0
        assert off < 1e-4


def test_all_methods_are_timed_in_the_papers_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evidence, "IMAGE_DIM", 32)  # smaller, for a test
    monkeypatch.setattr(evidence, "HITS", 2)
    assert evidence.main(["--papers", "--runs", "1", "--threads", "1"]) == 0
    found = rows(capsys.readouterr().out)
    assert found.keys() == METHODS.keys()
    assert all(off < 1e-4 for *_, off in found.values())


def test_no_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evidence.main(["--runs", "0"])
    assert "at least 1, not 0" in capsys.readouterr().err
