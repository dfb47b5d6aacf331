"""The moving world: twins, truth, frames, and what is stored."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyview.export.pack.gallery import load_gallery
from polyview.training.scenes.clip_captions import relevant_clips, satisfies_clip
from polyview.training.scenes.motion import FRAMES, OPPOSITE, PASSING, Clip, Deed, MovingObject
from polyview.training.scenes.render import SEEN, clip_frames
from polyview.training.scenes.store import load_clips, main, make_clip

BUNDLED = Path(__file__).parents[3] / "app" / "bundled" / "scenes_moving"


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    """The clips of the shipped gallery; twins stand together."""
    return [make_clip(0, "test", index) for index in range(300)]


def test_clips_are_those_of_the_shipped_gallery(clips: list[Clip]) -> None:
    """The shipped numbers stay valid only as long as the same seed gives the same clips."""
    relevant = iter(relevant_clips(clips))
    for clip, image in zip(clips, load_gallery(BUNDLED).images, strict=True):
        surroundings = (image.setting, image.time, image.weather)
        assert (clip.setting, clip.time, clip.weather) == surroundings
        assert [item.name for item in clip.objects] == [item.name for item in image.objects]
        captions = [
            (caption.text, caption.kind, caption.mentions, tuple(next(relevant).tolist()))
            for caption in clip.captions
        ]
        assert captions == [(c.text, c.view, c.mentions, c.relevant) for c in image.captions]


@pytest.mark.font
def test_frames_are_those_of_the_shipped_gallery(clips: list[Clip]) -> None:
    for clip, image in zip(clips[:12], load_gallery(BUNDLED).images, strict=False):
        frames = list(clip_frames(clip))
        assert len(frames) == FRAMES
        for index, item in enumerate(image.objects):
            shares = [frame.visible[index] for frame in frames]
            assert tuple(np.flatnonzero(np.array(shares) >= SEEN).tolist()) == item.frames
            rows, columns = np.nonzero(frames[int(np.argmax(shares))].instances == index + 1)
            box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            assert tuple(round(int(value) / 224, 4) for value in box) == item.box
        for number, frame in enumerate(frames):
            for index, moving in enumerate(clip.objects):
                visible = bool((frame.instances == index + 1).any())
                assert visible == (frame.visible[index] > 0)
                assert not (visible and moving.at(number) is None)


def test_twins_show_the_same_actors_as_often_in_the_other_order(clips: list[Clip]) -> None:
    """Pooled over time they are alike: every place of both actors is in as many frames of each."""
    for item, other in zip(clips[::2], clips[1::2], strict=True):
        places = [
            Counter(tuple(actor.at(frame) for actor in clip.objects[:2]) for frame in range(FRAMES))
            for clip in (item, other)
        ]
        assert places[0] == places[1]
        first, second = item.deed_of(0), item.deed_of(1)
        swapped = replace(first, start=second.start), replace(second, start=first.start)
        assert (other.deed_of(0), other.deed_of(1)) == swapped
        if item.change is None and other.change is None:
            assert item.objects[2].name == other.objects[2].name
            assert OPPOSITE[item.deed_of(2).kind] == other.deed_of(2).kind


def test_captions_are_true_of_their_clip_and_tell_the_order(clips: list[Clip]) -> None:
    for row, clip in enumerate(clips):
        for caption in clip.captions:
            assert satisfies_clip(clip, caption.fact), caption
            if caption.kind == "order":
                assert not satisfies_clip(clips[row ^ 1], caption.fact), caption


def track(kind: str) -> list[tuple[float, float, float, float] | None]:
    """(x, y, size, tilt) in each frame of a dog that does something; None while it is hidden."""
    item = MovingObject("dog", 0, 112.0, 150.0, 60.0, False, 0.0, False, Deed(kind, 5))
    places = (item.at(frame) for frame in range(FRAMES))
    return [None if p is None else (p.x, p.y, p.size, p.tilt) for p in places]


@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_leaves_no_trace(kind: str) -> None:
    places = track(kind)
    assert places[:5] + places[10:] == [places[0]] * 11
    assert all(place != places[0] for place in places[5:10])


@pytest.mark.font
def test_a_split_is_stored_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--moving", "--out", str(tmp_path), "--split", "val", "--count", "6", "--seed", "7"]
    main(command)
    assert load_clips(tmp_path / "val") == [make_clip(7, "val", index) for index in range(6)]
    assert make_clip(7, "val", 5).objects != make_clip(8, "val", 5).objects
    main(command)
    assert "already there" in capsys.readouterr().out
    for changed, message in (([*command[:-1], "8"], "--force"), ([*command[:-3], "5"], "even")):
        with pytest.raises(SystemExit, match=message):
            main(changed)
    folder = tmp_path / "val"
    meta = json.loads((folder / "meta.json").read_text())
    for change, message in (({"moving_version": 0}, "another world"), ({"count": 5}, "promises")):
        (folder / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ValueError, match=message):
            load_clips(folder)
