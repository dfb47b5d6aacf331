"""The command `evaluate` on the bundled pack: tables, files, evidence and error messages.

The tests use a sample of the pack (`sample.py`); `make soak` evaluates the whole pack.
"""

import csv
import io
import json
import random
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from polyview.export.pack.reading import load_info
from polyview.models.files import sha256_of
from polyview.training.data.image_files import ImageFiles
from polyview.training.data.open_split import open_pack_gallery
from polyview.training.evaluate import main
from polyview.training.evaluation.metrics import retrieval_metrics, retrieval_ranks
from tests.training.conftest import write_photographs
from tests.training.sample import BUNDLED, SCENES, TABLES, read_numbers, write_sample


class Report(NamedTuple):
    """An evaluation with most options; `folder` has `scenes/`, `scores.npz` and `trec/`."""

    folder: Path
    printed: str
    measured: dict[str, Any]
    rows: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("report")
    pack = write_sample(folder / "scenes")
    ensembles = ["--ensemble", "vsepp+vse_infty", "--ensemble", "vse_infty+vsepp"]
    compare = ["--compare", "vse_infty,vsepp", "--compare", "vsepp,vsepp"]
    out = ["--json", str(folder / "rows.json")]
    out += ["--scores", str(folder / "scores.npz"), "--trec", str(folder / "trec")]
    options = ["--all", "--split", "test", *TABLES, *ensembles, *compare, *out]
    with redirect_stdout(io.StringIO()) as printed:
        main(["--pack", str(pack), *options])
    measured = json.loads((folder / "rows.json").read_text())
    return Report(folder, printed.getvalue(), measured, measured["methods"])


def test_numbers_are_reproduced_and_printed(report: Report) -> None:
    numbers, rows = read_numbers(), report.rows
    methods = list(load_info(BUNDLED, verify=False).methods)
    assert list(numbers) == methods
    for name, values in numbers.items():
        row = rows[name]
        assert row.keys() == values.keys()
        for key, value in values.items():
            # another processor may swap two equal scores, which changes a metric by 0.4, or the
            # order of one pair of foils
            within = 100 / values[f"{key}_pairs"] if f"{key}_pairs" in values else 0.6
            if key.endswith("_margin"):
                kind = key.removesuffix("_margin")
                share, pairs = row[kind] / 100, row[f"{kind}_pairs"]
                value, within = 196 * (share * (1 - share) / pairs) ** 0.5, 0.1  # 95 % interval
            assert row[key] == pytest.approx(value, abs=within), (name, key)
    lines = [line.strip("| ").split(" | ") for line in report.printed.splitlines() if "|" in line]
    measured = lines[2 : 4 + len(methods)]
    table = {line[0]: dict(zip(lines[0], line, strict=True)) for line in measured}
    assert list(table) == list(rows) == [*methods, "vsepp+vse_infty", "vse_infty+vsepp"]
    for name, values in rows.items():
        assert float(table[name]["rsum"]) == pytest.approx(values["rsum"], abs=0.051)
    assert rows["vse_infty+vsepp"] == rows["vsepp+vse_infty"]
    assert all(values["rsum"] >= rows["vsepp"]["rsum"] for values in rows.values())
    title = next(n for n, line in enumerate(lines) if line[0] == "true above false, %")
    kind = lines[title][1].replace(" ", "_")
    (foils,) = [line for line in lines[title:] if line[0] == "vse_infty"]
    assert foils[1].startswith(f"{rows['vse_infty'][f'foil_{kind}']:.1f} ± ")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_bundled_numbers_are_reproduced(tmp_path: Path) -> None:
    options = ("--all", "--split", "test", "--views", "--evidence", "--foils")
    main(["--pack", str(BUNDLED), *options, "--json", str(tmp_path / "rows")])
    rows = json.loads((tmp_path / "rows").read_text())["methods"]
    for name, method in load_info(BUNDLED).methods.items():
        assert method.metrics is not None
        values = method.metrics.values
        values = {key: values[key] for key in values if not key.startswith("deletion_renewed")}
        assert rows[name].keys() == values.keys(), name
        # another processor may swap two equal scores, which changes a metric by 0.02 to 0.1
        assert rows[name] == pytest.approx(values, abs=0.3), name
        areas = {key for key in values if key.startswith(("deletion", "insertion"))}
        assert {key: rows[name][key] for key in areas} == pytest.approx(
            {key: values[key] for key in areas}, abs=0.005
        ), name


