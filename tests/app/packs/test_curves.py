"""How methods were trained, as the Benchmark tab draws it from the logs that a pack brings."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.blocks.tabs.benchmark.curves import curve, trainings
from app.packs import curves
from app.settings import BUNDLED
from export.pack.reading import load_info

PACK = BUNDLED / "scenes"


def test_trainings_are_drawn_from_the_logs_of_the_pack() -> None:
    found = curves.load(load_info(PACK))
    assert {training.name for training in found} == set(load_info(PACK).methods)
    titles = {training.name: f"<{training.name}>" for training in found}
    html = trainings(found, titles)
    assert html.count("<polyline") == 2 * len(found)
    assert "<mvam>" not in html
    mv_vse = next(training for training in found if training.name == "mv_vse")
    log = (PACK / "training" / "mv_vse" / "log.csv").read_text().splitlines()
    assert mv_vse.epochs == len(log) - 1
    assert [epoch for epoch, _ in mv_vse.rsum] == list(range(1, mv_vse.epochs + 1))
    column = log[0].split(",").index("rsum")
    first, last = (float(log[row].split(",")[column]) for row in (1, -1))
    assert f"{first:.1f} → {last:.1f}" in html
    assert trainings([], {}) == ""


def test_a_curve_rises_from_edge_to_edge() -> None:
    drawn = curve(((1, 100.0), (2, 300.0), (4, 500.0)))
    assert drawn.line == "3.0,25.0 41.0,14.0 117.0,3.0"  # SVG counts downwards
    assert drawn.end == (117.0, 3.0)
    falls = curve(((1, 100.0), (2, 10.0), (3, 1.0)), logarithmic=True)
    assert falls.line == "3.0,3.0 60.0,14.0 117.0,25.0"
    assert curve(((1, 5.0),)).line == "60.0,14.0"
    assert curve(((1, 5.0), (2, 0.0)), logarithmic=True).words == "5 → 0"


@pytest.mark.parametrize(
    "content",
    [b"", b"epoch,loss\n0,1\n", b"epoch,loss,rsum\n0,<b>,3\n", b"\xff\xfe", b"loss,rsum\nnan,inf\n",
     b"loss,rsum\n1,2\n" + b"1,2\n" * 2**19],
    ids=["empty", "no rsum", "no number", "no text", "not finite", "too long"],
)  # fmt: skip
def test_a_log_that_is_none_draws_nothing(tiny_pack: Path, tmp_path: Path, content: bytes) -> None:
    info = replace(load_info(tiny_pack), folder=tmp_path)
    path = tmp_path / "training" / "vsepp" / "log.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert curves.load(info) == []
    path.write_text("epoch,loss,rsum\n0,3,\n1,2,20\n")
    (found,) = curves.load(info)
    assert (found.loss, found.rsum, found.epochs) == (((1, 3.0), (2, 2.0)), ((2, 20.0),), 2)
