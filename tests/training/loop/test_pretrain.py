"""Pretraining of the image encoder, and the features it leaves behind."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.models.checkpoint import load_tensors
from polyview.training.loop.loop import LAST
from polyview.training.pretrain import (
    THINGS,
    PretrainConfig,
    Pretraining,
    cell_labels,
    object_r_precision,
)
from polyview.training.scenes.store import load_scenes
from polyview.training.scenes.world import LABELS


@pytest.fixture(scope="module")
def backbone(scenes_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("backbone")
    Pretraining(_config(scenes_folder), out, resume=False).fit()
    return out


def _config(data: Path, epochs: int = 2) -> PretrainConfig:
    return PretrainConfig(
        widths=(8, 8, 12, 16), blocks=(1, 1, 1), data=str(data), epochs=epochs, batch_size=8,
        precision="fp32", warmup_steps=2,
    )  # fmt: skip


@pytest.mark.font
def test_cell_labels_agree_with_the_instance_map(scenes_folder: Path) -> None:
    data = load_scenes(scenes_folder / "val")
    labels = cell_labels(data, np.array([3]), 7)[0].reshape(7, 7, -1)
    names = [LABELS[label] for label in THINGS]
    instances = np.asarray(data.instances[3])
    side = instances.shape[0] // 7
    for row in range(7):
        for column in range(7):
            cell = instances[row * side : (row + 1) * side, column * side : (column + 1) * side]
            for i, item in enumerate(data.scenes[3].objects):
                share = float((cell == i + 1).mean())
                same = [o.name for o in data.scenes[3].objects].count(item.name) > 1
                known = labels[row, column, names.index(item.name)]
                assert known == 1 or share < 0.15
                assert known == 0 or same or share > 0


@pytest.mark.font
def test_every_object_is_in_some_cell(scenes_folder: Path) -> None:
    data = load_scenes(scenes_folder / "val")
    labels = cell_labels(data, np.arange(len(data)), 7).max(axis=1)
    names = [LABELS[label] for label in THINGS]
    for row, scene in zip(labels, data.scenes, strict=True):
        displayed = {name for name, on in zip(names, row, strict=True) if on and ":" not in name}
        assert displayed == {item.name for item in scene.objects}


def test_r_precision_by_hand() -> None:
    logits = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    truth = np.array([[1, 0, 1, 0], [0, 0, 0, 1]])
    assert object_r_precision(logits, truth) == pytest.approx(75.0)


class Interrupted(Pretraining):
    """Ends after one epoch."""

    def stop_reason(self, epoch: int) -> str:  # noqa: D102
        return "interrupted" if epoch else ""


@pytest.mark.font
def test_resume_gives_the_same_weights(scenes_folder: Path, backbone: Path, tmp_path: Path) -> None:
    Interrupted(_config(scenes_folder), tmp_path, resume=False).fit()
    Pretraining(_config(scenes_folder), tmp_path, resume=True).fit()
    expected, resumed = (load_tensors(run / LAST)[0] for run in (backbone, tmp_path))
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
