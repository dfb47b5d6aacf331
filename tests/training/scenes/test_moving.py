"""The moving world: twins, truth, frames, and what is stored."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from training.scenes.clip_captions import KINDS, relevant_clips, satisfies_clip
from training.scenes.clip_frames import SEEN, clip_frames
from training.scenes.motion import (
    FRAMES,
    LASTING,
    OPPOSITE,
    PASSING,
    Clip,
    Deed,
    MovingObject,
    draw_clip,
)
from training.scenes.moving import load_clips, main, make_clip
from training.scenes.store import SceneDataError

COUNT = 40


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    """Twins stand together."""
    return [make_clip(7, "val", index) for index in range(COUNT)]


def test_the_same_seed_gives_the_same_clip_and_another_another() -> None:
    assert make_clip(7, "val", 5) == make_clip(7, "val", 5)
    assert make_clip(7, "val", 5).objects != make_clip(8, "val", 5).objects
    assert make_clip(7, "val", 5).objects != make_clip(7, "test", 5).objects


def test_twins_show_the_same_actors_as_often_in_the_other_order(clips: list[Clip]) -> None:
    """Pooled over time they are alike: every place of both actors is in as many frames of each."""
    for one, other in zip(clips[::2], clips[1::2], strict=True):
        seen = [
            Counter(tuple(actor.at(frame) for actor in clip.objects[:2]) for frame in range(FRAMES))
            for clip in (one, other)
        ]
        assert seen[0] == seen[1]
        first, second = (actor.deed for actor in one.objects[:2])
        turned = tuple(actor.deed for actor in other.objects[:2])
        assert first is not None
        assert second is not None
        assert turned == (replace(first, start=second.start), replace(second, start=first.start))


def test_movers_of_twins_do_the_opposite(clips: list[Clip]) -> None:
    both = [
        (one.objects[2], other.objects[2])
        for one, other in zip(clips[::2], clips[1::2], strict=True)
        if one.change is None and other.change is None
    ]
    assert len(both) > 3
    for one, other in both:
        assert one.deed is not None
        assert other.deed is not None
        assert (one.name, OPPOSITE[one.deed.kind]) == (other.name, other.deed.kind)


def test_captions_are_true_of_their_clip_and_tell_the_order(clips: list[Clip]) -> None:
    for row, clip in enumerate(clips):
        assert [caption.kind for caption in clip.captions] == [
            *("free", "free", "motion", "order", "order")
        ]
        for caption in clip.captions:
            assert satisfies_clip(clip, caption.fact), caption
            if caption.kind == "order":
                assert not satisfies_clip(clips[row ^ 1], caption.fact), caption


def test_relevant_clips_are_those_that_satisfy(clips: list[Clip]) -> None:
    captions = [caption for clip in clips for caption in clip.captions]
    for caption, rows in zip(captions, relevant_clips(clips), strict=True):
        wanted = [row for row, clip in enumerate(clips) if satisfies_clip(clip, caption.fact)]
        assert rows.tolist() == wanted
    assert set(KINDS) == {caption.kind for caption in captions}


def test_what_is_seen_is_what_is_there(clips: list[Clip]) -> None:
    for clip in clips[:6]:
        frames = list(clip_frames(clip))
        assert len(frames) == FRAMES
        for number, frame in enumerate(frames):
            for index, item in enumerate(clip.objects):
                pixels = int((frame.instances == index + 1).sum())
                assert (frame.visible[index] > 0) == (pixels > 0)
                if item.at(number) is None:
                    assert pixels == 0
        for caption in clip.captions:
            for index in caption.mentions:
                assert max(frame.visible[index] for frame in frames) >= SEEN, caption


def thing(kind: str, **values: float) -> MovingObject:
    base = {"x": 112.0, "y": 150.0, "size": 60.0, **values}
    return MovingObject("dog", 0, **base, mirrored=False, tilt=0, aloft=False, deed=Deed(kind, 5))


def track(item: MovingObject) -> list[tuple[float, float, float, float] | None]:
    """(x, y, size, tilt) in each frame, None while it is not there."""
    places = (item.at(frame) for frame in range(FRAMES))
    return [None if p is None else (p.x, p.y, p.size, p.tilt) for p in places]


@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_leaves_no_trace(kind: str) -> None:
    places = track(thing(kind))
    assert places[:5] + places[10:] == [places[0]] * 11
    assert all(place != places[0] for place in places[5:10])


@pytest.mark.parametrize("kind", LASTING)
def test_what_lasts_changes_the_picture(kind: str) -> None:
    places = track(thing(kind))
    during = places[5:10]
    assert len({place for place in during if place}) == 5
    if kind != "passes_front":
        assert places[4] != places[10]
    if kind.endswith("right") and not kind.startswith("enters"):
        xs = [place[0] for place in during if place]
        assert xs == sorted(xs)


def test_night_falls_and_stays() -> None:
    rows = (make_clip(1, "train", index) for index in range(200))
    clip = next(c for c in rows if c.change == "night_falls" and c.setting == "meadow")
    light = [np.asarray(frame.image).mean() for frame in clip_frames(clip)]
    assert np.std(light[: clip.change_start]) < 3
    assert light[-1] < 0.8 * light[0]
    assert np.std(light[clip.change_start + 4 :]) < 3


def test_a_split_is_stored_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--out", str(tmp_path), "--split", "val", "--count", "6", "--seed", "7"]
    assert main(asked) == 0
    assert load_clips(tmp_path / "val") == [make_clip(7, "val", index) for index in range(6)]
    assert main(asked) == 0
    assert "already there" in capsys.readouterr().out
    assert main([*asked[:-1], "8"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*asked[:-3], "5"]) == 2
    assert "even" in capsys.readouterr().err


def test_damage_is_told(tmp_path: Path) -> None:
    main(["--out", str(tmp_path), "--split", "val", "--count", "4"])
    folder = tmp_path / "val"
    meta = json.loads((folder / "meta.json").read_text())
    for change, told in (({"moving_version": 0}, "another version"), ({"count": 5}, "promises")):
        (folder / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(SceneDataError, match=told):
            load_clips(folder)
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "clips.jsonl").write_text("{}\n")
    with pytest.raises(SceneDataError, match="damaged"):
        load_clips(folder)


def test_a_drawing_needs_no_captions() -> None:
    assert draw_clip(7, "val", 3).captions == ()
