"""The curves of runs, drawn from their logs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training import plot
from training.loop.logs import LOG, STEPS, read_rows, write_rows

TRAINING = Path(__file__).parents[2] / "app" / "bundled" / "scenes" / "training"


def write_run(folder: Path) -> Path:
    """Two epochs of three steps; of every second one a row."""
    write_rows(folder / LOG, [{"epoch": 1, "loss": 3, "rsum": 10}, {"epoch": 2, "loss": 2}])
    steps = [(2, 1, 4.0), (4, 2, 3.0), (6, 2, 2.0)]
    rows = [{"step": s, "epoch": e, "rate": 0.1, "loss": x, "grad_norm": 1} for s, e, x in steps]
    write_rows(folder / STEPS, rows)
    return folder


def test_steps_lie_between_epochs(tmp_path: Path) -> None:
    found = plot.read_curves(write_run(tmp_path), "a")
    assert found.score == "rsum"
    assert found.points["loss"] == [(2 / 3, 4.0), (4 / 3, 3.0), (2.0, 2.0)]
    assert found.points["score"] == [(1.0, 10.0)]  # the second epoch was not validated


@pytest.mark.parametrize("name", sorted(path.name for path in TRAINING.iterdir()))
def test_the_logs_that_packs_bring_are_read(name: str) -> None:
    found = plot.read_curves(TRAINING / name, name)
    rows = read_rows(TRAINING / name / LOG)
    assert [at for at, _ in found.points["score"]] == [i + 1.0 for i in range(len(rows))]
    assert found.score == ("object_r_precision" if name == "backbone" else "rsum")


def test_runs_are_drawn_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    runs = [str(TRAINING / "mv_vse"), str(write_run(tmp_path / "run"))]
    plot.main([runs[0], "--out", str(one)])
    plot.main([*runs, "--out", str(two)])
    assert f"mv_vse, run: {two}" in capsys.readouterr().out
    drawn = [np.asarray(Image.open(path).convert("RGB"), int) for path in (one, two)]
    assert drawn[0].shape == drawn[1].shape
    assert (np.ptp(drawn[0], axis=2) > 60).sum() > 300  # coloured lines
    assert (drawn[0] != drawn[1]).any()
    plot.main([runs[1]])
    plot.main([runs[1], runs[0]])
    assert (tmp_path / "run" / "curves.png").is_file()
    assert (tmp_path / "curves.png").is_file()  # never where one happens to be


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no .*log\.csv; name a run"):
        plot.main([str(tmp_path)])
    (tmp_path / LOG).write_text("epoch,loss\n1,many\n")
    with pytest.raises(SystemExit, match="are damaged"):
        plot.main([str(tmp_path), "--out", str(tmp_path / "x.png")])
