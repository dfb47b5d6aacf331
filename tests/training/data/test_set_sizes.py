"""Images that differ in how many features they have: padding counts nowhere, whatever it holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.models import METHODS
from polyview.training.data.split import Split
from polyview.training.loop.trainer import Trainer
from tests.training.conftest import make_features
from tests.training.loop.test_trainer import config

POOLS = sorted(name for name in METHODS if not METHODS[name].summary_token)
COUNT = 24


def ragged(padding: int, junk: float) -> Split:
    """The small world, its images cut to 1 to 5 features, and so much junk behind them."""
    data = make_features(COUNT, 0)
    lengths = np.arange(COUNT) % 5 + 1
    features = np.pad(data.features[:], ((0, 0), (0, padding), (0, 0)))
    features[np.arange(5 + padding) >= lengths[:, None]] = junk
    return replace(data, features=features, lengths=lengths)


def trainer_of(method: str, data: Split, out: Path) -> Trainer:
    plain = {"text": {"word_dim": 8, "hidden_dim": 16}, "epochs": 1, "batch_size": COUNT}
    still = {"feature_dropout": 0.0, "size_augmentation": 0.0}
    return Trainer(config(method, **plain, **still), data, data, out)


@pytest.mark.parametrize("method", POOLS)
def test_padding_counts_nowhere(method: str, tmp_path: Path) -> None:
    tight, wide = (
        trainer_of(method, ragged(padding, junk), tmp_path / f"{padding}")
        for padding, junk in ((0, 0.0), (3, 1e3))
    )
    views = [trainer.validation_views()[0].embeddings for trainer in (tight, wide)]
    torch.testing.assert_close(views[0], views[1], rtol=1e-4, atol=1e-5)
    if method == "avse":  # training draws for every place of a set, and so more for padding
        return
    losses = []
    for trainer in (tight, wide):
        trainer.model.train()
        batch = next(iter(trainer.batches(1)))
        real = torch.from_numpy(trainer.train.mask(batch.image_ids.numpy(), 5))
        assert torch.equal(batch.mask[:, :5], real)
        assert not batch.mask[:, 5:].any()
        losses.append(sum(trainer.losses(batch, 1).values()))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
