"""Clips of the moving world as a split: frames, their features, batches, a gallery of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.export.encoders.sources import load_image_source
from polyview.export.pack.gallery import load_gallery
from polyview.models.encoders import SceneNet
from polyview.training.data.batches import batches
from polyview.training.data.features import Extraction, read_features
from polyview.training.data.image_files import read_frames
from polyview.training.data.open_split import open_split
from polyview.training.data.split import Split, with_exchanged_halves
from polyview.training.data.texts import TokenTable, build_tokenizer
from polyview.training.scenes.clip_captions import satisfies_clip
from polyview.training.scenes.gallery import write_gallery
from polyview.training.scenes.motion import EVENT_FRAMES, FRAMES
from polyview.training.scenes.render import clip_frames
from polyview.training.scenes.store import load_clips, write_split

SCENES = "app/bundled/scenes"
COUNT = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("moving")
    write_split(out, "val", COUNT, moving=True)
    return out


def test_a_frame_is_the_average_of_the_cells_of_its_parts() -> None:
    torch.manual_seed(0)
    whole = SceneNet((4, 8), (1,)).eval()
    pixels = torch.rand(2, 3, 64, 64)
    cells = whole(pixels)  # 8 x 8 of them
    for parts in ((1, 1), (2, 4), (1, 3)):
        joined = SceneNet((4, 8), (1,), parts=parts).eval()
        joined.load_state_dict(whole.state_dict())
        results = joined(pixels)
        assert results.shape == (2, 1, joined.dim)
        assert joined.grid(64) == (1, 1)
        averages = results.reshape(2, *parts, 8)
        assert torch.allclose(averages.mean(dim=(1, 2)), cells.mean(dim=1), atol=1e-6)
    square = cells.reshape(2, 2, 4, 4, 2, 8).mean(dim=(2, 4))  # (2, 2, 4, 8)
    joined = SceneNet((4, 8), (1,), parts=(2, 4)).eval()
    joined.load_state_dict(whole.state_dict())
    assert torch.allclose(joined(pixels).reshape(square.shape), square, atol=1e-6)


def test_a_clip_has_a_feature_a_frame_and_is_extracted_once(folder: Path) -> None:
    split = open_split(folder, "val")
    assert split.image_count == COUNT
    assert len(split.images) == COUNT * FRAMES
    clips = load_clips(folder / "val")
    third = [frame.image for frame in clip_frames(clips[2])]
    assert np.array_equal(np.asarray(split.images[2 * FRAMES + 5]), np.asarray(third[5]))
    made = read_features(split, f"{SCENES}#frame", Extraction())
    encoder, preprocess, _ = load_image_source(f"{SCENES}#frame")
    with torch.inference_mode():
        expected = encoder(torch.from_numpy(preprocess.planes(third)))  # (FRAMES, 1, d)
    assert made.features.shape == (COUNT, FRAMES, encoder.dim)
    results = torch.from_numpy(np.array(made.features[2:3], np.float32))[0]
    assert torch.allclose(results, expected[:, 0], atol=5e-3)
    again = replace(split, images=[third[0]] * (COUNT * FRAMES))  # what is kept is not drawn
    assert read_features(again, f"{SCENES}#frame").features.shape == made.features.shape


def test_alike_clips_stand_in_a_batch_together(folder: Path) -> None:
    split = open_split(folder, "val")
    many = Split(
        split.captions * 3,
        np.concatenate([split.image_of + COUNT * i for i in range(3)]),
        features=np.zeros((3 * COUNT, 2, 4), np.float32),
        alike=np.arange(3 * COUNT) // 2,
    )
    assert many.alike is not None
    table = TokenTable(build_tokenizer(many.captions), many.captions)
    met = 0
    for batch in batches(many, table, 10, (0, 0), captions_per_image=5):
        pairs = many.alike[batch.image_ids.numpy()].reshape(2, 5)
        assert (pairs == pairs[:, :1]).all()
        met += len(set(batch.image_ids.tolist())) > len(set(pairs[:, 0]))
    assert met > 3


def test_halves_exchanged_show_what_the_twin_shows(folder: Path) -> None:
    """No deed of an actor is cut, their order turns round, and the captions are true of that."""
    split, clips = open_split(folder, "val"), load_clips(folder / "val")
    features = np.random.default_rng(0).normal(size=(COUNT, FRAMES, 3))
    data = with_exchanged_halves(replace(split, features=features))
    assert data.image_count == 2 * COUNT
    half = FRAMES // 2
    for row, clip in enumerate(clips):
        assert np.array_equal(data.features[row : row + 1][0], features[row])
        seen = data.features[np.array([COUNT + row])][0]
        assert np.array_equal(seen, np.concatenate([features[row, half:], features[row, :half]]))
        actors = []
        for actor in clip.objects[:2]:
            assert actor.deed is not None
            assert actor.deed.start % half + EVENT_FRAMES <= half
            deed = replace(actor.deed, start=(actor.deed.start + half) % FRAMES)
            actors.append(replace(actor, deed=deed))
        turned = replace(clip, objects=(*actors, *clip.objects[2:]))
        texts = [data.captions[i] for i in np.flatnonzero(data.image_of == COUNT + row)]
        free = [caption for caption in clip.captions if caption.kind == "free"]
        order = [caption for caption in clips[row ^ 1].captions if caption.kind == "order"]
        assert sorted(texts) == sorted(caption.text for caption in free + order)
        assert len(free) == len(order) == 2
        assert all(satisfies_clip(turned, caption.fact) for caption in free + order)
        assert not any(satisfies_clip(clip, caption.fact) for caption in order)
    assert data.alike is not None
    assert np.bincount(data.alike).tolist() == [2] * COUNT
    assert set(data.kinds[len(split.kinds) :]) == {"free", "order"}
    assert data.captions[: len(split.captions)] == split.captions
    with pytest.raises(
        ValueError, match="exchange_halves and order_epochs need clips of the moving world"
    ):
        with_exchanged_halves(replace(split, kinds=[]))


def test_a_gallery_of_clips_keeps_frames_and_truth(folder: Path, tmp_path: Path) -> None:
    clips = load_clips(folder / "val")
    write_gallery(clips, "val", tmp_path / "gallery")
    gallery = load_gallery(tmp_path / "gallery")
    for row, (image, clip) in enumerate(zip(gallery.images, clips, strict=True)):
        frames = list(clip_frames(clip))
        stored = read_frames(gallery.folder / image.file, FRAMES)
        for drawn, remaining in zip(frames, stored, strict=True):
            apart = np.asarray(drawn.image, float) - np.asarray(remaining, float)
            assert np.abs(apart).mean() < 12
        assert image.alike == row // 2
        assert [caption.view for caption in image.captions] == [c.kind for c in clip.captions]
        for index, entry in enumerate(image.objects):
            displayed = {n for n, frame in enumerate(frames) if frame.visible[index] >= 0.3}
            assert set(entry.frames) == displayed
    some = read_frames(gallery.folder / gallery.images[0].file, 4)
    every = read_frames(gallery.folder / gallery.images[0].file, FRAMES)
    for frame, number in zip(some, (2, 6, 10, 14), strict=True):
        assert np.array_equal(np.asarray(frame), np.asarray(every[number]))
