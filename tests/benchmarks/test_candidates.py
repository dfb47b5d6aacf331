"""The benchmark scores everything with every method, and keeps what it measured for the app."""

from pathlib import Path

import pytest

from app.packs.candidates import record, recorded
from benchmarks import candidates
from export.pack.reading import load_info
from training.loop.config import RECIPES


def test_every_method_is_measured_and_kept(
    tiny_pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--sizes", "40", "20", "--queries", "2", "--pack", str(tiny_pack), "--record"]
    try:
        assert candidates.main(arguments) == 0
        found = recorded(load_info(tiny_pack))
    finally:
        record(tiny_pack).unlink(missing_ok=True)
    assert found is not None
    assert found.images == (20, 40)
    assert tuple(found.median) == candidates.WHICH
    assert found.command == f"python -m benchmarks.candidates {' '.join(arguments)}"
    assert "threads: " in found.hardware
    _, _, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["method", "20", "40"]
    for row, (name, times) in zip(rows, found.median.items(), strict=True):
        assert row.split() == [name, *(f"{ms:.2f}" for ms in times)]


def test_all_scene_recipes_of_methods_are_measured() -> None:
    methods = {path.stem for path in (RECIPES / "scenes").glob("*.toml")} - {"backbone"}
    assert set(candidates.WHICH) == methods


def test_nothing_to_measure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        candidates.main(["--queries", "0"])
    assert "--sizes and --queries must be at least 1" in capsys.readouterr().err
