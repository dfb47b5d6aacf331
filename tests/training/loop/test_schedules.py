"""How a run is paced: rates that wait for rsum, AMSGrad, and epochs without a validation."""

import csv
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint import load_tensors
from training.data.split import Split
from training.loop.config import TrainConfig
from training.loop.trainer import Trainer
from training.settings import from_values


def config(optimizer: dict[str, Any], **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "method": "vsepp",
        "arguments": {"embed_dim": 8},
        "text": {"word_dim": 8, "hidden_dim": 8},
        "optimizer": optimizer,
        "batch_size": 120,
    }
    return from_values(TrainConfig, {**values, **changes})


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_rate_halves_on_plateaus(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    still = {"learning_rate": 1e-12, "schedule": "plateau", "decay": 0.5, "plateau_epochs": 2}
    Trainer(config(still, epochs=8, patience=8), train_set, val_set, tmp_path).fit()
    rates = [float(row["rate"]) for row in rows_of(tmp_path)]
    assert rates == pytest.approx([1e-12] * 4 + [5e-13] * 3 + [2.5e-13])
    progress = load_tensors(tmp_path / "last.safetensors")[1]["progress"]
    assert progress["drops"] == [3, 6]  # kept, so that a resumed run goes on with the same rate


def test_amsgrad_keeps_the_largest_moment(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    for name, on in (("with", True), ("without", False)):
        plan = config({"amsgrad": on}, epochs=1)
        Trainer(plan, train_set, val_set, tmp_path / name).fit()
        slots = load_tensors(tmp_path / name / "last.safetensors")[0]
        assert any("max_exp_avg_sq" in slot for slot in slots) == on
        Trainer(plan, train_set, val_set, tmp_path / name, resume=True)


def test_epochs_without_a_validation(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    plan = config({"learning_rate": 5e-3}, epochs=5, validate_every=2)
    trainer = Trainer(plan, train_set, val_set, tmp_path)
    best = trainer.fit()
    rows = rows_of(tmp_path)
    assert [bool(row["rsum"]) for row in rows] == [False, True, False, True, True]
    assert best["rsum"] == pytest.approx(max(float(r["rsum"]) for r in rows if r["rsum"]), abs=0.01)
