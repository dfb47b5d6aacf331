"""The training loop learns, resumes bit for bit, and is the same on any number of processes."""

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models import METHODS
from models.checkpoint import load_tensors
from models.layers import FeatureProjection
from tests.training import distributed_run
from training.data.split import Split
from training.loop import loop
from training.loop.config import TrainConfig
from training.loop.trainer import Trainer
from training.settings import from_values

ROOT = Path(__file__).parents[3]
# 16 codes cannot attend to 16 different elements among five
TINY: dict[str, dict[str, Any]] = {
    "mvam": {
        "arguments": {"embed_dim": 16, "views": 3, "learned_temperature": 0.1},
        "objective": {"diversity": 0.1},
    }
}


def config(method: str = "vse_infty", **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "method": method,
        "arguments": {"embed_dim": 16},
        "text": {"word_dim": 8, "hidden_dim": 16, "unknown_rate": 0.05, "dropout": 0.1},
        "optimizer": {"learning_rate": 5e-3, "schedule": "cosine"},
        "epochs": 3,
        "batch_size": 24,
        "feature_dropout": 0.1,
    }
    return from_values(TrainConfig, {**values, **TINY.get(method, {}), **changes})


def _weights(out: Path) -> dict[str, torch.Tensor]:
    return {k: v for k, v in load_tensors(out / "last.safetensors")[0].items() if k[:3] == "mod"}


# the features of this world have no summary to read
@pytest.mark.parametrize("method", sorted(n for n in METHODS if not METHODS[n].summary_token))
def test_every_method_learns(method: str, train_set: Split, val_set: Split, tmp_path: Path) -> None:
    first = {"objective": {"warmup_epochs": 1}} if method == "avse" else {}
    trainer = Trainer(config(method, epochs=6, **first), train_set, val_set, tmp_path)
    before = trainer.validate(5)["rsum"]
    assert trainer.fit()["rsum"] > before + 60
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    names = list(rows[-1])
    terms = names[names.index("loss") + 1 : names.index("grad_norm")]
    total = sum(float(rows[-1][name]) for name in terms)
    assert float(rows[-1]["loss"]) == pytest.approx(total, abs=1e-3)


def test_first_epochs_of_order_learn_from_those_captions_in_as_many_steps(
    train_set: Split, val_set: Split, tmp_path: Path
) -> None:
    """60 of 240 captions are of order, of every second image; an epoch has 10 steps."""
    data = replace(train_set, kinds=["order", "free", "free", "free"] * 60)
    given = {"order_epochs": 2, "captions_per_image": 2}
    trainer = Trainer(config("vsepp", **given), data, val_set, tmp_path)
    seen = []
    for epoch in range(3):
        drawn = list(trainer.batches(epoch))
        assert len(drawn) == 10
        seen.append([batch.image_ids.tolist() for batch in drawn])
        assert len({tuple(ids) for ids in seen[-1]}) == 10
        owners = {row for ids in seen[-1] for row in ids}
        assert owners == set(range(0, 120, 2) if epoch < 2 else range(120))
    assert seen[0] != seen[1]
    assert seen[1] == [batch.image_ids.tolist() for batch in trainer.batches(1)]


def test_image_maps_begin_as_the_releases_begin(
    train_set: Split, val_set: Split, tmp_path: Path
) -> None:
    given = {"projection_init": "xavier", "arguments": {"embed_dim": 16, "mlp_dim": 8}}
    trainer = Trainer(config("mv_vse", **given), train_set, val_set, tmp_path)
    projections = [p for p in trainer.model.method.modules() if isinstance(p, FeatureProjection)]
    assert len(projections) == 3
    for project in projections:
        weight, bias = project.linear.weight, project.linear.bias
        assert not bias.any()
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound
        assert project.mlp is not None
        assert project.mlp.get_parameter("3.bias").any()  # the rest begins as ever


@pytest.mark.parametrize("method", ["vse_infty", "avse"])
def test_resume_gives_the_same_weights_bit_for_bit(
    method: str, train_set: Split, val_set: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    Trainer(config(method), train_set, val_set, whole).fit()

    class KilledError(Exception):
        pass

    broken = Trainer(config(method), train_set, val_set, halves)
    steps = iter(range(15))  # in the middle of the second epoch

    def step(*arguments: Any) -> dict[str, float]:
        if next(steps, None) is None:
            raise KilledError
        return Trainer.step(broken, *arguments)

    monkeypatch.setattr(broken, "step", step)
    with pytest.raises(KilledError):
        broken.fit()
    torch.manual_seed(12345)  # whatever happened in between
    Trainer(config(method), train_set, val_set, halves, resume=True).fit()
    expected, resumed = _weights(whole), _weights(halves)
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    logs = [(out / "log.csv").read_text().splitlines() for out in (whole, halves)]
    without_seconds = [[line.rsplit(",", 1)[0] for line in log] for log in logs]
    assert without_seconds[0] == without_seconds[1]


def test_best_weights_are_described(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    best = Trainer(config(), train_set, val_set, tmp_path, backbone_sha256="ab" * 32).fit()
    tensors, about = load_tensors(tmp_path / "best.safetensors")
    assert about["metrics"]["val"] == best
    assert about["backbone_sha256"] == "ab" * 32
    assert {name.split(".")[0] for name in tensors} == {"method", "text_encoder"}
    rsums = [float(r["rsum"]) for r in csv.DictReader((tmp_path / "log.csv").open())]
    assert max(rsums) == pytest.approx(best["rsum"], abs=0.01)


@pytest.mark.parametrize("method", ["vse_infty", "avse", "pvse", "mvam"])
def test_low_precision_trains(
    method: str, train_set: Split, val_set: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "computes_in_bf16", lambda: True)
    full, reduced = (
        Trainer(config(method, precision=p, epochs=2), train_set, val_set, tmp_path / p).fit()
        for p in ("fp32", "bf16")
    )
    assert reduced["rsum"] > full["rsum"] - 60
    assert reduced != full


def test_half_precision_needs_a_gpu(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        Trainer(config(precision="fp16", epochs=1), train_set, val_set, tmp_path).fit()
        return
    with pytest.raises(ValueError, match='precision "fp16" needs a CUDA GPU'):
        Trainer(config(precision="fp16"), train_set, val_set, tmp_path)


def test_bf16_needs_its_instructions(
    train_set: Split, val_set: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "bf16": False})
    with pytest.raises(ValueError, match=r"no instructions for it .*; set precision=fp32"):
        Trainer(config(precision="bf16"), train_set, val_set, tmp_path)


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launch, distributed_run.__file__, str(tmp_path / "2")]
    subprocess.run(command, env=environment, check=True, timeout=120, capture_output=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    distributed_run.run(tmp_path / "1")
    for method, weight in (("vse_infty", "text_encoder.embed.weight"), ("avse", "method.dustbin")):
        runs = [tmp_path / count / method for count in "12"]
        logs = [list(csv.DictReader((run / "log.csv").open()))[-1] for run in runs]
        for name in ("loss", "grad_norm", "rsum"):
            # weights differ where Adam scales rounding noise
            assert float(logs[1][name]) == pytest.approx(float(logs[0][name]), rel=1e-3), method
        one, two = (_weights(run)[f"module.{weight}"] for run in runs)
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)
