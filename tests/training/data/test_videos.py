"""Clips: the layouts of published data sets, which frames are looked at, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polyview.export import to_onnx
from polyview.export.runtime import Runtime
from polyview.training import evaluate
from polyview.training.data.features import Extraction, read_features
from polyview.training.data.open_split import open_split, summary
from polyview.training.data.split import Clips
from polyview.training.data.videos import open_videos
from polyview.training.evaluation.scoring import as_read
from polyview.training.loop.config import TrainConfig, load_recipe
from polyview.training.loop.trainer import build_trainer
from tests.clips import LAYOUTS, PARTS, SENTENCES, WIDTH, names, sentence, write_clips
from tests.regions import LABELS

NOWHERE = Path("there is no backbone")


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(layout: str, tmp_path: Path) -> Path:
    return write_clips(tmp_path / layout, layout)


@pytest.fixture
def mrw(tmp_path: Path) -> Path:
    return write_clips(tmp_path / "mrw", "mrw")


def test_splits_are_those_of_the_annotations(folder: Path, layout: str) -> None:
    for part, count in PARTS.items():
        data = open_split(folder, part)
        assert data.lengths is not None
        assert (data.image_count, len(data.captions)) == (count, count * SENTENCES[layout])
        expected = [sentence(clip, k) for clip in names(part) for k in range(SENTENCES[layout])]
        assert sorted(data.captions) == sorted(expected)
        own = [int(caption.split()[5]) for caption in data.captions]  # clip i has 3 i + 1 frames
        assert data.lengths[data.image_of].tolist() == [3 * i + 1 for i in own]
        assert data.features.shape == (count, 3 * count - 2, WIDTH)
        assert read_features(open_split(folder, part), NOWHERE).image_count == count
    with pytest.raises(FileNotFoundError, match='no clips of the split "moon"'):
        open_split(folder, "moon")
    first, *_ = summary(folder)
    assert first.endswith("ready-made features")


def test_clips_that_are_gone_are_left_out(mrw: Path) -> None:
    (mrw / "features" / "val_2.npy").unlink()
    with pytest.raises(ValueError, match=r"1 of 4 clips have no file in features/.* val_2; add"):
        open_split(mrw, "val")
    (mrw / "absent.txt").write_text("val_2\n")
    data = open_split(mrw, "val")
    assert [caption.split()[5] for caption in data.captions] == ["0", "1", "3"]


def _replaced(path: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / path).write_text(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_replaced("mrw-v1.0.json", "[{"), r"mrw-v1\.0\.json: near entry 0"),
        (_replaced("mrw-v1.0.json", '[{"id": "val_0"}]'), r"near entry 0 .*KeyError: 'sentence'"),
        (_replaced("mrw-v1.0.json", '[{"id": "val_0", "sentence": " "}]'), r"near entry 1"),
        (_replaced("mrw-v1.0.json", '[{"id": "../a", "sentence": "a"}]'), r"clip '\.\./a'"),
        (_replaced("mrw-v1.0.json", '[{"id": 7, "sentence": "a"}]'), r"near entry 1"),
        (_replaced("split/valid.tsv", "val_0\nmoon\n"), r"1 of 2 clips have no sentence.* moon"),
        (_replaced("features/val_0.npy", "no array"), r"val_0\.npy is not a whole"),
        (lambda f: np.save(f / "features/val_0.npy", np.zeros(3)), r"\(frames, numbers\)"),
        (lambda f: np.save(f / "features/val_0.npy", np.zeros((0, 3))), r"\(frames, numbers\)"),
        (lambda f: np.save(f / "features/val_0.npy", np.ones((2, 2), np.int64)), "not int64"),
        (lambda f: np.save(f / "features/val_2.npy", np.zeros((2, 3))), r"3 numbers a frame"),
    ],
)
def test_damage_is_named(damage: Callable[[Path], object], message: str, mrw: Path) -> None:
    damage(mrw)
    with pytest.raises(ValueError, match=message):
        open_videos(mrw, "val")


def test_frames_are_spread_evenly_or_drawn(mrw: Path) -> None:
    clips = open_split(mrw, "train").with_frames(4).features  # of 1, 4, 7 ... 22 frames
    assert isinstance(clips, Clips)
    assert clips.lengths.tolist() == [1, 4, 4, 4, 4, 4, 4, 4]
    whole = clips[:]
    assert whole.shape == (8, 4, WIDTH)
    assert whole[[0, 1, 7], :, 0].tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [2, 8, 13, 19]]
    assert not whole[0, 1:].any()
    drawn = [clips.drawn(np.arange(8), np.random.default_rng(seed))[:, :, 0] for seed in range(60)]
    steps = np.diff(np.stack(drawn), axis=2)
    assert (steps[:, 1] == 1).all()  # as long as what is looked at
    assert {tuple(row) for row in steps[:, 7]} == {(1, 1, 1), (2, 2, 2), (3, 3, 3)}
    starts = np.stack(drawn)[:, 7, 0]
    assert starts.min() <= 2
    assert 12 <= starts.max() <= 18
    again = clips.drawn(np.arange(8), np.random.default_rng(0))[:, :, 0]
    assert np.array_equal(again, drawn[0])


def test_a_pack_over_clips_looks_at_as_many_frames(mrw: Path, tmp_path: Path) -> None:
    small = ["epochs=1", "patience=1", "batch_size=8", "text.min_count=1", "text.word_dim=6"]
    config = load_recipe(TrainConfig, "vatex/vse_infty", [f"data={mrw}", *small, "frames=4"])
    config = config.changed(arguments={"embed_dim": 8}, text={"word_dim": 6, "hidden_dim": 8})
    build_trainer(config, tmp_path / "run", resume=False, extraction=Extraction(tmp_path)).fit()
    to_onnx.main(["--run", str(tmp_path / "run"), "--out", str(tmp_path / "pack"), *LABELS])
    rows = []
    for source in (["--run", str(tmp_path / "run")], ["--pack", str(tmp_path / "pack")]):
        out = tmp_path / "rows.json"
        evaluate.main([*source, "--data", str(mrw), "--split", "test", "--json", str(out)])
        rows.append(json.loads(out.read_text())["methods"]["vse_infty"])
    assert rows[0]["rsum"] == pytest.approx(rows[1]["rsum"])
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    data = as_read(runtime, open_split(mrw, "test"))
    assert data.features.shape == (4, 4, WIDTH)


def test_one_sentence_a_clip_is_ranked_on_request(tmp_path: Path) -> None:
    data = open_split(write_clips(tmp_path / "vatex", "vatex"), "test")
    each = SENTENCES["vatex"]
    first = data.captions_each(1)
    assert first.captions == data.captions[::each]
    assert first.image_of.tolist() == list(range(data.image_count))
    assert data.captions_each(0) is data
    assert load_recipe(TrainConfig, "tgif/pvse").ranked_captions == 1
