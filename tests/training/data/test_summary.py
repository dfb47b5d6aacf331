"""[CLS] elements: methods that read one are refused without it, and none is ever dropped."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from polyview.export.pack.validation import check
from polyview.models import METHODS, Views
from polyview.models.encoders import TEXT_ENCODERS
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.vse_infty import VSEPP
from polyview.training.data.split import Split
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.trainer import Trainer


class Summarising(BiGRUTextEncoder):
    """A text encoder that claims to put a summary first."""

    summary_token: ClassVar[bool] = True


class Watched(VSEPP):
    """A method that notes whether the masks it gets hold every set's first element."""

    kept_first: ClassVar[list[bool]] = []

    def encode(
        self, side: str, features: torch.Tensor, mask: torch.Tensor, attention: bool
    ) -> Views:
        """See `Method.encode`."""
        self.kept_first.append(bool(mask[:, 0].all()))
        return super().encode(side, features, mask, attention)


@pytest.fixture
def with_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXT_ENCODERS, "summarising", Summarising)


def config(arch: str = "bigru", method: str = "base_cls") -> TrainConfig:
    values = {
        "method": method,
        "arguments": {"embed_dim": 8},
        "text": {"arch": arch, "word_dim": 8, "hidden_dim": 8},
        "epochs": 1,
        "batch_size": 24,
        "size_augmentation": 0.9,
    }
    return check(TrainConfig, values)


@pytest.mark.usefixtures("with_summary")
def test_size_augmentation_keeps_the_summary(
    train_set: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "vsepp", Watched)
    for name, has in (("with", True), ("without", False)):
        data = replace(train_set, summary_token=has)
        arch = "summarising" if has else "bigru"
        trainer = Trainer(config(arch, "vsepp"), data, data, tmp_path / name)
        Watched.kept_first.clear()
        trainer.step(next(iter(trainer.batches(9))), 9)
        assert Watched.kept_first == [has, has]
