"""What the evaluation command says beyond the plain table, on the bundled pack.

A sample of its scenes is measured by default, see `sample.py`, and all of them by `make soak`.
"""

import io
import json
import math
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from export.pack.reading import load_info
from export.runtime import Runtime
from tests.training.sample import BUNDLED, SCENES, read_numbers, write_sample
from training.data.pack_gallery import from_pack
from training.data.split import SeenObjects, Split
from training.evaluate import main
from training.evaluation.evaluator import image_features, mentioned_cells, split_views, view_metrics
from training.evaluation.report import print_views

METHODS = list(json.loads((BUNDLED / "pack.json").read_text("utf-8"))["methods"])


@dataclass(frozen=True)
class Report:
    """One run with everything asked for: the pack it wrote to, what it printed and stored."""

    pack: Path
    printed: str
    progress: str
    rows: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("report")
    pack = write_sample(folder / "scenes")
    ensembles = ["--ensemble", "vsepp+vse_infty", "--ensemble", "vse_infty+vsepp"]
    compare = ["--compare", "vse_infty,vsepp", "--compare", "vsepp,vsepp"]
    out = ["--write", "--progress", "--json", str(folder / "rows.json")]
    asked = ["--all", "--split", "test", "--views", *ensembles, *compare, *out]
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as progress:
        main(["--pack", str(pack), *asked])
    rows = json.loads((folder / "rows.json").read_text())
    return Report(pack, printed.getvalue(), progress.getvalue(), rows)


def test_numbers_are_reproduced(report: Report) -> None:
    numbers = read_numbers()
    assert list(numbers) == METHODS
    for name, values in numbers.items():
        # to the printed digit; another processor may swap two equal scores, which moves 0.1 to 0.5
        assert report.rows[name] == pytest.approx(values, abs=0.6), name
    rows = [line.strip("| ").split(" | ") for line in report.printed.splitlines() if "|" in line]
    table = {row[0]: dict(zip(rows[0], row, strict=False)) for row in rows[2:]}
    for name, values in report.rows.items():
        assert float(table[name]["rsum"]) == pytest.approx(values["rsum"], abs=0.051)
    assert all(report.rows[name]["rsum"] >= report.rows["vsepp"]["rsum"] for name in METHODS)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_bundled_numbers_are_reproduced(tmp_path: Path) -> None:
    asked = ("--all", "--split", "test", "--views", "--evidence")
    main(["--pack", str(BUNDLED), *asked, "--json", str(tmp_path / "rows")])
    rows = json.loads((tmp_path / "rows").read_text())
    for name, method in load_info(BUNDLED).methods.items():
        assert method.metrics is not None
        values = method.metrics.values
        assert rows[name].keys() == values.keys(), name
        # to the printed digit; another processor may swap two equal scores, which moves 0.02 to 0.1
        assert rows[name] == pytest.approx(values, abs=0.3), name
        areas = {key for key in values if key.startswith(("deletion", "insertion"))}
        assert {key: rows[name][key] for key in areas} == pytest.approx(
            {key: values[key] for key in areas}, abs=0.005
        ), name


def test_stated_numbers_are_in_order() -> None:
    stated = {name: m.metrics for name, m in load_info(BUNDLED, verify=False).methods.items()}
    rsum = {name: metrics.values["rsum"] for name, metrics in stated.items() if metrics}
    assert list(rsum) == METHODS
    assert rsum["vse_infty"] >= 400
    assert min(rsum, key=rsum.__getitem__) == "vsepp"


def test_progress_is_told(report: Report) -> None:
    # pictures first, then each method's captions and scores, then each row's numbers
    steps = [json.loads(line) for line in report.progress.splitlines()]
    # steps, by 32 pictures and 256 captions
    pictures, captions = math.ceil(SCENES / 32), math.ceil(5 * SCENES / 256)
    doing = ["pictures"] * pictures
    doing += [name for name in METHODS for _ in range(captions + 1)] + list(report.rows)
    assert [step["doing"] for step in steps] == doing
    assert [step["done"] for step in steps] == list(range(1, len(doing) + 1))
    assert {step["total"] for step in steps} == {len(doing)}


