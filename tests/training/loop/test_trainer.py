"""Objectives and the training loop: learning, schedules, precision and padding."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyview.export.pack.validation import check
from polyview.models import METHODS
from polyview.models.checkpoint import load_tensors
from polyview.models.layers import FeatureProjection
from polyview.training.evaluation.report import read_rows
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.loop import LAST, LOG
from polyview.training.loop.trainer import Trainer
from polyview.training.objectives import build_objective
from polyview.training.objectives.losses import info_nce, same_image
from polyview.training.objectives.pvse import multiple_instance
from tests.golden.loading import grad
from tests.papers.conftest import BATCH, IDS, hinge_triplet, terms_of, views_of
from tests.training.conftest import make_features


@pytest.mark.parametrize("name", ["vsepp", "vse_infty", "avse"])
def test_the_softmax_cost_is_scaled_info_nce(name: str) -> None:
    method, images, texts = views_of(name)
    objective = build_objective(name, {"cost": "softmax", "temperature": 0.2})
    terms = objective(method, images, texts, IDS, 5)
    positives = same_image(IDS)
    mean = info_nce(method.score(images, texts), positives, 0.2)
    torch.testing.assert_close(terms["softmax"], 2 * BATCH * 0.2 * mean)
    assert terms.keys() - {"softmax"} == ({"regulariser"} if name == "avse" else set())


@pytest.mark.parametrize("name", ["vse_infty", "mv_vse", "avse"])
def test_warmup_epochs_sum_over_all_negatives(name: str) -> None:
    warm, hard = (sum(terms_of(name, epoch, warmup_epochs=1).values()) for epoch in (0, 1))
    assert warm > hard


def test_another_caption_of_the_image_is_no_negative() -> None:
    ids = torch.tensor([7, 7])
    own = same_image(ids)
    temperature = torch.tensor(0.1, requires_grad=True)
    for loss_of in (
        lambda s: hinge_triplet(s, own, 0.2),
        lambda s: multiple_instance(s, own, 0.2, released=True),
        lambda s: info_nce(s, own, temperature),
    ):
        scores = torch.tensor([[0.5, 0.9], [0.5, 0.9]], requires_grad=True)
        loss = loss_of(scores)
        loss.backward()
        assert loss.item() == 0
        assert grad(scores).abs().sum() == 0
    assert grad(temperature) == 0


TINY: dict[str, dict[str, Any]] = {
    "mvam": {  # fewer views than the five elements of an image
        "arguments": {"embed_dim": 16, "views": 3, "learned_temperature": 0.1},
        "objective": {"diversity": 0.1},
    },
    # the cost of its recipes; hinges of hardest negatives collapse in the first steps
    "late": {"arguments": {"embed_dim": 16}, "objective": {"cost": "softmax"}},
}

# methods that need no summary token, which these features lack
POOLS = sorted(name for name in METHODS if not METHODS[name].summary_token)
TRAIN, VAL = make_features(120, 0), make_features(40, 1)


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
    return check(TrainConfig, {**values, **TINY.get(method, {}), **changes})


def test_a_nan_loss_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(config(), TRAIN, VAL, tmp_path)
    weight = next(trainer.model.parameters())
    monkeypatch.setattr(trainer, "losses", lambda *_: {"a": weight.sum() * math.nan})
    advice = "lower optimizer.learning_rate, which is 0.005"
    with pytest.raises(ValueError, match=f"the loss is not finite in epoch 1; {advice}"):
        trainer.fit()
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    assert not (tmp_path / LAST).exists()


@pytest.mark.parametrize("method", POOLS)
def test_every_method_learns(method: str, tmp_path: Path) -> None:
    first = {"objective": {"warmup_epochs": 1}} if method == "avse" else {}
    trainer = Trainer(config(method, **first), TRAIN, VAL, tmp_path)
    before = trainer.validate(3)["rsum"]
    assert trainer.fit()["rsum"] > before + 60
    rows = read_rows(tmp_path / LOG)
    assert len(rows) == 3
    names = list(rows[-1])
    terms = names[names.index("loss") + 1 : names.index("grad_norm")]
    total = sum(float(rows[-1][name]) for name in terms)
    assert float(rows[-1]["loss"]) == pytest.approx(total, abs=1e-3)


def test_first_epochs_draw_captions_of_order(tmp_path: Path) -> None:
    """Every second image has one; an epoch has 10 steps."""
    kinds = ["order", "free", "free", "free"] * 60
    data = replace(TRAIN, kinds=kinds, alike=np.arange(120))
    plan = config("vsepp", order_epochs=2, captions_per_image=2)
    trainer = Trainer(plan, data, VAL, tmp_path)
    epochs = [[b.image_ids.tolist() for b in trainer.batches(epoch)] for epoch in (0, 1, 2, 1)]
    for epoch, drawn in enumerate(epochs):
        assert len({tuple(ids) for ids in drawn}) == len(drawn) == 10
        owners = {row for ids in drawn for row in ids}
        assert owners == set(range(120) if epoch == 2 else range(0, 120, 2))
    assert epochs[0] != epochs[1]
    assert epochs[1] == epochs[3]


def test_image_maps_have_the_releases_initial_weights(tmp_path: Path) -> None:
    arguments = {"embed_dim": 16, "mlp_dim": 8, "own_projections": True}
    plan = config("mv_vse", projection_init="xavier", arguments=arguments)
    method = Trainer(plan, TRAIN, VAL, tmp_path).model.method
    maps = [part.linear for part in method.modules() if isinstance(part, FeatureProjection)]
    assert len(maps) == 3
    for linear in maps:
        bound = (6 / sum(linear.weight.shape)) ** 0.5
        assert 0.9 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()


def test_the_best_weights_are_saved_with_metadata(tmp_path: Path) -> None:
    plan = config("vsepp", epochs=5, validate_every=2, batch_size=120)
    trainer = Trainer(plan, replace(TRAIN, summary_token=True), VAL, tmp_path)
    best = trainer.fit()
    assert trainer.model.has_summary == (True, False)
    tensors, about = load_tensors(tmp_path / "best.safetensors")
    assert about["metrics"]["val"] == best
    assert {name.split(".")[0] for name in tensors} == {"method", "text_encoder"}
    rsums = [row["rsum"] for row in read_rows(tmp_path / LOG)]
    assert [bool(rsum) for rsum in rsums] == [False, True, False, True, True]
    assert max(float(rsum) for rsum in rsums if rsum) == pytest.approx(best["rsum"], abs=0.01)


def test_training_in_low_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "bf16": False})
    with pytest.raises(ValueError, match=r"no instructions .*precision=fp32"):
        Trainer(config(precision="bf16"), TRAIN, TRAIN, tmp_path)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"bf16": True})
    full, reduced = (
        Trainer(config("avse", precision=p, epochs=2), TRAIN, VAL, tmp_path / p).fit()
        for p in ("fp32", "bf16")
    )
    assert reduced["rsum"] > full["rsum"] - 60
    assert reduced != full


@pytest.mark.parametrize("schedule", ["cosine", "step"])
def test_rate_schedules(schedule: str, tmp_path: Path) -> None:
    plan = {"learning_rate": 1e-3, "warmup_steps": 3, "schedule": schedule, "decay_epochs": [1, 2]}
    rates = list[float]()

    class Recorded(Trainer):
        def after_step(self) -> None:
            rates.append(self.optimizer.param_groups[0]["lr"])

    Recorded(config("vsepp", optimizer=plan, batch_size=60), TRAIN, VAL, tmp_path).fit()
    falls = {
        "cosine": [0.5 * (1 + math.cos(math.pi * step / 12)) for step in range(12)],
        "step": [0.1 ** (step // 4) for step in range(12)],
    }
    expected = [1e-3 * min(1, (step + 1) / 3) * share for step, share in enumerate(falls[schedule])]
    assert rates == pytest.approx(expected, rel=1e-4)


def test_the_rate_halves_on_plateaus(tmp_path: Path) -> None:
    still = {"learning_rate": 1e-12, "schedule": "plateau", "decay": 0.5, "plateau_epochs": 2}
    plan = config("vsepp", optimizer=still, epochs=8, patience=8, batch_size=120)
    Trainer(plan, TRAIN, VAL, tmp_path).fit()
    rates = [float(row["rate"]) for row in read_rows(tmp_path / LOG)]
    assert rates == pytest.approx([1e-12] * 4 + [5e-13] * 3 + [2.5e-13])
    progress = load_tensors(tmp_path / LAST)[1]["progress"]
    assert progress["drops"] == [3, 6]  # stored for a resumed run


@pytest.mark.parametrize("values", [{"method": "mvam"}, {"arguments": {"mlp_dim": 8}}])
def test_padding_changes_neither_views_nor_losses(values: dict[str, Any], tmp_path: Path) -> None:
    """Images with 1 to 5 features, with and without padding of large values."""
    text = {"word_dim": 8, "hidden_dim": 16}
    plan = config(**values, text=text, feature_dropout=0.0, size_augmentation=0.0)
    data, lengths, trainers = make_features(24, 0), np.arange(24) % 5 + 1, []
    for padding, junk in ((0, 0.0), (3, 1e3)):
        features = np.pad(data.features[:], ((0, 0), (0, padding), (0, 0)))
        features[np.arange(5 + padding) >= lengths[:, None]] = junk
        padded = replace(data, features=features, lengths=lengths)
        trainers.append(Trainer(plan, padded, padded, tmp_path / f"{padding}"))
    views = [trainer.validation_views()[0].embeddings for trainer in trainers]
    torch.testing.assert_close(views[0], views[1], rtol=1e-4, atol=1e-5)
    losses = []
    for trainer in trainers:
        trainer.model.train()
        batch = next(iter(trainer.batches(1)))
        real = torch.from_numpy(trainer.train.mask(batch.image_ids.numpy(), 5))
        assert torch.equal(batch.mask[:, :5], real)
        assert not batch.mask[:, 5:].any()
        losses.append(sum(trainer.losses(batch, 1).values()))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
