"""The evaluation command on the bundled pack: its tables, its files, and what it refuses.

A sample of the pack's scenes is measured by default, see `sample.py`, and all by `make soak`.
"""

import csv
import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from polyview.export.pack.reading import load_info
from polyview.models.files import sha256_of
from polyview.training.data.open_split import from_pack
from polyview.training.evaluate import main
from polyview.training.evaluation.metrics import retrieval_metrics, retrieval_ranks
from tests.training.sample import BUNDLED, SCENES, read_numbers, write_sample

METHODS = list(json.loads((BUNDLED / "pack.json").read_text("utf-8"))["methods"])


class Report(NamedTuple):
    """One evaluation with most options: `pack/`, `scores.npz`, `trec/`, its output and its JSON."""

    folder: Path
    pack: Path
    checksum: str
    printed: str
    measured: dict[str, Any]
    rows: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("report")
    pack = write_sample(folder / "scenes")
    checksum = sha256_of(pack / "pack.json")
    ensembles = ["--ensemble", "vsepp+vse_infty", "--ensemble", "vse_infty+vsepp"]
    compare = ["--compare", "vse_infty,vsepp", "--compare", "vsepp,vsepp"]
    out = ["--write", "--json", str(folder / "rows.json")]
    out += ["--scores", str(folder / "scores.npz"), "--trec", str(folder / "trec")]
    options = ["--all", "--split", "test", "--views", *ensembles, *compare, *out]
    with redirect_stdout(io.StringIO()) as printed:
        main(["--pack", str(pack), *options])
    measured = json.loads((folder / "rows.json").read_text())
    return Report(folder, pack, checksum, printed.getvalue(), measured, measured["methods"])


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
    assert list(report.rows) == [*METHODS, "vsepp+vse_infty", "vse_infty+vsepp"]
    assert report.rows["vse_infty+vsepp"] == report.rows["vsepp+vse_infty"]
    assert all(values["rsum"] >= report.rows["vsepp"]["rsum"] for values in report.rows.values())


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_bundled_numbers_are_reproduced(tmp_path: Path) -> None:
    options = ("--all", "--split", "test", "--views", "--evidence", "--foils")
    main(["--pack", str(BUNDLED), *options, "--json", str(tmp_path / "rows")])
    rows = json.loads((tmp_path / "rows").read_text())["methods"]
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


