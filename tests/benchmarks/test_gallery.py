"""Each part of the gallery benchmark measures every method, and records what the app shows."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import gallery


@pytest.fixture
def pack(tiny_pack: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_pack, tmp_path / "pack"))


def test_query_latency_is_recorded(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gallery.main(["latency", "--pack", str(pack), "--queries", "5", "--record"]) == 0
    recorded = json.loads((pack.parent / "pack.speed.json").read_text())
    printed = [row.split() for row in capsys.readouterr().out.splitlines()[-2:]]
    assert {name: f"{ms:.2f}" for name, ms in recorded["median"].items()} == {
        name: p50 for name, p50, *_ in printed
    }
    assert recorded["queries"] == 5
    assert recorded["command"].startswith("python -m benchmarks.gallery latency --pack")


def test_the_gallery_finds_what_brute_force_finds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["index", "--sizes", "600", "--rules", "max", "sinkhorn", "--queries", "3"]
    assert gallery.main(arguments) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[-5:]]
    assert rows[0][:5] == ["rule", "images", "store", "MB", "build"]
    assert [row[:2] for row in rows[1:]] == [["max", "600"]] * 2 + [["sinkhorn", "600"]] * 2
    for row in rows[2::2]:
        recall, p50, p95, rate = map(float, row[-4:])
        assert recall == 1.0
        assert 0 < p50 <= p95
        assert rate > 0
