"""Precomputed features of regions and frames: splits, galleries and error messages."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.export import to_onnx
from polyview.export.pack.gallery import Regions, load_gallery
from polyview.export.pack.schema import REGIONS
from polyview.export.runtime import Runtime
from polyview.training import evaluate
from polyview.training.data.batches import batches
from polyview.training.data.features import Extraction, read_features
from polyview.training.data.open_split import open_split, summary
from polyview.training.data.precomputed import main, open_regions
from polyview.training.data.split import Clips
from polyview.training.data.texts import TokenTable, build_tokenizer
from polyview.training.data.videos import open_videos
from polyview.training.evaluation.scoring import limit_frames
from polyview.training.loop.config import TrainConfig, load_recipe
from polyview.training.loop.trainer import build_trainer
from tests.training.conftest import LABELS, make_features, write_regions


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with 60 training, 30 validation and 20 test images, each with two captions."""
    return write_regions(tmp_path / "data")


def test_captions_are_grouped_by_image(data: Path) -> None:
    boxes, made = np.random.default_rng(0).random((60, 5, 4)), make_features(60, 60)
    np.save(data / "train_boxes.npy", boxes)
    train = read_features(open_split(data, "train"), "no/backbone")
    assert isinstance(train.features, np.memmap)
    assert train.captions == made.captions
    assert train.image_of.tolist() == made.image_of.tolist()
    assert (train.lengths, train.summary_token) == (None, False)
    assert train.boxes is not None
    assert np.array_equal(train.boxes, boxes)
    assert len(train.head(3).captions) == len(train.head(3).image_of) == 6
    table = TokenTable(build_tokenizer(train.captions), train.captions)
    (batch,) = batches(train, table, 120, (0, 0))
    assert batch.features.element_size() == 4
    assert np.array_equal(batch.features.numpy(), made.features[batch.image_ids.numpy()])
    captions = open_split(data, "val").captions  # of "dev" or "val"
    assert captions == make_features(30, 30).captions
    (data / "dev_ims.npy").rename(data / "val_ims.npy")
    (data / "dev_caps.txt").rename(data / "val_caps.txt")
    assert open_split(data, "val").captions == captions


def test_five_equal_rows_are_one_image(tmp_path: Path) -> None:
    numbers = np.arange(90, dtype=np.float32).reshape(15, 3, 2)
    (tmp_path / "test_caps.txt").write_text("a caption\n" * 15)
    np.save(tmp_path / "test_ims.npy", np.repeat(numbers[:3], 5, axis=0))
    data = open_split(tmp_path, "test")
    assert np.array_equal(data.features[:], numbers[:3])
    assert data.image_of.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    np.save(tmp_path / "test_ims.npy", numbers)  # one caption for each image: 15 images
    assert open_split(tmp_path, "test").image_of.tolist() == list(range(15))


Damage = Callable[[Path], object]


def text(path: str, content: str) -> Damage:
    return lambda folder: (folder / path).write_text(content)


def array(path: str, values: np.ndarray) -> Damage:
    return lambda folder: np.save(folder / path, values)


