"""Indexing is measured beside the bare encoder."""

from pathlib import Path

import pytest
from PIL import Image

from benchmarks import indexing


def rows_of(printed: str) -> dict[str, list[float]]:
    lines = printed.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("medians"))
    return {row[:40].strip(): [float(x) for x in row[40:68].split()] for row in lines[start + 1 :]}


def test_images(tiny_pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(5):
        Image.new("RGB", (40, 30), (40 * i, 90, 30)).save(tmp_path / f"{i}.png")
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
    arguments = ["--pack", str(tiny_pack), "--gallery", str(tmp_path), "--repeats", "1"]
    assert indexing.main([*arguments, "--images", "6"]) == 0
    rows = rows_of(capsys.readouterr().out)
    bare, _ = rows["bare encoder"]
    assert rows["the app, one method"][0] >= rows["the app, all methods"][0]
    for rate, ratio in rows.values():
        assert ratio == pytest.approx(rate / bare, abs=0.02)
