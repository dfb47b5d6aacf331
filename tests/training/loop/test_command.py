"""The command line of a training: resuming, extending, stopping, and what it lists."""

from pathlib import Path
from typing import Any

import pytest
import torch

from polyview.models.checkpoint import load_tensors
from polyview.training import distill, pretrain, train
from polyview.training.loop.config import recipe_names
from polyview.training.loop.loop import LAST, LOG, read_rows
from polyview.training.loop.trainer import Trainer
from tests.regions import RECIPE
from tests.training.conftest import write_regions


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Features to train on and a recipe, in the working directory."""
    write_regions(tmp_path / "data")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(method="vsepp"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*more: str, out: str = "my run") -> None:
    train.main(["--recipe", "recipe.toml", "--out", out, *more])


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        train.main(list(arguments))
    return str(end.value)


def weights(run: str) -> dict[str, torch.Tensor]:
    return load_tensors(Path(run) / LAST)[0]


@pytest.mark.usefixtures("world")
def test_a_run_goes_on_after_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--set", "epochs=3", "--set", "seed=4")
    start(*settings, out="whole")
    left, step = iter(range(7)), Trainer.step

    def stop(self: Trainer, *arguments: Any) -> dict[str, float]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(self, *arguments)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(SystemExit) as end:
            start(*settings)
    assert end.value.code == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "stopped; continue with the same command and --resume"
    start(*settings, "--resume")
    item, two = (read_rows(Path(run) / LOG) for run in ("whole", "my run"))
    assert all(float(row.pop("seconds")) >= 0 for row in (*item, *two))
    assert item == two
    assert len(item) == 3
    whole, resumed = weights("whole"), weights("my run")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.usefixtures("world")
def test_a_finished_run_is_extended_as_if_it_had_been_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start("--set", "epochs=4", out="long")
    start()
    train.main(["--resume", "--out", "my run"])
    assert "all 2 epochs of my run are done; train more with --set epochs=4" in (
        capsys.readouterr().err
    )
    train.main(["--resume", "--out", "my run", "--set", "epochs=4"])
    assert [row["epoch"] for row in read_rows(Path("my run") / LOG)] == ["1", "2", "3", "4"]
    long, extended = weights("long"), weights("my run")
    assert all(torch.equal(long[name], extended[name]) for name in long)
    assert 'its "epochs" is 4, not 3' in refusal("--resume", "--out", "my run", "--set", "epochs=3")


@pytest.mark.usefixtures("world")
def test_a_run_that_stopped_early_says_so_and_goes_on_with_more_patience(
    capsys: pytest.CaptureFixture[str],
) -> None:
    still = ("--set", "optimizer.learning_rate=1e-12", "--set", "epochs=9", "--set", "patience=2")
    start(*still)
    assert (
        "stopped early after epoch 3 of 9: val rsum has not risen for 2 epochs (patience), "
        "since epoch 1" in capsys.readouterr().err
    )
    train.main(["--resume", "--out", "my run", "--set", "patience=4"])
    assert len(read_rows(Path("my run") / LOG)) == 5


@pytest.mark.usefixtures("world")
def test_resume_takes_the_settings_of_the_run() -> None:
    start("--set", "seed=4")
    message = refusal("--resume", "--recipe", "recipe.toml", "--out", "my run")
    assert 'cannot resume my run: its "seed" is 4, not 0; leave it out' in message
    train.main(["--resume", "--out", "my run", "--set", "epochs=2"])
    assert refusal("--resume", "--out", "none").startswith("none holds no run to continue")
    assert refusal("--out", "none").startswith("name what to train with --recipe")
    copies = ("--recipe", "recipe.toml", "--out", "copies", "--set", "feature_copies=2")
    assert "feature_copies=2 crops photographs, and data holds none" in refusal(*copies)


def test_recipes_and_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(module: Any, option: str) -> list[str]:
        module.main([option])
        return capsys.readouterr().out.splitlines()

    modules = (train, pretrain, distill)
    lines = [line.partition(": ") for module in modules for line in printed(module, "--list")]
    assert sorted(name for name, _, _ in lines) == recipe_names()
    assert ("scenes/mv_vse", ": ", "MV-VSE on scenes") in lines
    settings = printed(train, "--help-settings")
    lam = next(line for line in settings if line.startswith("objective.lam: "))
    assert '"default": 0.7, "maximum": 1, "minimum": 0' in lam
    assert any(line == "arguments.views = 3" for line in settings)
    assert any(
        line.startswith("crops: ") and '"default": 8' in line
        for line in printed(distill, "--help-settings")
    )
