"""Extraction: features are the encoder's, files are whole or absent, damage is reported."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.export.encoders.sources import load_image_source
from polyview.models.preprocess import Preprocess
from polyview.training.data import features
from polyview.training.data.features import (
    Extraction,
    extract,
    feature_file,
    read_features,
    without_damaged,
)
from polyview.training.data.image_files import ImageFiles, crops
from polyview.training.data.photographs import open_photographs
from polyview.training.data.split import Copies
from tests.training.photographs import SIZE, WIDTH, write_encoder, write_photographs


class Counting(torch.nn.Module):
    """Means over quarters of an image; counts what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, 4, 3)."""
        self.read += len(pixels)
        return torch.nn.functional.adaptive_avg_pool2d(pixels, 2).flatten(2).mT


def run(encoder: torch.nn.Module, images: Sequence[Image.Image], path: Path) -> None:
    extract(encoder, Preprocess(SIZE), images, path, torch.device("cpu"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photographs(tmp_path / "photos", {"train": 10, "val": 4})


def files_of(photos: Path) -> ImageFiles:
    files = open_photographs(photos, "train").images
    assert isinstance(files, ImageFiles)
    return files


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "backbone")


@pytest.mark.parametrize("worth", [1, 200], ids=["as a graph", "by torch"])
def test_features_are_those_of_the_encoder(
    worth: int, photos: Path, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "WORTH_A_GRAPH", worth)
    how = Extraction(tmp_path / "cache", device="cpu")
    split = open_photographs(photos, "train")
    made = read_features(split, backbone, how).features
    path = feature_file(split, backbone, how)
    encoder, preprocess, _ = load_image_source(backbone)
    with torch.inference_mode():
        pixels = preprocess(list(split.images))
        expected = encoder(torch.from_numpy(pixels)).numpy()
    assert made.shape == (10, 4, WIDTH)
    assert isinstance(made, np.memmap)
    assert made.dtype == np.float16
    np.testing.assert_allclose(made, expected, rtol=2e-3, atol=2e-3)
    assert list(path.parent.iterdir()) == [path]


def test_two_that_want_the_same_file_make_it_once(photos: Path, tmp_path: Path) -> None:
    files, path = files_of(photos), tmp_path / "f.npy"
    encoders = [Counting(), Counting()]
    asking = [threading.Thread(target=run, args=(encoder, files, path)) for encoder in encoders]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert sorted(encoder.read for encoder in encoders) == [0, 10]


def test_damaged_pictures_are_all_named(photos: Path, backbone: Path, tmp_path: Path) -> None:
    how = Extraction(tmp_path / "cache", device="cpu")
    paths = files_of(photos).paths
    good = paths[2].read_bytes()
    paths[2].write_bytes(good[: len(good) // 2])
    paths[7].write_text("no picture")
    with pytest.raises(ValueError, match="2 of 10 images cannot be read") as caught:
        read_features(open_photographs(photos, "train"), backbone, how)
    assert all(f"{paths[row]} is not a readable image" in str(caught.value) for row in (2, 7))
    assert "--skip-damaged" in str(caught.value)

    assert not list((tmp_path / "cache").rglob("*.npy"))  # whole or absent
    train = open_photographs(photos, "train")
    assert len(without_damaged(train, how).images) == 10
    without_damaged(train, replace(how, skip_damaged=True))
    whole = read_features(without_damaged(train, how), backbone, how)  # by the list of the former
    assert (len(whole.features), len(whole.captions)) == (8, 40)
    assert whole.image_of.tolist() == np.repeat(np.arange(8), 5).tolist()
    assert whole.captions[10].startswith("A grey field")  # of the fourth photograph
    encoder, preprocess, _ = load_image_source(backbone)
    with torch.inference_mode():
        fourth = encoder(torch.from_numpy(preprocess([Image.open(paths[3])])))[0]
    np.testing.assert_allclose(whole.features[2:3][0], fourth.numpy(), rtol=2e-3, atol=2e-3)


def test_features_beyond_half_precision_are_refused(photos: Path, tmp_path: Path) -> None:
    class Huge(Counting):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().forward(pixels) * 1e6

    files = files_of(photos)
    with pytest.raises(ValueError, match="not finite in half precision"):
        run(Huge(), files, tmp_path / "f.npy")


def test_another_look_is_a_part_of_the_picture_and_always_the_same(photos: Path) -> None:
    pictures = files_of(photos)
    looks = [crops(pictures, number) for number in (1, 1, 2)]
    assert all(len(look) == 10 for look in looks)
    first, again, other = ([np.asarray(look[i]) for i in range(10)] for look in looks)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    mirrored = 0
    for i, cut in enumerate(first):
        whole = np.asarray(pictures[i])
        assert 0.45 < cut.shape[0] * cut.shape[1] / (whole.shape[0] * whole.shape[1]) <= 1
        windows = np.lib.stride_tricks.sliding_window_view(whole, cut.shape)[..., 0, :, :, :]
        inside = [(windows == look).all(axis=(2, 3, 4)).any() for look in (cut, cut[:, ::-1])]
        assert any(inside)
        mirrored += not inside[0]
    assert 0 < mirrored < 10


def test_looks_are_kept_beside_the_images(photos: Path, backbone: Path, tmp_path: Path) -> None:
    how, train = Extraction(tmp_path / "cache", device="cpu"), open_photographs(photos, "train")
    data = read_features(train, backbone, how, copies=3)
    assert isinstance(data.features, Copies)
    assert data.features.shape == (10, 4, WIDTH)
    assert len({part[0].tobytes() for part in data.features.parts}) == 3
    item = read_features(train, backbone, how)
    assert np.array_equal(item.features[:], data.features[:])
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 3
