"""Galleries with clips: each is one hit by its best frame, and nothing of it is encoded twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import from_folder
from tests.app.clip_files import plain, write_animation, write_video
from tests.app.conftest import finish
from tests.app.pretended import Pretended, indexed

SECONDS = 10  # of a video below: as many frames are taken of it


def video(path: Path, *colours: str) -> Path:
    frames = [plain(colours[i * len(colours) // SECONDS]) for i in range(SECONDS)]
    return write_video(path, [frame for frame in frames for _ in range(5)], rate=5)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two stills around a video and an animation of three frames."""
    folder = tmp_path / "photos"
    folder.mkdir()
    plain("black").save(folder / "a.png")
    video(folder / "b.mp4", "red", "blue")
    write_animation(folder / "c.gif", [*map(plain, ("red", "lime", "blue"))])
    plain("white").save(folder / "d.jpg")
    return folder


def test_frames_are_images_of_their_clip(photos: Path, tmp_path: Path) -> None:
    index = indexed(photos, tmp_path / "cache", Pretended())
    assert {place: len(moments) for place, moments in index.clips.items()} == {1: SECONDS, 2: 3}
    assert len(index) == 4
    assert str(index.progress) == "4 images ready"
    for gallery in index.images.values():
        ids = gallery.ids()
        assert (np.bincount(ids % 4) == [1, SECONDS, 3, 1]).all()
        assert [ids[i] for i in range(len(ids)) if ids[i] % 4 == 2] == [2, 6, 10]
    lime = index.images["one"].views([6]).embeddings[0]  # the animation's second frame
    torch.testing.assert_close(lime, torch.tensor([[0.0, 1, 0]] * 2), atol=0.02, rtol=0)


def test_stopped_within_a_clip_nothing_of_it_is_shown(photos: Path, tmp_path: Path) -> None:
    runtime = Pretended()
    honest = runtime.square_features
    index = Index(runtime.runtime, from_folder(photos), tmp_path / "cache")

    def stopping(*arguments: object, **named: object) -> torch.Tensor:
        index.stop()
        return honest(*arguments, **named)  # type: ignore[arg-type]

    runtime.square_features = stopping  # type: ignore[method-assign]
    finish(index)
    assert (index.progress.stage, index.clips) == ("stopped", {})
    runtime.square_features = honest  # type: ignore[method-assign]
    assert finish(index).clips.keys() == {1, 2}


TOGETHER = 4  # frames of a set
GREY = [plain((10 * i, 10 * i, 10 * i)) for i in range(24)]


def sets() -> Pretended:
    return Pretended("a pack of sets", frames=TOGETHER)


@pytest.fixture
def moving(tmp_path: Path) -> Path:
    """A still, an animation of ten seconds, one of three frames, and a still."""
    folder = tmp_path / "moving"
    folder.mkdir()
    plain("black").save(folder / "a.png")
    write_animation(folder / "b.webp", GREY[:10], 1000)
    write_animation(folder / "c.gif", [*map(plain, ("red", "lime", "blue"))], [100, 200, 100])
    plain("white").save(folder / "d.png")
    return folder


def test_a_clip_is_a_row_for_each_window_and_a_still_image_is_one(
    moving: Path, tmp_path: Path
) -> None:
    runtime = sets()
    index = indexed(moving, tmp_path / "cache", runtime)
    assert {place: len(moments) for place, moments in index.clips.items()} == {1: 10, 2: TOGETHER}
    assert [window[0] for window in index.clips.windows(1)] == [
        1,
        1 + 3 * 4,
        1 + 6 * 4,
    ]  # of 10 frames: 3, 3 and 4
    assert index.clips.read_with(1 + 5 * 4) == [1 + place * 4 for place in (3, 4, 5)]
    assert (index.clips.windows(0), index.clips.read_with(3)) == ([[0]], [3])
    assert len(index) == 4
    for gallery in index.images.values():
        assert sorted(gallery.ids().tolist()) == [0, 1, 2, 3, 13, 25]
    last = index.images["one"].views([25]).embeddings[0, 0, 0]  # the mean of frames 6 to 9
    torch.testing.assert_close(last, torch.tensor(75 / 255), atol=0.02, rtol=0)
    still = index.images["one"].views([3]).embeddings[0]
    torch.testing.assert_close(still, torch.ones(2, 3))


def test_a_frame_on_the_screen_for_twice_as_long_counts_twice_and_is_encoded_once(
    moving: Path, tmp_path: Path
) -> None:
    runtime = sets()
    index = indexed(moving, tmp_path / "cache", runtime)
    assert [moment.frame for moment in index.clips[2]] == [0, 1, 1, 2]
    assert [round(moment.seconds, 3) for moment in index.clips[2]] == [0.05, 0.15, 0.25, 0.35]
    assert runtime.encoded == 2 + 10 + 3
    mean = index.images["one"].views([2]).embeddings[0, 0]
    torch.testing.assert_close(mean, torch.tensor([0.25, 0.5, 0.25]), atol=0.02, rtol=0)


def test_packs_of_sets_and_of_still_images_keep_their_own_over_one_folder(
    moving: Path, tmp_path: Path
) -> None:
    """Each has its own frames and views; nothing is read again where they take turns."""
    cache, still, together = tmp_path / "cache", Pretended(), sets()
    first = indexed(moving, cache, still)
    indexed(moving, cache, together)
    wider = Pretended("a pack of sets", frames=8)  # the same weights
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
