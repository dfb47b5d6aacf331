"""Ablations: what is defined, what one command trains and writes, and the page made of it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from tests.training.conftest import write_regions
from training import ablate
from training.data.split import Split
from training.evaluation.metrics import retrieval_metrics
from training.experiments import ablation, results, trial
from training.experiments.ablation import MEASURES, ablation_names, load_ablation
from training.loop.config import TextConfig, TrainConfig
from training.loop.trainer import Trainer
from training.objectives import build_objective

BUDGET = """
epochs = 2
batch_size = 24
data = "{data}"
backbone = ""

[text]
word_dim = 8
hidden_dim = 16

[optimizer]
learning_rate = 5e-3
"""
TOY = """
title = "Toy: how many views"
paper = "Nothing."
found = "Nothing."
axis = "views"
columns = ["view_cosine", "wins_top", "parameters", "caption_cosine"]
curves = true

[settings]
method = "mv_vse"
arguments = { embed_dim = 16, views = 2 }

[[variants]]
label = "one"
settings.arguments.views = 1

[[variants]]
label = "two"
"""
ENSEMBLE = """
title = "Toy: an ensemble"
paper = "Nothing."
found = "Nothing."

[settings]
method = "vsepp"
arguments = { embed_dim = 16 }

[[variants]]
label = "one model"

[[variants]]
label = "two models"
models = 2
"""
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data` in the layout of ready-made features, and `ablations` over it; nobody changes them."""
    root = tmp_path_factory.mktemp("world")
    data, folder = write_regions(root / "data"), root / "ablations"
    folder.mkdir()
    (folder / "budget.toml").write_text(BUDGET.format(data=data))
    (folder / "toy.toml").write_text(TOY)
    (folder / "ensemble.toml").write_text(ENSEMBLE)
    return root