def sentences(**values: object) -> Damage:
    return text("mrw-v1.0.json", json.dumps([values]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            text("train_caps.txt", "one\ntwo\nthree\n"),
            "each image: there are 60 images and 3 captions",
        ),
        (lambda folder: (folder / "train_caps.txt").unlink(), r"there is no .*train_caps\.txt"),
        (text("train_caps.txt", "one\ntwo\n \n"), r"train_caps\.txt: line 3 is empty"),
        (array("train_ims.npy", np.zeros((60, 6))), r"regions, numbers\), not float64 \(60, 6"),
        (
            lambda f: os.truncate(f / "train_ims.npy", 200),
            r"train_ims\.npy is not a complete \.npy",
        ),
        (array("train_boxes.npy", np.zeros((4, 2, 4))), r"region, \(60, 5, 4\), not \(4, 2, 4\)"),
        (array("train_boxes.npy", np.full((60, 5, 4), 224.0)), r"relative xyxy.* from 224 to 224"),
    ],
)
def test_disagreeing_files(data: Path, damage: Damage, message: str) -> None:
    damage(data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_split(data, "train")


def make(data: Path, *more: str) -> Path:
    out = data.parent / "gallery"
    main(["--data", str(data), "--out", str(out), *more])
    return out


def test_a_gallery_without_images_has_drawings_of_the_boxes(data: Path) -> None:
    boxes = np.tile(np.array([0.25, 0.25, 0.75, 0.75], np.float32), (20, 5, 1))
    np.save(data / "test_boxes.npy", boxes)
    split, out = open_regions(data, "test"), make(data, "--count", "7")
    gallery, regions = load_gallery(out), Regions(out / REGIONS)
    assert (gallery.split, gallery.world, len(gallery.images)) == ("test", "data", 7)
    assert [caption.text for caption in gallery.captions] == split.captions[:14]
    assert np.array_equal(regions.all_features(), split.features[:7])
    assert regions.boxes is not None
    assert np.array_equal(regions.boxes, boxes[:7])
    drawn = [Image.open(out / image.file).convert("L") for image in gallery.images]
    assert len({image.tobytes() for image in drawn}) == 7  # each shows its number
    first = np.asarray(drawn[0], int)
    high, wide = first.shape
    assert first[high // 2, wide // 4 + 20] - first[high // 2, wide // 4] > 50


def test_a_gallery_of_photographs_in_the_order_of_their_names(data: Path, tmp_path: Path) -> None:
    for i in range(20):
        Image.new("RGB", (900, 300), (12 * i, 0, 0)).save(tmp_path / f"{i}.png")
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{19 - i}.png\n" for i in range(20)))
    named = ["--images", str(tmp_path), "--names", str(names)]
    out = make(data, *named, "--count", "3")
    for i, image in enumerate(load_gallery(out).images):
        displayed = Image.open(out / image.file)
        assert displayed.size == (640, 213)
        assert np.asarray(displayed)[..., 0].mean() == pytest.approx(12 * (19 - i), abs=6)
    short = tmp_path / "short.txt"
    short.write_text("a.png\n")
    names.write_text("a.png\n" * 20)
    for more, message in (
        (named[:2], "--images and --names need each other"),
        (named[2:], "--images and --names need each other"),
        ([*named[:3], str(short)], "1 photographs, but features of 20 images"),
        (named, r"a\.png"),
        (["--split", "testall"], "no features of the split"),
        (["--out", str(tmp_path)], "exists already"),
    ):
        with pytest.raises(SystemExit, match=message):
            make(data, "--out", str(tmp_path / "new"), *more)
    assert not (tmp_path / "new").exists()


WIDTH = 12
CLIPS = {"train": 8, "val": 4, "test": 4}  # number of clips in each split
LAYOUTS = {"tgif": 1, "mrw": 1, "msrvtt": 3, "vatex": 2}  # sentences of each clip


def clips_of(split: str) -> list[str]:
    return [f"{split}_{i}" for i in range(CLIPS[split])]


def sentences_of(clip: str, layout: str) -> list[str]:
    text = f"a dog runs in {clip.replace('_', ' ')} and jumps"
    return [text + " again" * k for k in range(LAYOUTS[layout])]


def write_clips(folder: Path, layout: str) -> Path:
    """Writes annotations, splits and features in the layout of a published data set.

    Clip i of a split has 3 i + 1 frames; the first number of frame t is t.
    """
    (folder / "features").mkdir(parents=True)
    ANNOTATE[layout](folder)
    random = np.random.default_rng(0)
    for split in CLIPS:
        for i, clip in enumerate(clips_of(split)):
            frames = random.normal(size=(3 * i + 1, WIDTH)).astype(np.float16)
            frames[:, 0] = np.arange(len(frames))
            np.save(folder / "features" / f"{clip}.npy", frames)
    return folder


def url(clip: str) -> str:
    return f"https://38.media.tumblr.com/9f6c25cc/{clip}.gif"


def annotate_tgif(folder: Path) -> None:
    clips = [clip for split in CLIPS for clip in clips_of(split)]
    rows = [f"{url(clip)}\t{text}\n" for clip in clips for text in sentences_of(clip, "tgif")]
    (folder / "tgif-v1.0.tsv").write_text("".join(rows))
    (folder / "splits").mkdir()
    for split in CLIPS:
        (folder / f"splits/{split}.txt").write_text("".join(f"{url(c)}\n" for c in clips_of(split)))


def annotate_mrw(folder: Path) -> None:
    rows = [
        {"id": clip, "sentence": sentence, "images": {"mp4_url": f"{url(clip)}.mp4"}}
        for split in CLIPS
        for clip in clips_of(split)
        for sentence in sentences_of(clip, "mrw")
    ]
    (folder / "mrw-v1.0.json").write_text(json.dumps(rows))
    (folder / "split").mkdir()
    for split, file in {"train": "train", "val": "valid", "test": "test"}.items():
        (folder / f"split/{file}.tsv").write_text("".join(f"{c}\n" for c in clips_of(split)))


def annotate_msrvtt(folder: Path) -> None:
    names = {"train": "train", "val": "validate", "test": "test"}
    for file, splits in (("train_val", ("train", "val")), ("test", ("test",))):
        clips = [(clip, split) for split in splits for clip in clips_of(split)]
        videos = [
            {"video_id": clip, "split": names[split], "url": url(clip)} for clip, split in clips
        ]
        sentences = [
            {"video_id": clip, "caption": sentences_of(clip, "msrvtt")[k], "sen_id": k}
            for k in range(LAYOUTS["msrvtt"])
            for clip, _ in reversed(clips)
        ]
        content = {"info": {}, "videos": videos, "sentences": sentences}
        (folder / f"{file}_videodatainfo.json").write_text(json.dumps(content))


def annotate_vatex(folder: Path) -> None:
    names = {"train": "training_v1.0", "val": "validation_v1.0", "test": "public_test_english_v1.1"}
    for split, name in names.items():
        rows = [
            {"videoID": clip, "enCap": sentences_of(clip, "vatex"), "chCap": ["一只狗"]}
            for clip in clips_of(split)
        ]
        (folder / f"vatex_{name}.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    (folder / "vatex_private_test_without_annotations.json").write_text('[{"videoID": "x"}]')


ANNOTATE = {
    "tgif": annotate_tgif,
    "mrw": annotate_mrw,
    "msrvtt": annotate_msrvtt,
    "vatex": annotate_vatex,
}


@pytest.fixture
def mrw(tmp_path: Path) -> Path:
    return write_clips(tmp_path / "mrw", "mrw")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_clips_is_read(layout: str, tmp_path: Path) -> None:
    folder, each = write_clips(tmp_path / layout, layout), LAYOUTS[layout]
    for split, count in CLIPS.items():
        data = open_split(folder, split)
        assert data.lengths is not None
        expected = [text for clip in clips_of(split) for text in sentences_of(clip, layout)]
        assert sorted(data.captions) == sorted(expected)
        own = [int(caption.split()[5]) for caption in data.captions]  # clip i has 3 i + 1 frames
        assert data.lengths[data.image_of].tolist() == [3 * i + 1 for i in own]
        assert data.features.shape == (count, 3 * count - 2, WIDTH)
        assert read_features(open_split(folder, split), "no/backbone").image_count == count
        first = data.limit_captions(1)
        assert first.captions == data.captions[::each]
        assert first.image_of.tolist() == list(range(count))
        assert data.limit_captions(0) is data
    with pytest.raises(FileNotFoundError, match='no clips of the split "moon"'):
        open_split(folder, "moon")
    assert next(iter(summary(folder))).endswith("precomputed features")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (text("mrw-v1.0.json", "[{"), r"mrw-v1\.0\.json: entry 0"),
        (sentences(id="val_0"), r"entry 0 .*KeyError: 'sentence'"),
        (sentences(id="val_0", sentence=" "), r"entry 1"),
        (sentences(id="../a", sentence="a"), r"clip '\.\./a'"),
        (text("split/valid.tsv", "val_0\nmoon\n"), r"1 of 2 clips have no sentence.* moon"),
        (text("features/val_0.npy", "no array"), r"val_0\.npy is not a complete"),
        (array("features/val_0.npy", np.zeros((0, 3))), r"\(frames, numbers\)"),
        (array("features/val_0.npy", np.ones((2, 2), np.int64)), "not int64"),
        (array("features/val_2.npy", np.zeros((2, 3))), r"features of width 3"),
        (lambda f: (f / "features/val_2.npy").unlink(), "1 of 4 clips have no file .* val_2"),
    ],
)
def test_damaged_clips_are_named(damage: Damage, message: str, mrw: Path) -> None:
    damage(mrw)
    with pytest.raises(ValueError, match=message):
        open_videos(mrw, "val")


def test_clips_listed_in_absent_txt_are_skipped(mrw: Path) -> None:
    (mrw / "features" / "val_2.npy").unlink()
    (mrw / "absent.txt").write_text("val_2\n")
    data = open_split(mrw, "val")
    assert [caption.split()[5] for caption in data.captions] == ["0", "1", "3"]


def test_frames_are_evenly_spaced_or_drawn(mrw: Path) -> None:
    clips = open_split(mrw, "train").with_frames(4).features  # of 1, 4, 7 ... 22 frames
    assert isinstance(clips, Clips)
    assert clips.lengths.tolist() == [1, 4, 4, 4, 4, 4, 4, 4]
    whole = clips[:]
    assert whole.shape == (8, 4, WIDTH)
    assert whole[[0, 1, 7], :, 0].tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [2, 8, 13, 19]]
    assert not whole[0, 1:].any()
    drawn = [clips.sample(np.arange(8), np.random.default_rng(seed))[:, :, 0] for seed in range(60)]
    steps = np.diff(np.stack(drawn), axis=2)
    assert (steps[:, 1] == 1).all()  # four frames, all used
    assert {tuple(row) for row in steps[:, 7]} == {(1, 1, 1), (2, 2, 2), (3, 3, 3)}
    starts = np.stack(drawn)[:, 7, 0]
    assert starts.min() <= 2
    assert 12 <= starts.max() <= 18
    again = clips.sample(np.arange(8), np.random.default_rng(0))[:, :, 0]
    assert np.array_equal(again, drawn[0])


def test_a_pack_uses_the_number_of_frames_of_its_training(mrw: Path, tmp_path: Path) -> None:
    small = ["epochs=1", "patience=1", "batch_size=8", "text.min_count=1", "text.word_dim=6"]
    sizes = ["text.hidden_dim=8", "text.vectors=", "frames=4"]
    config = load_recipe(TrainConfig, "vatex/vse_infty", [f"data={mrw}", *small, *sizes])
    config = config.model_copy(update={"arguments": {"embed_dim": 8}})
    run, pack, out = tmp_path / "run", tmp_path / "pack", tmp_path / "rows.json"
    build_trainer(config, run, resume=False, extraction=Extraction(tmp_path)).fit()
    to_onnx.main(["--run", str(run), "--out", str(pack), *LABELS])
    rsums = []
    for source in (["--run", str(run)], ["--pack", str(pack)]):
        evaluate.main([*source, "--data", str(mrw), "--split", "test", "--json", str(out)])
        rsums.append(json.loads(out.read_text())["methods"]["vse_infty"]["rsum"])
    assert rsums[0] == pytest.approx(rsums[1])
    data = limit_frames(Runtime.load(pack, "cpu"), open_split(mrw, "test"))
    assert data.features.shape == (4, 4, WIDTH)