def test_readme_states_the_packs_numbers() -> None:
    readme = (BUNDLED.parents[2] / "README.md").read_text("utf-8")
    methods = load_info(BUNDLED, verify=False).methods
    for name, entry in methods.items():
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}` | ")
                   and line.count("|") > 8)  # fmt: skip
        cells = next(csv.reader(io.StringIO(row), delimiter="|"))
        assert entry.metrics is not None
        rsum = f"{entry.metrics.values['rsum']:.1f}"
        assert rsum in {cell.strip(" *") for cell in cells}, f"README: another rsum of {name}"


def test_json_holds_differences_and_how_they_were_measured(report: Report) -> None:
    measured = report.measured
    assert measured["command"].startswith(f"python -m polyview evaluate --pack {report.pack} --all")
    assert (measured["split"], measured["seed"]) == ("test", 0)
    assert measured["sources"] == {str(report.pack): report.checksum}
    first, same = measured["differences"]
    assert (first["first"], first["second"], first["kind"]) == ("vse_infty", "vsepp", "")
    expected = read_numbers()["vse_infty"]["rsum"] - report.rows["vsepp"]["rsum"]
    assert first["difference"] == pytest.approx(expected, abs=0.6)  # as the numbers are
    assert 0 < first["low"] < first["difference"] < first["high"]
    assert (same["low"], same["high"]) == (0, 0)
    number = r"([-+]\d+\.\d)"
    pattern = rf"^vse_infty - vsepp: rsum {number}, 95 % interval \[{number}, {number}\]"
    match = re.search(pattern, report.printed, re.MULTILINE)
    assert match is not None
    printed = [float(value) for value in match.groups()]
    assert printed == pytest.approx([first[key] for key in ("difference", "low", "high")], abs=0.06)


def test_scores_and_ranks_can_be_read_again(report: Report) -> None:
    data = np.load(report.folder / "scores.npz")
    assert data["vsepp"].shape == (SCENES, 5 * SCENES)
    assert data["captions"][5] == from_pack(report.pack, "test").captions[5]
    assert data["files"][1].endswith(".webp")
    for name, row in report.rows.items():
        assert retrieval_metrics(data[name], data["image_of"])["rsum"] == row["rsum"]
        i2t, t2i = retrieval_ranks(data[name], data["image_of"])
        assert np.array_equal(data[f"{name}:i2t_ranks"], i2t)
        assert np.array_equal(data[f"{name}:t2i_ranks"], t2i)


@pytest.mark.parametrize("way", ["t2i", "i2t"])
def test_trec_runs_give_the_same_recall(report: Report, way: str) -> None:
    right: dict[str, set[str]] = {}
    for line in (report.folder / f"trec/{way}.qrels").read_text().splitlines():
        query, zero, item, grade = line.split()
        assert (zero, grade) == ("0", "1")
        right.setdefault(query, set()).add(item)
    lines = (report.folder / f"trec/vse_infty.{way}.trec").read_text().splitlines()
    runs: dict[str, list[tuple[str, int, float]]] = {}
    for line in lines:
        query, q0, item, rank, score, tag = line.split()
        assert (q0, tag) == ("Q0", "vse_infty")
        runs.setdefault(query, []).append((item, int(rank), float(score)))
    queries = {"t2i": 5 * SCENES, "i2t": SCENES}[way]
    assert len(runs) == queries
    for items in runs.values():
        assert [rank for _, rank, _ in items] == list(range(1, 101))
        assert all(a[2] >= b[2] for a, b in pairwise(items))
    if way == "t2i":  # the right images of a caption are all that satisfy it, its own among them
        data = np.load(report.folder / "scores.npz")
        right = {f"t{text}": {f"i{row}"} for text, row in enumerate(data["image_of"])}
    first = np.mean([runs[query][0][0] in items for query, items in right.items()])
    if way == "t2i":
        assert 100 * first == pytest.approx(report.rows["vse_infty"]["t2i_r1"], abs=0.2)
    else:
        assert 100 * first >= report.rows["vse_infty"]["i2t_r1"]


def test_numbers_of_methods_are_stored(report: Report) -> None:
    before, after = load_info(BUNDLED).methods, load_info(report.pack).methods
    assert list(after) == list(before)
    for name, method in after.items():
        assert method.metrics is not None
        assert method.metrics.values == pytest.approx(report.rows[name])
        assert method.metrics.command.endswith(f"--method {name} --split test --views")
        assert replace(method, metrics=None) == replace(before[name], metrics=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--method", "vse_infy"],
            'there is no method "vse_infy"; did you mean "vse_infty"? Choose one of\n  vsepp\n',
        ),
        (["--ensemble", "vsepp+nothing"], 'there is no method "nothing"; choose one of\n  vsepp\n'),
        (["--compare", "vsepp"], '--compare takes two names as in "a,b", not "vsepp"'),
        (["--compare", "vsepp,nothing"], 'there is no method "nothing"'),
        (["--ensemble", "pvse+pvse"], 'the ensemble "pvse+pvse" names a method twice'),
        (["--split", "val"], 'for "val" add --data DIR'),
        (["--data", "nowhere"], "nowhere"),
        (["--folds", "7"], "7 folds do not divide 1000 images"),
        (["--nnn"], "add --data DIR"),
        (["--pack", str(BUNDLED) + "_moving", "--foils"], "are made of rendered scenes"),
    ],
)
def test_bad_requests_get_a_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        main(["--pack", str(BUNDLED), *arguments])
