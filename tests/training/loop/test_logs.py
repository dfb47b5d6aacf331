"""What a training says about itself: an epoch a row, steps, and how long it will take."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from training.data.split import Split
from training.loop.config import TrainConfig
from training.loop.logs import LOG, STEPS, StepLog, read_rows
from training.loop.trainer import Trainer
from training.settings import from_values


def config(**changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "method": "vsepp",
        "arguments": {"embed_dim": 8},
        "text": {"word_dim": 8, "hidden_dim": 8},
        "epochs": 3,
        "batch_size": 24,
        "captions_per_image": 2,
    }
    return from_values(TrainConfig, {**values, **changes})


def interrupt(trainer: Trainer, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains so many steps, and one more that is lost."""
    left = iter(range(steps))

    def step(*arguments: Any) -> dict[str, float]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return Trainer.step(trainer, *arguments)

    monkeypatch.setattr(trainer, "step", step)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()


def test_steps_are_logged_and_a_resumed_run_logs_none_twice(
    train_set: Split, val_set: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    Trainer(config(), train_set, val_set, whole).fit()
    interrupt(Trainer(config(), train_set, val_set, halves), 15, monkeypatch)
    assert len(read_rows(halves / STEPS)) == 15  # those that no checkpoint has, too
    Trainer(config(), train_set, val_set, halves, resume=True).fit()
    expected, found = read_rows(whole / STEPS), read_rows(halves / STEPS)
    assert [int(row["step"]) for row in expected] == list(range(1, 31))
    assert [int(row["epoch"]) for row in expected] == [1] * 10 + [2] * 10 + [3] * 10
    names = ["step", "epoch", "rate", "loss", "triplet", "grad_norm", "images_per_second"]
    assert list(expected[0]) == names
    for row in (*expected, *found):
        assert float(row.pop("images_per_second")) > 0
    assert found == expected


def test_a_long_run_logs_some_of_its_steps(tmp_path: Path) -> None:
    log = StepLog(tmp_path / STEPS, total=1_000_001, done=0)
    assert log.every == 501
    assert StepLog(tmp_path / STEPS, total=2000, done=0).every == 1


def test_speed_counts_images(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    trainer = Trainer(config(), train_set, val_set, tmp_path)
    assert trainer.images_in_step == 12  # 24 captions, two of each image


def test_people_read_epochs_from_one(
    train_set: Split, val_set: Split, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Trainer(config(), train_set, val_set, tmp_path).fit()
    assert [row["epoch"] for row in read_rows(tmp_path / LOG)] == ["1", "2", "3"]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert [line.partition(":")[0] for line in said] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert [line.endswith(" left") for line in said] == [True, True, False]


def test_the_time_left_is_that_of_the_run(
    train_set: Split, val_set: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(config(epochs=30), train_set, val_set, tmp_path)
    trainer.progress["step"], trainer._first, trainer._began = 20, 10, 0.0
    monkeypatch.setattr("training.loop.loop.time.perf_counter", lambda: 10 * 30.0)
    assert trainer._time_left() == "2 h 20 min left"  # 280 steps of 30 seconds


def test_tensorboard_gets_what_is_logged(
    train_set: Split, val_set: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a package in its place: what TensorBoard itself makes of it is not ours."""
    found: list[tuple[str, float, int]] = []
    made: list[tuple[Path, int]] = []

    class SummaryWriter:
        def __init__(self, folder: Path, purge_step: int) -> None:
            made.append((folder, purge_step))

        def add_scalar(self, *scalar: Any) -> None:
            found.append(scalar)

        def flush(self) -> None:
            pass

    stand_in = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    trainer = Trainer(config(), train_set, val_set, tmp_path)
    trainer.write_events()
    trainer.fit()
    assert made == [(tmp_path / "tensorboard", 1)]
    steps = read_rows(tmp_path / STEPS)
    losses = [(value, step) for name, value, step in found if name == "step/loss"]
    assert losses == [(float(row["loss"]), int(row["step"])) for row in steps]
    sums = [value for name, value, _ in found if name == "epoch/rsum"]
    assert sums == [float(row["rsum"]) for row in read_rows(tmp_path / LOG)]
