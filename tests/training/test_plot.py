"""The curves of runs, drawn from their logs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.training import plot
from polyview.training.loop.loop import LOG, read_rows, write_rows

TRAINING = Path(__file__).parents[2] / "app" / "bundled" / "scenes" / "training"


def write_run(folder: Path) -> Path:
    """Two epochs, of which the first was validated."""
    first = {"epoch": 1, "loss": 3, "rsum": 10, "rate": 0.1, "grad_norm": 1}
    write_rows(folder / LOG, [first, {"epoch": 2, "loss": 2, "rate": 0.1, "grad_norm": 1}])
    return folder


def test_an_epoch_without_a_validation_has_no_score(tmp_path: Path) -> None:
    curves = plot.read_curves(write_run(tmp_path))
    assert curves["loss"] == [(1.0, 3.0), (2.0, 2.0)]
    assert curves["rsum"] == [(1.0, 10.0)]


@pytest.mark.parametrize("name", sorted(path.name for path in TRAINING.iterdir()))
def test_the_logs_of_bundled_packs_are_read(name: str) -> None:
    curves = plot.read_curves(TRAINING / name)
    score = "object_r_precision" if name == "backbone" else "rsum"
    assert len(curves[score]) == len(read_rows(TRAINING / name / LOG))


def test_runs_are_drawn_together(tmp_path: Path) -> None:
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    runs = [str(TRAINING / "mv_vse"), str(write_run(tmp_path / "run"))]
    plot.main([runs[0], "--out", str(first)])
    plot.main([*runs, "--out", str(second)])
    drawn = [np.asarray(Image.open(path).convert("RGB"), int) for path in (first, second)]
    assert (np.ptp(drawn[0], axis=2) > 60).sum() > 300  # coloured lines
    assert drawn[0].shape != drawn[1].shape or (drawn[0] != drawn[1]).any()
    plot.main([runs[1]])
    assert (tmp_path / "run" / "curves.png").is_file()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="name a run that has finished an epoch"):
        plot.main([str(tmp_path)])
    (tmp_path / LOG).write_text("epoch,loss\n1,many\n")
    with pytest.raises(SystemExit, match="is damaged"):
        plot.main([str(tmp_path), "--out", str(tmp_path / "x.png")])
