"""Frames of clips: which are taken, when they are shown, and that they are what is shown then."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from app.gallery.clips import chosen_frames, is_clip, open_picture
from app.gallery.collection import CollectionImage
from app.gallery.image_files import open_image_file
from app.gallery.sampling import FEWEST, MOST, Moment
from tests.app.clip_files import mean_colour, plain, turned, write_animation, write_video

COLOURS = ("red", "lime", "blue")
EXACT = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255)}
VIDEOS, ANIMATIONS = (".mp4", ".mov", ".mkv", ".webm"), (".gif", ".webp", ".png", ".apng")


def frames_of(path: Path) -> list[tuple[Moment, Image.Image]]:
    with open_image_file(path, path.name) as file:
        assert is_clip(file, path.name)
        return list(chosen_frames(file, path.name))


def colour_of(image: Image.Image) -> str:
    seen = mean_colour(image)
    return min(
        COLOURS, key=lambda name: sum((a - b) ** 2 for a, b in zip(EXACT[name], seen, strict=True))
    )


@pytest.mark.parametrize("suffix", VIDEOS)
def test_a_video_is_cut_into_its_scenes(tmp_path: Path, suffix: str) -> None:
    """Twelve seconds at ten frames a second: a frame a second, and none of a scene out of it."""
    path = write_video(
        tmp_path / f"a{suffix}",
        [plain(COLOURS[second // 4]) for second in range(12) for _ in range(10)],
    )
    found = frames_of(path)
    assert [round(moment.seconds - 0.4) for moment, _ in found] == list(range(12))
    assert [colour_of(image) for _, image in found] == [COLOURS[i // 4] for i in range(12)]
    assert all(moment.frame == round(moment.seconds * 10) for moment, _ in found)
    assert {4.0, 8.0} <= {round(moment.seconds, 2) for moment, _ in found}  # where scenes begin


@pytest.mark.parametrize("suffix", ANIMATIONS)
def test_of_a_short_animation_every_frame_is_taken(tmp_path: Path, suffix: str) -> None:
    path = write_animation(tmp_path / f"a{suffix}", [*map(plain, COLOURS)], [400, 1500, 100])
    found = frames_of(path)
    assert [moment for moment, _ in found] == [Moment(0.0, 0), Moment(0.4, 1), Moment(1.9, 2)]
    assert [colour_of(image) for _, image in found] == list(COLOURS)


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png"])
def test_a_still_image_is_no_clip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    plain("red").save(path)
    with open_image_file(path, path.name) as file:
        assert not is_clip(file, path.name)


@pytest.mark.parametrize("suffix", [*VIDEOS, *ANIMATIONS])
def test_a_moment_is_found_again(tmp_path: Path, suffix: str) -> None:
    images = [plain((8 * i, 255 - 8 * i, 100)) for i in range(30)]
    path = tmp_path / f"a{suffix}"
    write_video(path, images) if suffix in VIDEOS else write_animation(path, images)
    for moment, image in frames_of(path):
        again = open_picture(CollectionImage(0, path, path.name, moment=moment))
        assert again.tobytes() == image.tobytes(), moment


def test_a_long_clip_is_looked_at_all_over(tmp_path: Path) -> None:
    path = write_video(
        tmp_path / "a.mp4", [plain((i % 256, 90, 40), (16, 16)) for i in range(4000)]
    )
    found = frames_of(path)
    assert len(found) == MOST
    gaps = [b.seconds - a.seconds for (a, _), (b, _) in pairwise(found)]
    assert max(gaps) < 2 * 400 / MOST


def test_a_frame_of_a_scene_that_is_shorter_than_a_slot_is_taken(tmp_path: Path) -> None:
    """A flash of four tenths of a second, away from the slot's middle."""
    frames = [plain("lime" if 57 <= i < 61 else "red") for i in range(100)]
    seen = {colour_of(image) for _, image in frames_of(write_video(tmp_path / "a.mp4", frames))}
    assert seen == {"red", "lime"}


def test_times_are_those_that_the_file_states(tmp_path: Path) -> None:
    """A frame a second at first, then fifty a second."""
    ticks = [*range(0, 500, 100), *range(500, 600, 2)]
    path = write_video(tmp_path / "a.mkv", [plain("red")] * len(ticks), 100, ticks)
    moments = [moment for moment, _ in frames_of(path)]
    assert len(moments) == FEWEST - 1  # of eight slots in six seconds, one is without a frame
    assert all(any(abs(m.seconds - tick / 100) < 0.002 for tick in ticks) for m in moments)
    assert [m.frame for m in moments[:4]] == [0, 1, 2, 3]


def test_a_video_is_upright(tmp_path: Path) -> None:
    image = plain("red", (64, 48))
    image.paste("blue", (0, 0, 64, 24))
    path = turned(write_video(tmp_path / "a.mp4", [image] * 5))
    _, shown = frames_of(path)[0]
    assert shown.size == (48, 64)
    assert colour_of(shown.crop((28, 4, 44, 60))) == "blue"  # its top is on the right now
    assert colour_of(shown.crop((4, 4, 20, 60))) == "red"


def test_large_frames_come_at_working_size(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", [plain("red", (2560, 1440))] * 3)
    assert {image.size for _, image in frames_of(path)} == {(1024, 576)}