def test_json_has_differences_command_and_sources(report: Report) -> None:
    measured, pack = report.measured, report.folder / "scenes"
    assert measured["command"].startswith(f"python -m polyview evaluate --pack {pack} --all")
    assert (measured["split"], measured["seed"]) == ("test", 0)
    assert measured["sources"] == {str(pack): sha256_of(pack / "pack.json")}
    first, same = measured["differences"]
    assert (first["first"], first["second"], first["kind"]) == ("vse_infty", "vsepp", "")
    expected = read_numbers()["vse_infty"]["rsum"] - report.rows["vsepp"]["rsum"]
    assert first["difference"] == pytest.approx(expected, abs=0.6)  # the tolerance of the metrics
    assert 0 < first["low"] < first["difference"] < first["high"]
    assert (same["low"], same["high"]) == (0, 0)
    values = (f"{first[key]:+.1f}" for key in ("difference", "low", "high"))
    line = "vse_infty - vsepp: rsum {}, 95 % interval [{}, {}]".format(*values)
    assert line in report.printed


def test_files_of_scores_and_ranks(report: Report) -> None:
    """`test_our_own_run_file` reads the run files of images."""
    data = np.load(report.folder / "scores.npz")
    assert data["vsepp"].shape == (SCENES, 5 * SCENES)
    assert data["captions"][5] == open_pack_gallery(report.folder / "scenes", "test").captions[5]
    assert data["files"][1].endswith(".webp")
    for name, row in report.rows.items():
        assert retrieval_metrics(data[name], data["image_of"])["rsum"] == row["rsum"]
        i2t, t2i = retrieval_ranks(data[name], data["image_of"])
        assert np.array_equal(data[f"{name}:i2t_ranks"], i2t)
        assert np.array_equal(data[f"{name}:t2i_ranks"], t2i)
    right = (report.folder / "trec/i2t.qrels").read_text().splitlines()
    assert {f"i{row} 0 t{text} 1" for text, row in enumerate(data["image_of"])} <= set(right)
    run = (report.folder / "trec/vse_infty.i2t.trec").read_text().splitlines()
    best = np.argsort(-data["vse_infty"], axis=1, kind="stable")[:, :100]
    assert [line.rsplit(maxsplit=2)[0] for line in run] == [
        f"i{row} Q0 t{text} {rank}"
        for row, texts in enumerate(best)
        for rank, text in enumerate(texts, 1)
    ]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled pack with two of its methods and 20 of its scenes."""
    folder = tmp_path_factory.mktemp("sample")
    return write_sample(folder / "scenes", 20, ("vse_infty", "pvse"))


def compared(pack: Path, b: str, out: Path, *options: str) -> tuple[Any, list[dict[str, str]]]:
    """Compares PVSE with a method or a run file; returns the JSON and the rows of the CSV."""
    files = ["--json", str(out / "all.json"), "--csv", str(out / "captions.csv")]
    main(["--pack", str(pack), "--method", "vse_infty", "--mistakes", "pvse", b, *options, *files])
    with (out / "captions.csv").open(encoding="utf-8") as table:
        return json.loads((out / "all.json").read_text())["mistakes"], list(csv.DictReader(table))


def test_our_own_run_file(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, captions = compared(pack, "vse_infty", tmp_path, "--trec", str(tmp_path))
    assert f"| all | 100 | {own['counts']['a']} | {own['counts']['b']} |" in capsys.readouterr().out
    counted = [row["found"] for row in captions]
    assert {cell: counted.count(cell) for cell in own["counts"]} == own["counts"]
    assert all((row["found"] in ("a", "both")) == (row["rank_a"] == "1") for row in captions)
    run, other = tmp_path / "vse_infty.t2i.trec", tmp_path / "other.run"
    files = open_pack_gallery(pack, "test").images
    assert isinstance(files, ImageFiles)
    for names in ({}, {f"i{i}": file.stem for i, file in enumerate(files.paths)}):
        lines = [line.split() for line in run.read_text().splitlines()]
        lines = [[q, q0, names.get(i, i), *rest] for q, q0, i, *rest in lines]
        random.Random(0).shuffle(lines)  # the order of lines does not matter
        other.write_text("".join(f"{' '.join(line)}\n" for line in lines))
        theirs, same = compared(pack, str(other), tmp_path)
        assert theirs | {"b": "vse_infty"} == own
        for row, ours in zip(same, captions, strict=True):
            assert row | {"suspect": ""} == ours | {"suspect": ""}


def test_a_short_run_file(pack: Path, tmp_path: Path) -> None:
    run = tmp_path / "short.trec"
    run.write_text("".join(f"t{q} Q0 i{q // 5} 1 0.5 x\nt{q} Q0 i19 2 0.4 x\n" for q in range(90)))
    results, captions = compared(pack, str(run), tmp_path, "--k", "2")
    assert results["counts"]["b"] + results["counts"]["both"] == 90
    assert (captions[0]["rank_b"], captions[0]["first_b"]) == ("1", "0")
    assert {row["first_b"] for row in captions[90:]} == {""}


def test_wrong_options_are_refused(pack: Path, tmp_path: Path) -> None:
    photographs = str(write_photographs(tmp_path / "photographs", {"test": 4}))
    runs = {
        "few": "t0 Q0 i0 1 0.5 x\n",
        "elsewhere": "t0 Q0 nowhere 1 0.5 x\n",
        "words": "t0 Q0 i0 first 0.5 x\n",
        "cut": "t0 i0\n",
    }
    for name, line in runs.items():
        (tmp_path / name).write_text(line)
    mistakes = ["--mistakes", "pvse"]
    wrong = 'there is no method "vse_infy"; did you mean "vse_infty"? Choose one of\n  vse_infty\n'
    for arguments, message in (
        (["--method", "vse_infy"], wrong),
        (["--ensemble", "pvse+nothing"], 'no method "nothing"; choose one of\n  vse_infty\n'),
        (["--ensemble", "pvse+pvse"], 'the ensemble "pvse+pvse" names a method twice'),
        (["--compare", "pvse"], '--compare takes two names as in "a,b", not "pvse"'),
        (["--compare", "pvse,nothing"], 'there is no method "nothing"'),
        (["--split", "val"], 'for "val" add --data DIR'),
        (["--pack", "nowhere"], "there is no folder nowhere"),
        (["--data", "nowhere"], "nowhere"),
        (["--folds", "7"], "7 folds do not divide 20 images"),
        (["--data", photographs, "--foils"], "--foils needs rendered scenes"),
        (["--maps"], "scenes has none; python -m polyview clip makes one"),
        (["--csv", "x.csv"], "add --mistakes A B"),
        (["--halves"], "--halves divides the images"),
        ([*mistakes, "nowhere.trec"], 'there is no method "nowhere.trec"'),
        ([*mistakes, f"{tmp_path}/few", "--k", "5"], "fewer than 5 images per caption"),
        ([*mistakes, f"{tmp_path}/elsewhere"], "line 1: 'nowhere'"),
        ([*mistakes, f"{tmp_path}/words"], "line 1: invalid literal"),
        ([*mistakes, f"{tmp_path}/cut"], "qid Q0 docid rank score tag"),
    ):
        with pytest.raises(SystemExit, match=re.escape(message)):
            main(["--pack", str(pack), "--device", "cpu", *arguments])


def test_evidence_points_at_the_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method, out = "vse_infty", tmp_path / "rows.json"
    pack = write_sample(tmp_path / "scenes", 8, [method, "vsepp"])
    before = load_info(pack).methods
    sources = {str(pack): sha256_of(pack / "pack.json")}
    options = ["--all", "--evidence", "--write", "--json", str(out)]
    main(["--pack", str(pack), "--device", "cpu", *options])
    measured = json.loads(out.read_text())
    assert measured["sources"] == sources
    rows = measured["methods"]
    row = rows[method]
    assert row["evidence_error"] < 1e-4
    assert row["evidence_pointing"] > 90 > 50 > row["evidence_random_head"]
    assert row["evidence_word_pointing"] > 90 > 30 > row["evidence_word_chance"]
    for curve in ("deletion", "insertion"):
        for other in ("random", "map"):
            assert 0 < row[f"{curve}_gain_{other}_low"] < row[f"{curve}_gain_{other}_high"]
    assert row["deletion"] < row["deletion_map"] < row["insertion_map"] < row["insertion"]
    assert f"| {method} | {row['evidence_pointing']:.1f} |" in capsys.readouterr().out
    after = load_info(pack).methods
    assert list(after) == list(before) == list(rows)
    for name in before:
        assert replace(after[name], metrics=None) == replace(before[name], metrics=None)
        metrics = after[name].metrics
        assert metrics is not None
        assert metrics.values == rows[name]
        assert metrics.command.endswith(f"--method {name} --split test --evidence")
