"""Pretraining of the image encoder: its labels, and that it resumes."""

from pathlib import Path

import numpy as np
import pytest

from polyview.training import pretrain
from polyview.training.scenes.store import load_scenes, write_split
from polyview.training.scenes.world import LABELS
from tests.training.conftest import check_resume


@pytest.fixture(scope="module")
def scenes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 training and 8 validation scenes."""
    out = tmp_path_factory.mktemp("scenes")
    write_split(out, "train", 16)
    write_split(out, "val", 8)
    return out


@pytest.mark.font
def test_cell_labels_agree_with_the_instance_map(scenes_folder: Path) -> None:
    data = load_scenes(scenes_folder / "val")
    all_labels = pretrain.cell_labels(data, np.arange(len(data)), 7)
    names = [LABELS[label] for label in pretrain.THINGS]
    for row, scene in zip(all_labels.max(axis=1), data.scenes, strict=True):  # in some cell
        displayed = {name for name, on in zip(names, row, strict=True) if on and ":" not in name}
        assert displayed == {item.name for item in scene.objects}
    labels, objects = all_labels[3].reshape(7, 7, -1), data.scenes[3].objects
    cells = np.asarray(data.instances[3]).reshape(7, 32, 7, 32).swapaxes(1, 2)
    for i, item in enumerate(objects):
        shares = (cells == i + 1).mean(axis=(2, 3))  # (7, 7)
        known = labels[..., names.index(item.name)] == 1
        assert (known | (shares < 0.15)).all()
        if [other.name for other in objects].count(item.name) == 1:
            assert (shares[known] > 0).all()


def test_r_precision_by_hand() -> None:
    logits = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    truth = np.array([[1, 0, 1, 0], [0, 0, 0, 1]])
    assert pretrain.object_r_precision(logits, truth) == pytest.approx(75.0)


@pytest.mark.font
def test_resume_gives_the_same_weights(scenes_folder: Path, tmp_path: Path) -> None:
    small = {"widths": (8, 8, 12, 16), "blocks": (1, 1, 1), "data": str(scenes_folder)}
    plan = {"epochs": 2, "batch_size": 8, "precision": "fp32", "warmup_steps": 2}
    config = pretrain.PretrainConfig.model_validate({**small, **plan})
    pretrain.Pretraining(config, tmp_path / "whole", resume=False).fit()
    check_resume(pretrain.Pretraining, config, tmp_path / "whole", tmp_path / "part")
