"""The command line of a training: going on, being stopped, and what can be looked up."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint import load_tensors
from tests.training.conftest import write_regions
from training import distill, evaluate, pretrain, train
from training.loop import command
from training.loop.config import recipe_names
from training.loop.logs import LOG, read_rows
from training.loop.runs import LAST
from training.loop.trainer import Trainer

ROOT = Path(__file__).parents[3]
RECIPE = """
method = "vsepp"
epochs = 2
batch_size = 24
data = "{0}/data"
backbone = ""
arguments = {{ embed_dim = 8 }}
text = {{ word_dim = 8, hidden_dim = 8 }}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Features to train on, a recipe, and a place for runs, which is where commands run."""
    write_regions(tmp_path / "data")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(*more: str) -> None:
    train.main(["--recipe", "recipe.toml", "--out", "my run", *more])


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        train.main(list(arguments))
    return str(end.value)


@pytest.mark.usefixtures("world")
def test_ctrl_c_names_the_command_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--set", "epochs=3", "--set", "seed=4")
    train.main(["--recipe", "recipe.toml", "--out", "whole", *settings])
    left, step = iter(range(7)), Trainer.step

    def stop(self: Trainer, *arguments: Any) -> dict[str, float]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(self, *arguments)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(SystemExit) as end:
            begin(*settings, "--cache", "some cache")
    assert end.value.code == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("stopped; go on with python -m training.train --resume --out 'my run'")
    _, _, module, *arguments = shlex.split(said.partition("go on with ")[2])
    assert (module, arguments[-2:]) == ("training.train", ["--cache", "some cache"])
    train.main(arguments)  # without recipe and settings
    assert len(read_rows(Path("my run") / LOG)) == 3
    whole, resumed = (load_tensors(Path(run) / LAST)[0] for run in ("whole", "my run"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.usefixtures("world")
def test_a_run_over_ready_made_features_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    begin()
    best = max(float(row["rsum"]) for row in read_rows(Path("my run") / LOG))
    capsys.readouterr()
    evaluate.main(["--run", "my run", "--split", "val", "--json", "found.json"])
    (found,) = json.loads(Path("found.json").read_text()).values()
    assert round(found["rsum"], 2) == best
    assert "| vsepp |" in capsys.readouterr().out


@pytest.mark.usefixtures("world")
def test_resume_takes_the_settings_of_the_run() -> None:
    begin("--set", "seed=4")
    said = refusal("--resume", "--out", "my run", "--set", "epochs=3")
    assert '"epochs" was 2 there and is 3 now; leave it out' in said
    assert '"seed" was 4 there' in refusal("--resume", "--recipe", "recipe.toml", "--out", "my run")
    train.main(["--resume", "--out", "my run", "--set", "epochs=2"])
    assert refusal("--resume", "--out", "none").startswith("none holds no run to go on with")
    assert refusal("--out", "none").startswith("name what to train with --recipe")


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_of_several_processes_one_says_what_was_reached(
    rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    begin()
    assert capsys.readouterr().out.count("best val rsum") == lines


@pytest.mark.usefixtures("world")
def test_tensorboard_is_asked_for_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise ValueError("there is none")

    monkeypatch.setattr(command, "refuse_without_tensorboard", refuse)
    assert refusal("--recipe", "recipe.toml", "--out", "run", "--tensorboard") == "there is none"
    assert not Path("run").exists()


def printed(module: Any, option: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        module.main([option])
    assert not end.value.code
    return capsys.readouterr().out


def test_every_recipe_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line.partition(": ")
        for module in (train, pretrain, distill)
        for line in printed(module, "--list", capsys).splitlines()
    ]
    assert sorted(name for name, _, _ in lines) == recipe_names()
    subjects = {name: subject for name, _, subject in lines}
    assert subjects["scenes/mv_vse"] == "MV-VSE on scenes"


def test_the_page_of_settings_is_what_the_commands_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = "".join(
        printed(module, "--help-settings", capsys) for module in (train, pretrain, distill)
    )
    written = (ROOT / "docs" / "settings.md").read_text("utf-8")
    parts = re.split(r"(?=^##? )", page, flags=re.MULTILINE)
    known = [part for part in parts if part.partition("\n")[0] in written.splitlines()]
    # the part of a method that is new may still be missing
    assert written == "".join(known), "run the command in training/loop/reference.py"
    for line in page.splitlines():
        if line.startswith("- "):
            assert len(line.partition("): ")[2]) > 3, f"a docstring lacks {line}"
    lam = next(line for line in page.splitlines() if "`objective.lam`" in line)
    assert "a number at least 0 and at most 1; default 0.7; papers 0.7" in lam
