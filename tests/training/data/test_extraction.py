"""Extraction: features are the encoder's, nothing that is done is lost, damage is reported."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from export.encoders.sources import load_image_source
from models.preprocess import Preprocess
from tests.training.photographs import SIZE, WIDTH, write_encoder, write_photographs
from training.data import features
from training.data.features import Extraction, extract, feature_file, load_features, read_features
from training.data.image_files import ImageFiles, Lazy, crops
from training.data.photographs import open_photographs
from training.data.split import Copies

ROOT = Path(__file__).parents[3]


class Counting(torch.nn.Module):
    """Means over quarters of a picture; counts what it read, and stops when told to."""

    def __init__(self, stop_after: int = 10**6) -> None:
        super().__init__()
        self.read, self.stop_after = 0, stop_after

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, 4, 3)."""
        if self.read >= self.stop_after:
            raise KeyboardInterrupt
        self.read += len(pixels)
        return torch.nn.functional.adaptive_avg_pool2d(pixels, 2).flatten(2).mT


def run(encoder: torch.nn.Module, images: Sequence[Image.Image], path: Path) -> None:
    extract(encoder, Preprocess(SIZE), images, path, Extraction(device="cpu"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photographs(tmp_path / "photos", {"train": 10, "val": 4})


def arrays(path: Path) -> Lazy[Image.Image]:
    pixels = np.load(path)
    return Lazy(len(pixels), lambda row: Image.fromarray(pixels[row]))


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


def test_another_encoder_makes_another_file(photos: Path, backbone: Path, tmp_path: Path) -> None:
    how = Extraction(tmp_path / "cache", device="cpu")
    split = open_photographs(photos, "train")
    sources = [backbone, write_encoder(tmp_path / "other", seed=1)]
    paths = {feature_file(split, source, how) for source in sources}
    renamed = [Path(f"{path}.jpg") for path in files_of(photos).paths]
    others = replace(split, images=ImageFiles(renamed))
    paths.add(feature_file(others, backbone, how))
    assert len(paths) == 3


def test_what_is_cached_is_not_read_again(
    photos: Path, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Extraction(tmp_path / "cache", device="cpu")
    first = load_features(photos, "val", backbone, extraction=how)
    monkeypatch.setattr(features, "load_image_source", lambda *_: pytest.fail("read again"))
    again = load_features(photos, "val", backbone, extraction=how)
    assert np.array_equal(first.features[:], again.features[:])
    assert again.captions == open_photographs(photos, "val").captions
    assert len(again.first(2).captions) == 10


def test_kill_9_loses_nothing_that_is_marked_as_done(tmp_path: Path) -> None:
    """A process is killed in the middle; the next one reads only the rows that are not done."""
    pixels, path = tmp_path / "pixels.npy", tmp_path / "f.npy"
    random = np.random.default_rng(0)
    np.save(pixels, random.integers(0, 255, (160, SIZE, SIZE, 3), np.uint8))
    script = f"""
import time, numpy as np
from pathlib import Path
from tests.training.data import test_extraction as t
class Slow(t.Counting):
    def forward(self, pixels):
        time.sleep(0.4)
        return super().forward(pixels)
t.run(Slow(), t.arrays(Path("{pixels}")), Path("{path}"))
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    unfinished, deadline = tmp_path / ".f.npy.unfinished.partial", time.monotonic() + 60
    done = 0
    while done < 32 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
        if unfinished.is_file():
            done = np.isfinite(np.load(unfinished, mmap_mode="r")[:, 0, 0]).sum()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = np.isfinite(np.load(unfinished)[:, 0, 0]).sum()
    assert 0 < done < 160
    encoder, images = Counting(), arrays(pixels)
    run(encoder, images, path)
    assert encoder.read == 160 - done
    run(Counting(), images, tmp_path / "whole.npy")
    assert np.array_equal(np.load(path), np.load(tmp_path / "whole.npy"))


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
        load_features(photos, "train", backbone, extraction=how)
    assert all(f"{paths[row]} is not a readable image" in str(caught.value) for row in (2, 7))
    assert "--skip-damaged" in str(caught.value)

    kept = load_features(photos, "train", backbone, extraction=replace(how, skip_damaged=True))
    assert (len(kept.features), len(kept.captions)) == (8, 40)
    assert kept.captions[10].startswith("A grey field")  # of the fourth photograph
    encoder, preprocess, _ = load_image_source(backbone)
    with torch.inference_mode():
        fourth = encoder(torch.from_numpy(preprocess([Image.open(paths[3])])))[0]
    np.testing.assert_allclose(kept.features[2:3][0], fourth.numpy(), rtol=2e-3, atol=2e-3)


def test_mended_pictures_alone_are_read_again(photos: Path, tmp_path: Path) -> None:
    paths, path = files_of(photos).paths, tmp_path / "f.npy"
    good = paths[2].read_bytes()
    paths[2].write_bytes(b"")
    with pytest.raises(ValueError, match=r"1 of 10 images cannot be read:\n.*002\.jpg"):
        run(Counting(), ImageFiles(paths), path)
    paths[2].write_bytes(good)
    encoder = Counting()
    run(encoder, ImageFiles(paths), path)
    assert not path.with_suffix(".json").exists()
    assert np.load(path)[:, 0, 0].all()  # the numbers that mark rows as done are real ones
    assert encoder.read == 1
    run(Counting(), ImageFiles(paths), tmp_path / "whole.npy")
    assert np.array_equal(np.load(path), np.load(tmp_path / "whole.npy"))


def test_features_beyond_half_precision_are_refused(photos: Path, tmp_path: Path) -> None:
    class Huge(Counting):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().forward(pixels) * 1e6

    files = files_of(photos)
    with pytest.raises(ValueError, match="not finite in half precision"):
        run(Huge(), files, tmp_path / "f.npy")


def test_a_full_disk_is_told(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(features.shutil, "disk_usage", lambda _: usage)
    files = files_of(photos)
    with pytest.raises(OSError, match=r"need 0\.0 GB.*make room or choose another --cache"):
        run(Counting(), files, tmp_path / "f.npy")


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
    how = Extraction(tmp_path / "cache", device="cpu")
    data = load_features(photos, "train", backbone, how, copies=3)
    assert isinstance(data.features, Copies)
    assert data.features.shape == (10, 4, WIDTH)
    assert len({part[0].tobytes() for part in data.features.parts}) == 3
    one = load_features(photos, "train", backbone, how)
    assert np.array_equal(one.features[:], data.features[:])
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 3
    np.save(tmp_path / "train_ims.npy", np.zeros((1, 2, 3), np.float32))
    (tmp_path / "train_caps.txt").write_text("a dog")
    with pytest.raises(ValueError, match=r"feature_copies=2 crops photographs, and .* holds none"):
        load_features(tmp_path, "train", backbone, copies=2)