def test_an_ensemble_is_a_row(report: Report) -> None:
    assert list(report.rows) == [*METHODS, "vsepp+vse_infty", "vse_infty+vsepp"]
    assert report.rows["vsepp+vse_infty"]["rsum"] > report.rows["vsepp"]["rsum"]
    assert report.rows["vse_infty+vsepp"] == report.rows["vsepp+vse_infty"]
    assert "| vsepp+vse_infty |" in report.printed


def test_differences_come_with_an_interval(report: Report) -> None:
    number = r"([-+]\d+\.\d)"
    pattern = rf"^vse_infty - vsepp: rsum {number}, 95 % interval \[{number}, {number}\]"
    found = re.search(pattern, report.printed, re.MULTILINE)
    assert found is not None
    difference, low, high = map(float, found.groups())
    expected = read_numbers()["vse_infty"]["rsum"] - report.rows["vsepp"]["rsum"]
    assert difference == pytest.approx(expected, abs=0.6)  # as the numbers are
    assert 0 < low < difference < high
    assert "vsepp - vsepp: rsum +0.0, 95 % interval [+0.0, +0.0]" in report.printed


def test_views_are_measured_and_beat_chance(report: Report) -> None:
    row = report.rows["vsepp"]
    assert row["wins_1"] == 100
    assert row["pointing"] == row["pointing_1"] > row["pointing_chance"] + 5
    assert row["mass"] == row["mass_1"] > row["mass_chance"] + 2
    assert f"| vsepp, the winning view |  | {row['pointing']:.1f} |" in report.printed
    assert "pointing" not in report.rows["vsepp+vse_infty"]


def test_numbers_of_methods_are_stored(report: Report) -> None:
    before, after = load_info(BUNDLED).methods, load_info(report.pack).methods
    assert list(after) == list(before)
    for name, method in after.items():
        assert method.metrics is not None
        assert method.metrics.values == pytest.approx(report.rows[name])
        assert method.metrics.command.endswith(f"--method {name} --split test --views")
        assert replace(method, metrics=None) == replace(before[name], metrics=None)


def test_faithfulness_needs_to_know_where_objects_are() -> None:
    whole, runtime = from_pack(BUNDLED, "test"), Runtime.load(BUNDLED, "cpu")
    assert whole.objects is not None
    images = [whole.images[i] for i in range(8)]
    blind = Split(whole.captions[:40], whole.image_of[:40], images)
    masks = [whole.objects.masks[i] for i in range(8)]
    seeing = replace(blind, objects=SeenObjects(masks, whole.objects.mentions[:40]))
    views = split_views(runtime, "vsepp", blind, image_features(runtime, blind), attention=True)
    wins = {"wins_1": 100.0, "wins_entropy": 0.0}
    covered = mentioned_cells(runtime, blind)
    assert covered is None
    assert view_metrics(runtime, "vsepp", blind, views, covered) == wins
    covered = mentioned_cells(runtime, seeing)
    assert covered is not None
    assert covered.shape == (40, 49)
    assert "pointing" in view_metrics(runtime, "vsepp", seeing, views, covered)


def test_what_cannot_be_measured_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_views({"twins": {"wins_1": 75, "wins_2": 25, "wins_entropy": 0.81, "view_cosine": 0.5}})
    printed = capsys.readouterr().out
    assert "| twins 2 | 25.0 |  |  |" in printed
    assert "twins: entropy of the wins 0.81 of 1.00 bits, mean cosine" in printed
    assert "twins: faithfulness was not measured; it needs a mask" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ensemble", "vsepp+nothing"], 'has no method "nothing"; choose one of'),
        (["--compare", "vsepp"], '--compare takes two names as in "a,b", not "vsepp"'),
        (["--compare", "vsepp,nothing"], 'has no method "nothing"; choose one of'),
    ],
)
def test_bad_requests_get_a_sentence(report: Report, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        main(["--pack", str(report.pack), "--method", "vsepp", *arguments])
