"""Rendered clips: captions, frames, stored splits, features and galleries."""

import json
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
from polyview.training.data.split import with_exchanged_halves
from polyview.training.data.texts import TokenTable, build_tokenizer
from polyview.training.scenes.clip_captions import satisfies_clip
from polyview.training.scenes.gallery import write_gallery
from polyview.training.scenes.motion import EVENT_FRAMES, FRAMES, Clip
from polyview.training.scenes.relevance import relevant_rows
from polyview.training.scenes.render import MIN_SEEN, clip_frames
from polyview.training.scenes.store import load_clips, main, make_clip, write_split

BUNDLED = Path(__file__).parents[3] / "app" / "bundled" / "scenes_moving"
SCENES = "app/bundled/scenes"
COUNT = 4


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    """The clips of the bundled gallery; twins are neighbours."""
    return [make_clip(0, "test", index) for index in range(300)]


def test_the_seed_gives_the_clips_of_the_bundled_gallery(clips: list[Clip]) -> None:
    """The metrics of the bundled pack are valid only for these clips."""
    relevant = iter(relevant_rows(clips, satisfies_clip))
    for clip, image in zip(clips, load_gallery(BUNDLED).images, strict=True):
        surroundings = (image.setting, image.time, image.weather)
        assert (clip.setting, clip.time, clip.weather) == surroundings
        assert [item.name for item in clip.objects] == [item.name for item in image.objects]
        for caption, stored in zip(clip.captions, image.captions, strict=True):
            assert (caption.text, caption.kind) == (stored.text, stored.view)
            assert caption.mentions == stored.mentions
            assert tuple(next(relevant).tolist()) == stored.relevant


@pytest.mark.font
def test_a_gallery_has_the_content_of_the_bundled_one(clips: list[Clip], tmp_path: Path) -> None:
    write_gallery(clips, "test", tmp_path / "gallery", COUNT)
    gallery = load_gallery(tmp_path / "gallery")
    assert len(gallery.images) == COUNT
    for image, bundled in zip(gallery.images, load_gallery(BUNDLED).images, strict=False):
        captions = [
            replace(caption, relevant=tuple(row for row in caption.relevant if row < COUNT))
            for caption in bundled.captions
        ]
        assert image == replace(bundled, captions=tuple(captions))
    drawn, image = list(clip_frames(clips[2])), gallery.images[2]
    assert len(drawn) == FRAMES
    for index, item in enumerate(image.objects):
        shares = np.array([frame.visible[index] for frame in drawn])
        assert tuple(np.flatnonzero(shares >= MIN_SEEN).tolist()) == item.frames
        is_visible = [bool((frame.instances == index + 1).any()) for frame in drawn]
        assert is_visible == (shares > 0).tolist()
    frames = read_frames(gallery.folder / image.file, 4)
    for frame, number in zip(frames, (2, 6, 10, 14), strict=True):
        decoded = np.asarray(frame, float)
        errors = [np.abs(np.asarray(each.image, float) - decoded).mean() for each in drawn]
        assert errors[number] == min(errors) < 12


@pytest.mark.font
def test_a_split_is_stored_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--moving", "--out", str(tmp_path), "--split", "val", "--count", "6", "--seed", "7"]
    main(command)
    assert load_clips(tmp_path / "val") == [make_clip(7, "val", index) for index in range(6)]
    assert make_clip(7, "val", 5).objects != make_clip(8, "val", 5).objects
    main(command)
    assert "already exist" in capsys.readouterr().out
    for changed, message in (([*command[:-1], "8"], "--force"), ([*command[:-3], "5"], "even")):
        with pytest.raises(SystemExit, match=message):
            main(changed)
    folder = tmp_path / "val"
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "moving_version": 0}))
    with pytest.raises(ValueError, match="another version of the world"):
        load_clips(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("moving")
    write_split(out, "val", COUNT, moving=True)
    return out


def test_a_frame_feature_averages_the_cells_of_each_part() -> None:
    whole, pixels = SceneNet((4, 8), (1,)).eval(), torch.rand(2, 3, 64, 64)
    cells = whole(pixels).reshape(2, 8, 8, 8)  # 8 x 8 cells with 8 features each
    for rows, columns in ((1, 1), (2, 4)):
        joined = SceneNet((4, 8), (1,), parts=(rows, columns)).eval()
        joined.load_state_dict(whole.state_dict())
        expected = cells.reshape(2, rows, 8 // rows, columns, 8 // columns, 8).mean(dim=(2, 4))
        assert torch.allclose(joined(pixels), expected.reshape(2, 1, joined.dim), atol=1e-6)
        assert joined.grid(64) == (1, 1)


def test_clips_have_a_feature_for_each_frame_extracted_once(folder: Path) -> None:
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
    again = replace(split, images=[third[0]] * (COUNT * FRAMES))  # not read: cached
    assert read_features(again, f"{SCENES}#frame").features.shape == made.features.shape


def test_twins_are_in_the_same_batch(folder: Path) -> None:
    split = open_split(folder, "val")
    assert split.alike is not None
    data = replace(split, features=np.zeros((COUNT, 2, 4), np.float32))
    table = TokenTable(build_tokenizer(data.captions), data.captions)
    together = [batch.image_ids for batch in batches(data, table, 5, (0, 0), captions_per_image=5)]
    assert len(together) == 4
    assert all(len(set(split.alike[ids])) == 1 for ids in together)
    assert any(len(set(ids.tolist())) == 2 for ids in together)


def test_exchanged_halves_have_the_captions_of_the_twin(folder: Path) -> None:
    """Exchanging halves cuts no event, reverses the order of events, and keeps captions true."""
    split, clips, half = open_split(folder, "val"), load_clips(folder / "val"), FRAMES // 2
    features = np.random.default_rng(0).normal(size=(COUNT, FRAMES, 3))
    data = with_exchanged_halves(replace(split, features=features))
    exchanged = np.concatenate([features[:, half:], features[:, :half]], axis=1)
    assert np.array_equal(data.features[:], np.concatenate([features, exchanged]))
    for row, clip in enumerate(clips):
        objects = list(clip.objects)
        for index, event in enumerate((clip.action_of(0), clip.action_of(1))):
            assert event.start % half + EVENT_FRAMES <= half
            moved = replace(event, start=(event.start + half) % FRAMES)
            objects[index] = replace(objects[index], deed=moved)
        exchanged_clip = replace(clip, objects=tuple(objects))
        texts = [data.captions[i] for i in np.flatnonzero(data.image_of == COUNT + row)]
        free = [caption for caption in clip.captions if caption.kind == "free"]
        order = [caption for caption in clips[row ^ 1].captions if caption.kind == "order"]
        assert sorted(texts) == sorted(caption.text for caption in free + order)
        assert len(free) == len(order) == 2
        assert all(satisfies_clip(exchanged_clip, caption.fact) for caption in free + order)
        assert not any(satisfies_clip(clip, caption.fact) for caption in order)
    assert data.alike is not None
    assert np.bincount(data.alike).tolist() == [2] * COUNT
    assert data.captions[: len(split.captions)] == split.captions
