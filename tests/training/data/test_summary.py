"""[CLS] elements: methods that read one are refused without it, and none is ever dropped."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from models import METHODS, Views
from models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from models.encoders.bigru import BiGRUTextEncoder
from models.vse_infty import VSEPP
from training.data.split import Split
from training.loop.config import TrainConfig
from training.loop.trainer import Trainer
from training.settings import from_values


class Summarising(BiGRUTextEncoder):
    """A text encoder that claims to put a summary first."""

    summary_token: ClassVar[bool] = True


class Watched(VSEPP):
    """A method that notes whether the masks it gets hold every set's first element."""

    kept_first: ClassVar[list[bool]] = []

    def encode_image(
        self, features: torch.Tensor, mask: torch.Tensor, *, attention: bool = False
    ) -> Views:
        """See `Method.encode_image`."""
        self.kept_first.append(bool(mask[:, 0].all()))
        return super().encode_image(features, mask, attention=attention)

    def encode_text(
        self, features: torch.Tensor, mask: torch.Tensor, *, attention: bool = False
    ) -> Views:
        """See `Method.encode_text`."""
        self.kept_first.append(bool(mask[:, 0].all()))
        return super().encode_text(features, mask, attention=attention)


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
    return from_values(TrainConfig, values)


def test_transformers_that_begin_with_a_summary_say_so() -> None:
    images = {name for name, encoder in IMAGE_ENCODERS.items() if encoder.summary_token}
    texts = {name for name, encoder in TEXT_ENCODERS.items() if encoder.summary_token}
    assert images == {"vit", "clip_vision", "siglip_vision"}
    assert texts == {"bert"}


@pytest.mark.usefixtures("with_summary")
@pytest.mark.parametrize(
    ("images", "arch", "lacking"),
    [
        (False, "bigru", "the image and the text encoder has none"),
        (True, "bigru", "the text encoder has none"),
        (False, "summarising", "the image encoder has none"),
    ],
)
def test_base_cls_needs_a_summary_on_both_sides(
    images: bool, arch: str, lacking: str, train_set: Split, tmp_path: Path
) -> None:
    data = replace(train_set, summary_token=images)
    with pytest.raises(ValueError, match=rf'"base_cls" reads .* {lacking}; use encoders whose'):
        Trainer(config(arch), data, data, tmp_path)
    assert not (tmp_path / "config.toml").exists()


@pytest.mark.usefixtures("with_summary")
def test_base_cls_trains_with_one(train_set: Split, val_set: Split, tmp_path: Path) -> None:
    train, val = (replace(data, summary_token=True) for data in (train_set, val_set))
    trainer = Trainer(config("summarising"), train, val, tmp_path)
    assert trainer.fit()["rsum"] > 0


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


def test_an_unknown_text_encoder_is_refused(train_set: Split, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'text\.arch must be one of bigru.*, not "lstm"'):
        Trainer(config("lstm"), train_set, train_set, tmp_path)
