"""Galleries of packs that read the frames of clips as sets: windows, what is kept, what is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from app.gallery.clips import chosen_frames, open_picture
from app.gallery.collection import CollectionImage, from_folder
from app.gallery.image_files import open_image_file
from app.gallery.indexing import Index
from app.gallery.sampling import MOST
from tests.app.clip_files import mean_colour, plain, write_animation, write_video
from tests.app.conftest import finish
from tests.app.pretended import Pretended
from training.data.image_files import read_frames

TOGETHER = 4  # frames of a set
GREY = [plain((10 * i, 10 * i, 10 * i)) for i in range(24)]


def indexed(folder: Path, cache: Path, runtime: Pretended) -> Index:
    index = finish(Index(runtime.runtime, from_folder(folder), cache))
    assert index.progress.stage == "ready", index.progress
    return index


def sets() -> Pretended:
    return Pretended("a pack of sets", frames=TOGETHER)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A still, an animation of ten seconds, one of three frames, and a still."""
    folder = tmp_path / "photos"
    folder.mkdir()
    plain("black").save(folder / "a.png")
    write_animation(folder / "b.webp", GREY[:10], 1000)
    write_animation(folder / "c.gif", [*map(plain, ("red", "lime", "blue"))], [100, 200, 100])
    plain("white").save(folder / "d.png")
    return folder


def test_a_clip_is_a_row_for_each_window_and_a_still_image_is_one(
    photos: Path, tmp_path: Path
) -> None:
    runtime = sets()
    index = indexed(photos, tmp_path / "cache", runtime)
    assert {place: len(moments) for place, moments in index.clips.items()} == {1: 10, 2: TOGETHER}
    assert index.clips.rows(1) == [1, 1 + 3 * 4, 1 + 6 * 4]  # of 10 frames: 3, 3 and 4
    assert index.clips.read_with(1 + 5 * 4) == [1 + place * 4 for place in (3, 4, 5)]
    assert (index.clips.rows(0), index.clips.read_with(3)) == ([0], [3])
    assert len(index) == 4
    for gallery in index.images.values():
        assert sorted(gallery.ids().tolist()) == [0, 1, 2, 3, 13, 25]
    last = index.images["one"].views([25]).embeddings[0, 0, 0]  # the mean of frames 6 to 9
    torch.testing.assert_close(last, torch.tensor(75 / 255), atol=0.02, rtol=0)
    still = index.images["one"].views([3]).embeddings[0]
    torch.testing.assert_close(still, torch.ones(2, 3))


def test_a_frame_that_is_shown_twice_as_long_counts_twice_and_is_encoded_once(
    photos: Path, tmp_path: Path
) -> None:
    runtime = sets()
    index = indexed(photos, tmp_path / "cache", runtime)
    assert [moment.frame for moment in index.clips[2]] == [0, 1, 1, 2]
    assert [round(moment.seconds, 3) for moment in index.clips[2]] == [0.05, 0.15, 0.25, 0.35]
    assert runtime.encoded == 2 + 10 + 3
    mean = index.images["one"].views([2]).embeddings[0, 0]
    torch.testing.assert_close(mean, torch.tensor([0.25, 0.5, 0.25]), atol=0.02, rtol=0)


def test_packs_of_sets_and_of_still_images_keep_their_own_over_one_folder(
    photos: Path, tmp_path: Path
) -> None:
    """Each has its own frames and views; nothing is read again where they take turns."""
    cache, still, together = tmp_path / "cache", Pretended(), sets()
    first = indexed(photos, cache, still)
    indexed(photos, cache, together)
    wider = Pretended("a pack of sets", frames=8)  # the same weights
    other = indexed(photos, cache, wider)
    assert other.clips.rows(1) == [1, 1 + 5 * 4]
    counts = [(one.encoded, one.heads) for one in (still, together, wider)]
    assert indexed(photos, cache, still).clips == first.clips
    again = indexed(photos, cache, together)
    assert again.clips.rows(1) == [1, 13, 25]
    mean = again.images["one"].views([1]).embeddings[0, 0, 0]
    torch.testing.assert_close(mean, torch.tensor(10 / 255), atol=0.02, rtol=0)
    indexed(photos, cache, wider)
    assert [(one.encoded, one.heads) for one in (still, together, wider)] == counts
    (photos / "b.webp").rename(photos / "renamed.webp")
    indexed(photos, cache, together)
    assert (together.encoded, together.heads) == counts[1]


@pytest.mark.parametrize("suffix", [".webp", ".gif", ".png"])
def test_frames_of_a_set_are_those_of_training(tmp_path: Path, suffix: str) -> None:
    """Shown in the midst of equal times, however long each is shown."""
    shown = [40, 300, 20, 20, 500, 120]
    path = write_animation(tmp_path / f"a{suffix}", GREY[: len(shown)], shown)
    with open_image_file(path, path.name) as file:
        found = [image for _, image in chosen_frames(file, path.name, 16)]
    expected = read_frames(path, 16)
    assert [mean_colour(image) for image in found] == [mean_colour(image) for image in expected]


def test_frames_of_a_video_are_those_that_are_shown_then(tmp_path: Path) -> None:
    """Of four seconds, at two rates; each is found again by its moment."""
    ticks = [*range(0, 200, 50), *range(200, 400, 10)]
    path = write_video(tmp_path / "a.mp4", GREY, 100, ticks)
    with open_image_file(path, path.name) as file:
        found = list(chosen_frames(file, path.name, 16))
    seconds = [moment.seconds for moment, _ in found]
    np.testing.assert_allclose(np.diff(seconds), seconds[0] * 2, atol=1e-6)
    starts = np.array(ticks) / 100
    for moment, image in found:
        assert moment.frame == np.flatnonzero(starts <= moment.seconds).max()
        assert abs(mean_colour(image)[0] - 10 * moment.frame) < 6
        again = open_picture(CollectionImage(0, path, path.name, moment=moment))
        assert again.tobytes() == image.tobytes(), moment


def test_a_long_clip_has_as_many_frames_as_any(tmp_path: Path) -> None:
    path = write_animation(tmp_path / "a.gif", [GREY[i % 24] for i in range(100)], 2000)
    with open_image_file(path, path.name) as file:
        assert len(list(chosen_frames(file, path.name, 16))) == MOST
