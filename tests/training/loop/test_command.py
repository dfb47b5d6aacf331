"""The training commands: resuming, early stopping, lists of recipes, curves; training of a CLIP."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.export.clip import build_clip
from polyview.export.encoders.sources import load_image_source
from polyview.export.runtime import Runtime
from polyview.models.checkpoint import load_tensors
from polyview.models.preprocess import Preprocess
from polyview.training import distill, plot, pretrain, train
from polyview.training.evaluation.report import read_rows, write_rows
from polyview.training.loop.clip import ClipTraining
from polyview.training.loop.config import TrainConfig, load_recipe, recipe_names
from polyview.training.loop.loop import LAST, LOG
from polyview.training.loop.trainer import Trainer
from tests.export.conftest import LABELS
from tests.training.conftest import RECIPE, check_resume, write_photographs, write_regions


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with features to train on and a recipe."""
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


@pytest.mark.usefixtures("world")
def test_an_interrupted_and_extended_run_equals_a_longer_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl+C in the second of two epochs of five steps, `--resume`, then two more epochs."""
    settings, resumed = ("--set", "seed=4"), ("--resume", "--out", "my run")
    start(*settings, "--set", "epochs=4", out="long")
    left, step = iter(range(7)), Trainer.step

    def stop(self: Trainer, *arguments: Any) -> dict[str, float]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(SystemExit) as end:
            start(*settings)
    assert end.value.code == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "stopped; continue with the same command and --resume"
    start(*settings, "--resume")
    train.main([*resumed, "--set", "epochs=2"])
    done = "all 2 epochs of my run are done; train more with --set epochs=4"
    assert done in capsys.readouterr().err
    train.main([*resumed, "--set", "epochs=4"])
    logs = [read_rows(Path(run) / LOG) for run in ("long", "my run")]
    assert all(float(row.pop("seconds")) >= 0 for log in logs for row in log)
    assert logs[0] == logs[1]
    assert [row["epoch"] for row in logs[1]] == ["1", "2", "3", "4"]
    long, extended = (load_tensors(Path(run) / LAST)[0] for run in ("long", "my run"))
    assert all(torch.equal(long[name], extended[name]) for name in long)
    assert 'its "epochs" is 4, not 3' in refusal(*resumed, "--set", "epochs=3")
    message = refusal(*resumed, "--recipe", "recipe.toml", "--set", "epochs=4")
    assert 'cannot resume my run: its "seed" is 4, not 0; leave it out' in message
    again = refusal("--recipe", "recipe.toml", "--out", "my run")
    assert again.startswith("my run already holds a run; add --resume to continue it")
    assert refusal("--resume", "--out", "none").startswith("none holds no run to continue")
    assert refusal("--out", "none").startswith("choose a recipe, for example --recipe")
    new = ("--recipe", "recipe.toml", "--out", "new", "--set")
    assert "feature_copies=2 crops photographs, and data holds" in refusal(*new, "feature_copies=2")
    assert "data holds precomputed features, so no" in refusal(*new, "backbone_frozen=false")


@pytest.mark.usefixtures("world")
def test_a_run_stops_early_and_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    still = ("--set", "optimizer.learning_rate=1e-12", "--set", "epochs=9", "--set", "patience=2")
    start(*still)
    stopped = "stopped early after epoch 3 of 9: val rsum has not risen for 2 epochs (patience)"
    assert f"{stopped}, since epoch 1" in capsys.readouterr().err
    train.main(["--resume", "--out", "my run", "--set", "patience=4"])
    assert len(read_rows(Path("my run") / LOG)) == 5


def test_recipes_and_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for module in (train, pretrain, distill):
        module.main(["--list"])
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines()]
    assert sorted(name for name, _, _ in lines) == recipe_names()
    assert ("scenes/mv_vse", ": ", "MV-VSE on scenes") in lines
    for module in (train, distill):
        module.main(["--help-settings"])
    settings = capsys.readouterr().out
    assert re.search(r'\nobjective.lam: .*"default": 0.7, "maximum": 1, "minimum": 0', settings)
    assert "\narguments.views = 3\n" in settings
    assert re.search(r'\ncrops: .*"default": 8', settings)


TRAINING = Path(__file__).parents[3] / "app" / "bundled" / "scenes" / "training"


def test_runs_are_drawn_together(tmp_path: Path) -> None:
    """The second run has no validation after its last epoch."""
    run, second = shutil.copytree(TRAINING / "vsepp", tmp_path / "run"), tmp_path / "second"
    second.mkdir()
    first = {"epoch": 1, "loss": 3, "rsum": 10, "rate": 0.1, "grad_norm": 1}
    write_rows(second / LOG, [first, {"epoch": 2, "loss": 2, "rate": 0.1, "grad_norm": 1}])
    assert [len(plot.read_curves(second)[name]) for name in ("loss", "rsum")] == [2, 1]
    plot.main([str(run)])
    plot.main([str(run), str(second), "--out", str(tmp_path / "both.png")])
    alone, both = (Image.open(path) for path in (run / "curves.png", tmp_path / "both.png"))
    assert (np.ptp(np.asarray(alone.convert("RGB"), int), axis=2) > 60).sum() > 300  # in colour
    assert alone.tobytes() != both.tobytes()
    with pytest.raises(SystemExit, match="name a run that has finished an epoch"):
        plot.main([str(tmp_path)])
    (tmp_path / LOG).write_text("epoch,loss\n1,many\n")
    with pytest.raises(SystemExit, match="is damaged"):
        plot.main([str(tmp_path), "--out", str(tmp_path / "x.png")])


SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The recipe of the bundled CLIP, smaller and for photographs of one colour each."""
    data = write_photographs(tmp_path_factory.mktemp("data"), {"train": 16, "val": 8})
    recipe = load_recipe(TrainConfig, "scenes/clip_tiny")
    network = {"projection_dim": 24} | {
        side: {**recipe.network[side], **SMALL} for side in ("vision_config", "text_config")
    }
    rates = recipe.optimizer.model_copy(update={"warmup_steps": 0})
    small = {"data": str(data), "network": network, "optimizer": rates, "precision": "fp32"}
    return recipe.model_copy(update={**small, "batch_size": 20, "epochs": 2})


@pytest.fixture(scope="module")
def run(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    ClipTraining(config, folder, resume=False).fit()
    return folder


def test_a_clip_learns_and_resumes_exactly(config: TrainConfig, run: Path, tmp_path: Path) -> None:
    losses = [float(row["contrastive"]) for row in read_rows(run / "log.csv")]
    assert losses[1] < losses[0]
    check_resume(ClipTraining, config, run, tmp_path)


def test_a_trained_clip_becomes_a_pack(run: Path, tmp_path: Path) -> None:
    """`tests/export/build/test_published.py` compares scores with those of transformers."""
    build_clip(tmp_path / "pack", str(run / "model"), LABELS)
    assert read_rows(tmp_path / "pack/training/clip/log.csv")
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    assert runtime.preprocess == Preprocess(128)  # as in training
    image = Image.new("RGB", (60, 40), (200, 40, 30))
    model, seen_as, _ = load_image_source(f"{run}/model#projected")
    with torch.inference_mode():
        expected = model(torch.from_numpy(seen_as([image])))[:, 0]
    rows = runtime.image_features([image]).sum(dim=1)
    torch.testing.assert_close(rows, expected, rtol=0, atol=5e-3)  # weights in half precision
    assert json.loads((run / "model/config.json").read_text())["text_config"]["eos_token_id"] > 2
