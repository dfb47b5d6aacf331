"""Ready-made features: what the layout's files become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.datasets import load_split
from training.precomputed import load_precomputed

NOWHERE = Path("there is no backbone")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four training images with two captions each, and two for validation."""
    for part, images in (("train", 4), ("dev", 2)):
        numbers = np.arange(images * 6, dtype=np.float32).reshape(images, 3, 2)
        np.save(tmp_path / f"{part}_ims.npy", numbers)
        lines = [f"{part} {i // 2} caption {i % 2}" for i in range(2 * images)]
        (tmp_path / f"{part}_caps.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_captions_belong_to_images_in_turn(folder: Path) -> None:
    data = load_split(folder, "train", NOWHERE)
    assert data.features.shape == (4, 3, 2)
    assert data.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.captions[5] == "train 2 caption 1"
    assert not data.summary_token


def test_validation_is_called_dev(folder: Path) -> None:
    assert load_split(folder, "val", NOWHERE).captions[0] == "dev 0 caption 0"


def test_a_limit_counts_images(folder: Path) -> None:
    data = load_split(folder, "train", NOWHERE, 3)
    assert len(data.features) == 3
    assert len(data.captions) == len(data.image_of) == 6


def test_captions_that_do_not_divide_are_refused(folder: Path) -> None:
    (folder / "train_caps.txt").write_text("one\ntwo\nthree\n")
    with pytest.raises(ValueError, match="holds 3 captions, which do not divide evenly"):
        load_precomputed(folder, "train")


def test_a_folder_with_nothing_says_what_it_could_hold(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither a rendered split .* nor ready-made"):
        load_split(tmp_path, "train", NOWHERE)
