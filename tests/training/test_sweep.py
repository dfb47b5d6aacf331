"""Sweeps: missing trainings, resuming, the choice by validation, recorded tables."""

import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from polyview.app.settings import BUNDLED
from polyview.export.pack.reading import load_info
from polyview.models import build
from polyview.training import sweep
from polyview.training.evaluation.report import format_difference, read_rows, write_rows
from polyview.training.loop.loop import parameter_groups
from tests.training.conftest import write_regions

ROOT = Path(__file__).parents[2]
TOY = """
description = "A toy."
recipe = "ablation"
baseline = "one vector"
seeds = [0, 1]
trial = ["train_images=40"]
settings = [
    "data={data}", "backbone=", "epochs=1", "batch_size=24", "train_images=0",
    "text.word_dim=8", "text.hidden_dim=16", "optimizer.warmup_steps=1",
]
[grid]
"optimizer.learning_rate" = [1e-5, 2e-2]
[[rows]]
label = "one vector"
settings = ["method=vse_infty", "arguments.embed_dim=16", "objective.cost=softmax"]
[[rows]]
label = "three views"
own_baseline = "one vector"
settings = ["method=mv_vse", "arguments.embed_dim=16", "objective.cost=softmax"]
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_regions(tmp_path_factory.mktemp("regions") / "data")


@pytest.fixture
def toy(data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY.format(data=data))
    return path


def _run(path: Path, *more: str) -> None:
    folder = path.parent
    sweep.main([str(path), "--out", f"{folder}/runs", "--results", f"{folder}/results", *more])


def test_trials_choose_the_final_setting(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(toy)
    table = toy.parent / "results" / "toy.csv"
    lines = read_rows(table)
    assert [line["phase"] for line in lines] == ["trial"] * 4 + ["final"] * 4
    for label in ("one vector", "three views"):
        trials = [line for line in lines if (line["row"], line["phase"]) == (label, "trial")]
        finals = [line for line in lines if (line["row"], line["phase"]) == (label, "final")]
        best = max(trials, key=lambda line: float(line["rsum"]))
        assert {line["setting"] for line in finals} == {best["setting"]}
        assert [line["seed"] for line in finals] == ["0", "1"]
        assert len({line["run"] for line in trials + finals}) == 4
    printed = capsys.readouterr().out.splitlines()[-4:]
    means = np.mean([float(line["rsum"]) for line in lines if line["phase"] == "final"][2:])
    assert f"| {means:.1f} |" in printed[-1]
    # the printed settings are those of the sweep, not of the CSV file
    write_rows(table, [{**line, "setting": "former"} for line in read_rows(table)])
    before = table.read_bytes()
    (toy.parent / "runs").rename(toy.parent / "elsewhere")
    for more in ((), ("--report",)):  # neither trains again
        _run(toy, *more)
        assert table.read_bytes() == before
        assert capsys.readouterr().out.splitlines()[-4:] == printed
    assert not (toy.parent / "runs").exists()


def test_a_method_is_ahead_only_where_the_interval_excludes_0() -> None:
    hits = dict[str, np.ndarray]()
    for label, counts in (("low", (16, 18)), ("close", (17, 19)), ("high", (50, 50))):
        ranks = [3 * (np.arange(50) < count) for count in counts]  # of 50 images with a caption
        hits[label] = np.stack([[right, right, np.ones(50), np.arange(50)] for right in ranks])
    assert format_difference(hits["high"], hits["low"]).endswith("ahead")
    assert format_difference(hits["low"], hits["high"]).endswith("behind")
    assert format_difference(hits["close"], hits["low"]).endswith("]")


def test_pages_show_the_recorded_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, tables = tmp_path / "results.md", tmp_path / "ablations"
    results, own = sweep.PAGE, sweep.ABLATIONS
    tables.mkdir()
    # without flickr8k_alike: names of its runs depend on data/mobilenet_v2
    block = re.compile(r"(<!-- sweep ((?!flickr8k_alike)\w+) -->\n).*?(?=<!-- end)", re.DOTALL)
    names = [name for _, name in block.findall(results.read_text("utf-8"))]
    page.write_text(block.sub(r"\1", results.read_text("utf-8")), "utf-8")
    monkeypatch.setattr(sweep, "PAGE", page)
    monkeypatch.setattr(sweep, "ABLATIONS", tables)
    recorded = (name for name in sweep.sweep_names() if (sweep.RESULTS / f"{name}.csv").is_file())
    ablations = [name for name in recorded if sweep.load_sweep(name).paper]
    assert "scenes_alike" in names
    sweep.main([*names, *ablations, "--report", "--write"])
    assert page.read_text("utf-8") == results.read_text("utf-8")
    assert {path.stem for path in tables.iterdir()} == {*ablations} > {"pooling"}
    for path in tables.iterdir():
        assert path.read_text("utf-8") == (own / path.name).read_text("utf-8"), path.name


def test_the_readme_has_the_recorded_numbers() -> None:
    """The rsum of each method in the pack, and its differences in docs/results.md."""
    lines = (ROOT / "README.md").read_text("utf-8").replace("*", "").splitlines()
    cells = [line.split("|")[1:-1] for line in lines if line.startswith("| `")]
    rows = [[cell.strip(" `") for cell in row] for row in cells]
    methods = load_info(BUNDLED / "scenes", verify=False).methods
    rsums = {name: f"{m.metrics.values['rsum']:.1f}" for name, m in methods.items() if m.metrics}
    assert {row[0]: row[3] for row in rows} == rsums
    for name, column in (("scenes_paper", 6), ("scenes_alike", 7)):
        block = sweep.PAGE.read_text("utf-8").partition(f"<!-- sweep {name} -->")[2]
        recorded = dict[tuple[str, str], str]()  # lower-case method and baseline -> difference
        for line in block.partition("<!-- end")[0].strip().splitlines()[2:]:
            label, *_, against, differences = line.split(" | ")
            pairs = zip(against.split("<br>"), differences.split("<br>"), strict=True)
            for baseline, difference in pairs:
                first, second = (re.split(r" \(|, ", each)[0].lower() for each in (label, baseline))
                numbers = re.findall(r"[+-][\d.]+", difference)
                center, low, high = (f"{round(float(number)):+d}" for number in numbers)
                recorded.setdefault((first.strip("| "), second), f"{center} [{low}, {high}]")
        for row in rows:
            method = row[1].partition(",")[0].lower()
            baselines = row[5].lower().split("<br>")
            expected = [recorded.get((method, baseline), "-") for baseline in baselines]
            assert row[column].split("<br>") == expected


@pytest.mark.slow
def test_an_interrupted_sweep_resumes_with_several_trainings_at_once(
    toy: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two settings and two seeds, interrupted after the first training; --data replaces `data`."""
    text = toy.read_text().replace("data=", "data=nowhere/")
    toy.write_text(text.partition('[[rows]]\nlabel = "three views"')[0])
    with pytest.raises(SystemExit, match="nowhere"):
        _run(toy)
    training = Mock(side_effect=[sweep.train, KeyboardInterrupt])
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "train", lambda *job: training()(*job))
        with pytest.raises(SystemExit) as end:
            _run(toy, "--data", str(data))
    assert end.value.code == 130
    csv = toy.parent / "results" / "toy.csv"
    recorded = read_rows(csv)
    _run(toy, "--data", str(data), "--jobs", "2")
    lines = read_rows(csv)
    assert lines[:1] == recorded
    assert [line["phase"] for line in lines] == ["trial"] * 2 + ["final"] * 2
    assert capsys.readouterr().out.splitlines()[-1].startswith("| one vector | 2 |")