@pytest.fixture
def run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a toy ablation; returns what its file holds. Trainings are those of all tests."""
    monkeypatch.setattr(ablation, "FOLDER", world / "ablations")

    def start(name: str, *arguments: str) -> dict[str, Any]:
        where = tmp_path / "results"
        command = [name, "--out", str(world / "runs"), "--results", str(where), *arguments]
        assert ablate.main(command) == 0
        return json.loads((where / f"{name}.json").read_text())

    return start


def measured(run: Run, world: Path, row: int = 0) -> tuple[Path, dict[str, Any]]:
    """The folder of a row's training, and what was measured of it."""
    run("toy")
    folder = trial.trial_folder(load_ablation("toy").variants[row].config, world / "runs")
    values: dict[str, Any] = json.loads((folder / trial.MEASURED).read_text())
    return folder, values


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods whose training was started, in order."""
    names: list[str] = []
    fit = Trainer.fit

    def count(trainer: Trainer) -> dict[str, float]:
        names.append(f"{trainer.config.method} {trainer.config.seed}")
        return fit(trainer)

    monkeypatch.setattr(Trainer, "fit", count)
    return names


def test_what_came_out_reaches_the_results(run: Run, world: Path, tmp_path: Path) -> None:
    assert run("toy")["here"] == ""
    path, results = world / "ablations" / "toy.toml", tmp_path / "results"
    before = path.read_text()
    try:
        path.write_text(f'here = "Disagrees."\n{before}')
        ablation.state_outcomes(results)
    finally:
        path.write_text(before)
    values = json.loads((results / "toy.json").read_text())
    assert values["here"] == "Disagrees."
    assert values["rows"] == run("toy")["rows"]


@pytest.mark.parametrize("name", ablation_names())
def test_every_ablation_is_whole(name: str) -> None:
    found = load_ablation(name)
    assert min(len(found.title), len(found.paper), len(found.found)) > 5
    labels = [variant.label for variant in found.variants]
    assert len(set(labels)) == len(labels)
    assert len({repr(v.config) + str(v.models) for v in found.variants}) == len(labels)
    first = found.variants[0].config
    for variant in found.variants:
        config = variant.config
        models.build(config.method, 24, config.text.hidden_dim, config.arguments)
        build_objective(config.method, config.objective)
        assert (config.train_images, config.batch_size) == (4000, 128)
        assert (config.epochs, config.validate_every) == (first.epochs, first.epochs)
        assert config.data == "data/scenes"


def test_the_paper_questions_are_all_there() -> None:
    asked = "mv_vse_views mv_vse_lambda mv_vse_losses mv_vse_projections pvse_views pvse_parts "
    asked += "pvse_weights avse_views avse_block avse_iterations avse_match avse_temperature "
    asked += "mvam_codes mvam_diversity mvam_ensemble infonce_temperature pooling "
    asked += "size_augmentation embed_dim avse_regulariser avse_average mv_vse_captions"
    asked += " captions_per_image"
    assert set(asked.split()) <= set(ablation_names())
    views = [v.config.arguments["views"] for v in load_ablation("mv_vse_views").variants]
    assert views == [1, 2, 3, 4, 5]
    embeddings = [v.config.arguments["views"] for v in load_ablation("pvse_views").variants]
    assert embeddings == list(range(9))
    lams = [v.config.objective["lam"] for v in load_ablation("mv_vse_lambda").variants]
    assert lams == [0.0, 0.3, 0.5, 0.7, 1.0]
    widths = [v.config.arguments for v in load_ablation("mvam_codes").variants]
    assert {w["embed_dim"] * w["views"] for w in widths} == {256}


def test_one_command_trains_measures_and_writes(run: Run, world: Path) -> None:
    found = run("toy")
    keys = "name title paper found here command hardware seeds columns rows note curves"
    assert list(found) == keys.split()
    assert found["command"] == "python -m training.ablate toy"
    headings = ["views", "rsum", "i2t R@1", "t2i R@1", MEASURES["view_cosine"].heading]
    assert found["columns"][:5] == headings
    (one, *first), (two, *second) = found["rows"]
    assert (one, two) == ("one", "two")
    assert first[3] is None  # one view has no other to be like
    assert -1 <= second[3] <= 1
    assert first[4] == 100.0
    method = models.build("mv_vse", 16, 16, load_ablation("toy").variants[1].config.arguments)
    assert second[5] == sum(p.numel() for p in method.parameters())
    assert -1 <= second[6] <= 1
    values = measured(run, world, 1)[1]
    assert values["caption_low"] <= values["caption_cosine"] <= values["caption_high"]
    assert second[0] == round(values["rsum"], 1)
    assert min(values["step_ms"], values["score_ms"]) > 0
    curve = found["curves"]["two: pool_image.1"]
    assert len(curve) == 5  # an image's elements
    assert sum(curve) == pytest.approx(1.0, abs=1e-3)


def test_the_weights_measured_are_the_best_ones(run: Run, world: Path) -> None:
    folder, values = measured(run, world)
    with (folder / "log.csv").open() as file:
        rsums = [float(row["rsum"]) for row in csv.DictReader(file)]
    assert values["rsum"] == pytest.approx(max(rsums), abs=0.01)


def test_finished_trainings_are_not_run_again(run: Run, trained: list[str]) -> None:
    first = run("toy")
    trained.clear()
    assert run("toy") == first
    assert trained == []


def test_an_interrupted_ablation_goes_on(
    run: Run,
    trained: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measure, fresh = trial.measure, ("--out", str(tmp_path / "fresh"))
    calls = iter(range(9))

    def stop(trainer: Trainer) -> tuple[dict[str, Any], np.ndarray]:
        if next(calls):
            raise KeyboardInterrupt
        return measure(trainer)

    monkeypatch.setattr(trial, "measure", stop)
    assert ablate.main(["toy", *fresh, "--results", str(tmp_path / "results")]) == 130
    assert "stopped; the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(trial, "measure", measure)
    steps: list[int] = []
    monkeypatch.setattr(Trainer, "_epoch", lambda _self, epoch: steps.append(epoch))
    trained.clear()
    assert len(run("toy", *fresh)["rows"]) == 2
    assert trained == ["mv_vse 0"]  # the second alone, and no step of it again
    assert steps == []


def test_several_seeds_are_averaged(run: Run, trained: list[str]) -> None:
    zero, one = (run("toy", "--seeds", seed)["rows"] for seed in "01")
    trained.clear()
    both = run("toy", "--seeds", "0", "1")
    assert trained == []
    assert both["command"].endswith("toy --seeds 0 1")
    assert both["columns"][1:3] == ["rsum", "its deviation over 2 seeds"]
    for row, first, second in zip(both["rows"], zero, one, strict=True):
        assert row[1] == pytest.approx((first[1] + second[1]) / 2, abs=0.11)
        assert row[2] == pytest.approx(abs(first[1] - second[1]) / 2**0.5, abs=0.11)


def test_an_ensemble_averages_scores(run: Run, trained: list[str], world: Path) -> None:
    found = run("ensemble")
    assert trained == ["vsepp 0", "vsepp 1"]  # the single model is the ensemble's first
    (members,) = load_ablation("ensemble").variants[1].row([0]).trainings
    scores = np.mean([trial.trial_scores(config, world / "runs") for config in members], axis=0)
    expected = retrieval_metrics(scores, trial.validation_images(members[0]))
    assert found["rows"][1][1] == round(expected["rsum"], 1)


@pytest.mark.slow
def test_processes_give_the_same(run: Run, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = run("toy")
    measured(run, world)[0].joinpath(trial.MEASURED).unlink()  # one is measured by a process
    capsys.readouterr()
    together = run("toy", "--jobs", "2")
    assert [row[:6] for row in together["rows"]] == [row[:6] for row in alone["rows"]]
    assert "[2/2] two, seed 0: rsum" in capsys.readouterr().out


def test_a_changed_budget_trains_anew_and_stays_with_its_runs(
    run: Run, trained: list[str], world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("toy")
    trained.clear()
    before = sorted(results.RESULTS.glob("*.json"))
    path, text = world / "ablations" / "toy.toml", (world / "ablations" / "toy.toml").read_text()
    path.write_text(f'here = "Disagrees by 38 rsum."\n{text}')
    capsys.readouterr()
    try:
        assert ablate.main(["toy", "--out", str(world / "runs"), "--set", "epochs=1"]) == 0
    finally:
        path.write_text(text)
    assert len(trained) == 2
    *_, head, _, one, two, _, command, place = capsys.readouterr().out.splitlines()
    assert head.startswith("| views | rsum |")
    assert (one[:6], two[:6]) == ("| one ", "| two ")
    assert command == "python -m training.ablate toy --set epochs=1"
    assert place == f"in {world / 'runs' / 'toy.json'}, as settings were replaced"
    kept = json.loads((world / "runs" / "toy.json").read_text())
    assert (kept["command"], kept["here"]) == (command, "")
    assert sorted(results.RESULTS.glob("*.json")) == before


def test_new_settings_at_their_defaults_change_no_folder(world: Path, tmp_path: Path) -> None:
    config = TrainConfig(method="vsepp", epochs=3, data=str(world / "data"), backbone="")
    same = config.changed(patience=TrainConfig().patience)
    other = config.changed(epochs=4)
    assert trial.trial_folder(config, tmp_path) == trial.trial_folder(same, tmp_path)
    assert trial.trial_folder(config, tmp_path) != trial.trial_folder(other, tmp_path)


def test_nonsense_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "FOLDER", tmp_path)
    (tmp_path / "budget.toml").write_text("epochs = 1\n")

    def said(text: str, *arguments: str) -> str:
        (tmp_path / "toy.toml").write_text(text)
        assert ablate.main([*(arguments or ["toy"]), "--out", str(tmp_path)]) == 1
        return capsys.readouterr().err

    assert 'no ablation "views"; choose one of toy' in said(TOY, "views")
    assert "unknown key 'epoch'" in said(TOY, "toy", "--set", "epoch=1")
    assert 'no column "view_sine"' in said(TOY.replace("view_cosine", "view_sine"))
    assert "ablation toy has an unknown key 'axes'" in said(TOY.replace("axis", "axes"))
    assert "ablation toy: variants must" in said(TOY.partition("[[variants]]")[0])


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ablation_names()


def test_curves_are_of_learned_poolings(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    arguments = {"embed_dim": 8, "pooling": "max"}
    text = TextConfig(word_dim=8, hidden_dim=8)
    config = TrainConfig(method="vse_infty", arguments=arguments, text=text, batch_size=24)
    values, scores = trial.measure(Trainer(config, train_set, val_set, tmp_path))
    assert list(values["curves"]) == ["pool_text"]
    assert len(values["curves"]["pool_text"]) == 5  # "a thing1 and a thing2"
    assert scores.shape == (40, 80)
