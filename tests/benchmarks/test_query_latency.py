"""The benchmark runs and measures every method."""

import shutil
from pathlib import Path

import pytest

from app.packs import speed
from benchmarks import query_latency
from export.pack.reading import load_info
from tests.app.conftest import IMAGES


def test_every_method_gets_a_row(tiny_pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert query_latency.main(["--pack", str(tiny_pack), "--queries", "5", "--fresh"]) == 0
    conditions, _, _, head, *rows = capsys.readouterr().out.splitlines()
    assert f"{IMAGES} pictures" in conditions
    assert head.split()[:3] == ["method", "p50", "ms"]
    for row, method in zip(rows, ("vsepp", "vse_infty"), strict=True):
        name, p50, p95, encoder, _ = row.split()
        assert name == method
        assert 0 < float(p50) <= float(p95)
        assert float(encoder) > 0


def test_the_medians_can_be_kept_for_the_app(
    tiny_pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = shutil.copytree(tiny_pack, tmp_path / "pack")
    assert query_latency.main(["--pack", str(pack), "--queries", "5", "--fresh", "--record"]) == 0
    kept = speed.recorded(load_info(pack))
    assert kept is not None
    printed = [row.split() for row in capsys.readouterr().out.splitlines()[-2:]]
    assert {name: f"{ms:.2f}" for name, ms in kept.median.items()} == {
        name: p50 for name, p50, *_ in printed
    }
    assert (kept.queries, kept.pictures) == (5, IMAGES)
    assert kept.command.startswith("python -m benchmarks.query_latency --pack")


def test_no_queries_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        query_latency.main(["--queries", "0"])
    assert "--queries must be at least 1, not 0" in capsys.readouterr().err
