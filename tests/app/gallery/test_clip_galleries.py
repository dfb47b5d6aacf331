"""Galleries with clips: frames, windows, and nothing is encoded twice."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polyview.app.gallery import encode
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import from_folder
from tests.app.clip_files import plain, write_animation
from tests.app.conftest import finish
from tests.app.gallery.conftest import FakeRuntime, indexed

TOGETHER = 4  # frames of a window
GREY = [plain((10 * i, 10 * i, 10 * i)) for i in range(10)]


@pytest.fixture
def moving(tmp_path: Path) -> Path:
    """A still, an animation of ten seconds, one of three frames, and a still."""
    folder = tmp_path / "moving"
    folder.mkdir()
    plain("black").save(folder / "a.png")
    write_animation(folder / "b.webp", GREY, 1000)
    write_animation(folder / "c.gif", [*map(plain, ("red", "lime", "blue"))], [100, 200, 100])
    plain("white").save(folder / "d.png")
    return folder


def test_frames_are_images_of_their_clip(moving: Path, tmp_path: Path) -> None:
    index = indexed(moving, tmp_path / "cache", FakeRuntime())
    assert {place: len(moments) for place, moments in index.clips.items()} == {1: 10, 2: 3}
    assert len(index) == 4
    for gallery in index.images.values():
        ids = gallery.ids()
        assert np.bincount(ids % 4).tolist() == [1, 10, 3, 1]
        assert ids[ids % 4 == 2].tolist() == [2, 6, 10]
    assert len([*(tmp_path / "cache/thumbnails").iterdir()]) == 10 + 3
    lime = index.images["one"].views([6]).embeddings[0]  # the animation's second frame
    torch.testing.assert_close(lime, torch.tensor([[0.0, 1, 0]] * 2), atol=0.02, rtol=0)


def test_a_clip_is_added_as_a_whole(
    moving: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "MAX_BATCH", 1)  # the still is encoded before the clips
    runtime: Any = FakeRuntime()
    honest = runtime.square_features
    index = Index(runtime, from_folder(moving), tmp_path / "cache")

    def stopping(*arguments: Any, **named: Any) -> torch.Tensor:
        index.stop()
        return honest(*arguments, **named)

    runtime.square_features = stopping
    finish(index)
    assert (index.progress.stage, index.clips) == ("stopped", {})
    runtime.square_features = honest
    assert finish(index).clips.keys() == {1, 2}


def test_a_clip_has_a_row_for_each_window(moving: Path, tmp_path: Path) -> None:
    runtime = FakeRuntime("a pack of sets", frames=TOGETHER)
    index = indexed(moving, tmp_path / "cache", runtime)
    clips, views = index.clips, index.images["one"].views
    assert {place: len(moments) for place, moments in clips.items()} == {1: 10, 2: TOGETHER}
    # of 10 frames: 3, 3 and 4
    assert [window[0] for window in clips.windows(1)] == [1, 1 + 3 * 4, 1 + 6 * 4]
    assert clips.window_of(1 + 5 * 4) == [1 + place * 4 for place in (3, 4, 5)]
    assert (clips.windows(0), clips.window_of(3)) == ([[0]], [3])
    assert len(index) == 4
    for gallery in index.images.values():
        assert sorted(gallery.ids().tolist()) == [0, 1, 2, 3, 13, 25]
    last = views([25]).embeddings[0, 0, 0]  # the mean of frames 6 to 9
    torch.testing.assert_close(last, torch.tensor(75 / 255), atol=0.02, rtol=0)
    torch.testing.assert_close(views([3]).embeddings[0], torch.ones(2, 3))
    # a frame with twice the duration counts twice and is encoded once
    assert [moment.frame for moment in clips[2]] == [0, 1, 1, 2]
    assert [round(moment.seconds, 3) for moment in clips[2]] == [0.05, 0.15, 0.25, 0.35]
    assert runtime.encoded == 2 + 10 + 3
    mean = views([2]).embeddings[0, 0]
    torch.testing.assert_close(mean, torch.tensor([0.25, 0.5, 0.25]), atol=0.02, rtol=0)


def test_packs_of_sets_and_of_images_share_a_folder(moving: Path, tmp_path: Path) -> None:
    """Each has its own frames and views; nothing is computed again if they alternate."""
    cache, still = tmp_path / "cache", FakeRuntime()
    together = FakeRuntime("a pack of sets", frames=TOGETHER)
    first = indexed(moving, cache, still)
    indexed(moving, cache, together)
    wider = FakeRuntime("a pack of sets", frames=8)  # the same weights
    other = indexed(moving, cache, wider)
    assert [window[0] for window in other.clips.windows(1)] == [1, 1 + 5 * 4]
    counts = [(item.encoded, item.heads) for item in (still, together, wider)]
    assert indexed(moving, cache, still).clips == first.clips
    again = indexed(moving, cache, together)
    assert [window[0] for window in again.clips.windows(1)] == [1, 13, 25]
    mean = again.images["one"].views([1]).embeddings[0, 0, 0]
    torch.testing.assert_close(mean, torch.tensor(10 / 255), atol=0.02, rtol=0)
    indexed(moving, cache, wider)
    assert [(item.encoded, item.heads) for item in (still, together, wider)] == counts
    (moving / "b.webp").rename(moving / "renamed.webp")
    indexed(moving, cache, together)
    assert (together.encoded, together.heads) == counts[1]


def test_methods_with_different_image_encoders(moving: Path, tmp_path: Path) -> None:
    runtime: Any = FakeRuntime()
    runtime.image_encoder_of = lambda method: {"one": "eye.onnx", "two": "other.onnx"}[method]
    runtime.info.files["other.onnx"] = SimpleNamespace(sha256="another encoder")
    encode_squares = runtime.square_features

    def square_features(squares: Any, method: str, single_thread: bool) -> torch.Tensor:
        return encode_squares(squares, method, single_thread) * (1 if method == "one" else 10)

    runtime.square_features = square_features
    index = indexed(moving, tmp_path / "cache", runtime)
    one, two = (gallery.views(gallery.ids()).embeddings for gallery in index.images.values())
    torch.testing.assert_close(two, one * 2 * 10)