@pytest.mark.parametrize("name", sweep.sweep_names())
def test_trainings_of_a_sweep_have_different_names(name: str, tmp_path: Path) -> None:
    # without a backbone, whose checksum is part of a run's name
    named, changes = sweep.load_sweep(name), ["backbone="]
    jobs = sweep.trial_jobs(named, changes)
    jobs += sweep.final_jobs(named, changes, sweep.Record(tmp_path, name))
    runs = [job.run for job in jobs]
    assert len(set(runs)) == len(runs)
    assert all(run.startswith(job.config.method) for run, job in zip(runs, jobs, strict=True))


def test_unfair_and_unknown_sweeps_are_refused(toy: Path) -> None:
    text = toy.read_text()
    fewer = "all rows must have the same number of trials, not 1 (three views) and 2"
    for content, message in (
        (text.replace('"three views"', '"three views"\ngrid = { "seed" = [0] }'), fewer),
        (
            text.replace('baseline = "one vector"', 'baseline = "none"', 1),
            'there is no baseline "none"',
        ),
    ):
        toy.write_text(content)
        with pytest.raises(SystemExit, match=re.escape(message)):
            _run(toy)
    with pytest.raises(SystemExit, match='there is no sweep "scenes_papers"'):
        sweep.main(["scenes_papers"])


def test_biases_norms_and_temperatures_do_not_decay() -> None:
    method = build("mvam", 8, 8, {"embed_dim": 4, "views": 2, "learned_temperature": 0.05})
    groups = parameter_groups(method.parameters(), 0.1)
    fixed = [p for g in groups if g.get("weight_decay") == 0.0 for p in g["params"]]
    assert len(fixed) == sum(p.ndim < 2 for p in method.parameters())
    assert all(p.ndim < 2 for p in fixed)
    assert sum(len(g["params"]) for g in groups) == len([*method.parameters()])
    assert all(g["share"] == 0.1 for g in groups)
    temperature = method.get_parameter("log_temperature")
    temperature.data.fill_(-9.0)
    method.clamp_temperature()  # as CLIP's logit scale, at most 100
    assert temperature.exp().item() == pytest.approx(0.01)
