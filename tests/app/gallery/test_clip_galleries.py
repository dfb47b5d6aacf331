"""Galleries with clips: each is one hit by its best frame, and nothing of it is encoded twice."""

from __future__ import annotations

import shutil
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from app.gallery import clip_frames
from app.gallery.archive import open_images
from app.gallery.collection import from_folder
from app.gallery.indexing import Copy, Index
from app.search.hits import Scores, best_of_files
from tests.app.clip_files import plain, write_animation, write_video
from tests.app.conftest import finish
from tests.app.pretended import Pretended

SECONDS = 10  # of a video below: as many frames are taken of it


def video(path: Path, *colours: str) -> Path:
    frames = [plain(colours[i * len(colours) // SECONDS]) for i in range(SECONDS)]
    return write_video(path, [frame for frame in frames for _ in range(5)], rate=5)


def indexed(folder: Path, cache: Path, runtime: Pretended) -> Index:
    index = finish(Index(runtime.runtime, from_folder(folder), cache))
    assert index.progress.stage == "ready", index.progress
    return index


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
    assert str(index.progress) == "4 pictures ready"
    for gallery in index.images.values():
        ids = gallery.ids()
        assert (np.bincount(ids % 4) == [1, SECONDS, 3, 1]).all()
        assert [ids[i] for i in range(len(ids)) if ids[i] % 4 == 2] == [2, 6, 10]
    lime = index.images["one"].views([6]).embeddings[0]  # the animation's second frame
    torch.testing.assert_close(lime, torch.tensor([[0.0, 1, 0]] * 2), atol=0.02, rtol=0)


def test_nothing_is_encoded_twice(photos: Path, tmp_path: Path) -> None:
    runtime, cache = Pretended(), tmp_path / "cache"
    first = indexed(photos, cache, runtime)
    encoded, heads = runtime.encoded, runtime.heads
    assert encoded == 2 + SECONDS + 3
    again = indexed(photos, cache, runtime)
    (photos / "b.mp4").rename(photos / "renamed.mp4")
    moved = indexed(photos, cache, runtime)
    assert (runtime.encoded, runtime.heads) == (encoded, heads)
    assert again.clips == first.clips
    assert sorted(map(len, moved.clips.values())) == [3, SECONDS]


def test_another_pack_reads_clips_once_more_and_alike(photos: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = indexed(photos, cache, Pretended())
    other = Pretended("another pack", "another encoder")
    second = indexed(photos, cache, other)
    assert other.encoded == 2 + SECONDS + 3
    assert second.clips == first.clips
    same_encoder = Pretended("a third pack")
    indexed(photos, cache, same_encoder)
    assert same_encoder.encoded == 0


def test_a_copy_of_a_clip_is_named_once(photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "b.mp4", photos / "z.mp4")
    index = indexed(photos, tmp_path / "cache", Pretended())
    assert index.copies == [Copy("z.mp4", "b.mp4")]
    assert len(index) == 4
    assert index.clips.keys() == {1, 2}


def test_frames_of_a_clip_that_is_gone_are_forgotten(photos: Path, tmp_path: Path) -> None:
    runtime, cache = Pretended(), tmp_path / "cache"
    indexed(photos, cache, runtime)
    kept = (photos / "b.mp4").rename(tmp_path / "b.mp4")
    indexed(photos, cache, runtime)
    encoded = runtime.encoded
    kept.rename(photos / "b.mp4")
    indexed(photos, cache, runtime)
    assert runtime.encoded == encoded + SECONDS


def test_a_clip_that_cannot_be_read_is_named_and_the_rest_is_there(
    photos: Path, tmp_path: Path
) -> None:
    (photos / "broken.mp4").write_bytes((photos / "b.mp4").read_bytes()[:600])
    for _ in range(2):
        index = indexed(photos, tmp_path / "cache", Pretended())
        [refused] = index.refused
        assert refused.file == "broken.mp4"
        assert refused.reason.startswith("broken.mp4 is damaged, or is no clip that can be read")
        assert len(index) == 4


def test_clips_beyond_the_frames_of_a_gallery_are_left_out(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clip_frames, "MOST_FRAMES", 12)
    index = indexed(photos, tmp_path / "cache", Pretended())
    assert [refused.file for refused in index.refused] == ["c.gif"]
    assert index.refused[0].reason.endswith(
        "of the 12 of a gallery's clips 10 are taken; split the folder"
    )
    assert len(index) == 3


def test_a_clip_in_an_archive_is_read(photos: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(photos.iterdir()):
            archive.write(path, path.name)
    cache = tmp_path / "cache"
    collection = open_images(tmp_path / "photos.zip", cache)
    index = finish(Index(Pretended().runtime, collection, cache))
    assert {place: len(moments) for place, moments in index.clips.items()} == {1: SECONDS, 2: 3}


def test_stopped_within_a_clip_nothing_of_it_is_shown(photos: Path, tmp_path: Path) -> None:
    runtime, stop = Pretended(), threading.Event()
    honest = runtime.square_features

    def stopping(*given: object, **named: object) -> torch.Tensor:
        stop.set()
        return honest(*given, **named)  # type: ignore[arg-type]

    runtime.square_features = stopping  # type: ignore[method-assign]
    index = Index(runtime.runtime, from_folder(photos), tmp_path / "cache")
    index.add(index._collection.images, lambda *_: None, stop)
    assert len(index) == 0
    runtime.square_features = honest  # type: ignore[method-assign]
    assert finish(index).clips.keys() == {1, 2}


def test_the_best_image_of_each_file_is_found() -> None:
    rng = np.random.default_rng(3)
    ids, files = rng.permutation(60), 7
    values = rng.integers(0, 9, 60).astype(np.float32)  # with ties
    found = best_of_files(Scores(ids, values), files)
    for file_id in range(files):
        own = {int(i): float(v) for i, v in zip(ids, values, strict=True) if i % files == file_id}
        best = min(own, key=lambda one: (-own[one], one))
        assert (found.images[file_id], found.values[file_id]) == (best, own[best])
    assert found.ids.tolist() == list(range(files))
