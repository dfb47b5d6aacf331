"""Ready-made region features and a gallery of them: what they become, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.regions import Regions
from polyview.export.pack.schema import REGIONS
from polyview.training.data.batches import batches
from polyview.training.data.features import read_features
from polyview.training.data.open_split import open_split
from polyview.training.data.precomputed import main, open_regions
from polyview.training.data.texts import TokenTable, build_tokenizer
from tests.training.conftest import write_regions


def write_part(folder: Path, part: str, images: int, captions: int) -> np.ndarray:
    """Features (images, 3, 2), all numbers different, and so many captions of each image."""
    numbers = np.arange(images * 6, dtype=np.float32).reshape(images, 3, 2)
    np.save(folder / f"{part}_ims.npy", numbers)
    lines = [f"{part} {i // captions} caption {i % captions}" for i in range(captions * images)]
    (folder / f"{part}_caps.txt").write_text("\n".join(lines) + "\n")
    return numbers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four training images with two captions each, and two for validation."""
    write_part(tmp_path, "train", 4, 2)
    write_part(tmp_path, "dev", 2, 2)
    return tmp_path


def test_captions_belong_to_images_in_turn(folder: Path) -> None:
    boxes = np.random.default_rng(0).random((4, 3, 4))
    np.save(folder / "train_boxes.npy", boxes)
    half = np.load(folder / "train_ims.npy").astype(np.float16)
    np.save(folder / "train_ims.npy", half)
    data = read_features(open_split(folder, "train"), "no/backbone")
    assert isinstance(data.features, np.memmap)
    assert data.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.captions[5] == "train 2 caption 1"
    assert (data.lengths, data.summary_token) == (None, False)
    assert data.boxes is not None
    assert np.array_equal(data.boxes, boxes)
    assert len(data.first(3).captions) == len(data.first(3).image_of) == 6
    table = TokenTable(build_tokenizer(data.captions), data.captions)
    (batch,) = batches(data, table, 8, (0, 0))
    assert batch.features.element_size() == 4
    assert np.array_equal(batch.features.numpy(), half[batch.image_ids.numpy()])


def test_validation_is_called_dev_or_val(folder: Path) -> None:
    assert open_split(folder, "val").captions[0] == "dev 0 caption 0"
    write_part(folder, "val", 2, 2)
    (folder / "dev_ims.npy").unlink()
    assert open_split(folder, "val").captions[0] == "val 0 caption 0"


def test_five_equal_rows_are_one_image(tmp_path: Path) -> None:
    once = write_part(tmp_path, "test", 3, 5)
    np.save(tmp_path / "test_ims.npy", np.repeat(once, 5, axis=0))
    data = open_split(tmp_path, "test")
    assert np.array_equal(data.features[:], once)
    assert data.image_of.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    write_part(tmp_path, "test", 15, 1)  # a caption an image is no repetition
    assert open_split(tmp_path, "test").image_of.tolist() == list(range(15))


def _text(file: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / f"train_{file}.txt").write_text(text)


def _array(file: str, values: np.ndarray) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / f"train_{file}.npy", values)


def _cut_short(folder: Path) -> None:
    path = folder / "train_ims.npy"
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            _text("caps", "one\ntwo\nthree\n"),
            r"do not divide evenly: there are 4 images and 3 captions",
        ),
        (lambda folder: (folder / "train_caps.txt").unlink(), r"there is no .*train_caps\.txt"),
        (_text("caps", "one\ntwo\n \n"), r"train_caps\.txt: line 3 is empty"),
        (
            _array("ims", np.zeros((4, 6), np.float32)),
            r"floats \(images, regions, numbers\), not float32 \(4, 6",
        ),
        (_array("ims", np.zeros((4, 3, 2), np.int64)), r"not int64"),
        (_cut_short, r"train_ims\.npy is not a whole \.npy file"),
        (_array("boxes", np.zeros((4, 2, 4))), r"for each region, \(4, 3, 4\), not \(4, 2, 4\)"),
        (_array("boxes", np.full((4, 3, 4), 224.0)), r"relative xyxy.* from 224 to 224"),
    ],
)
def test_disagreeing_files(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_split(folder, "train")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_regions(tmp_path / "data")


def make(data: Path, *more: str) -> Path:
    out = data.parent / "gallery"
    main(["--data", str(data), "--out", str(out), *more])
    return out


def test_captions_and_features_come_along(data: Path) -> None:
    split, out = open_regions(data, "val"), make(data, "--split", "val", "--count", "7")
    gallery, regions = load_gallery(out), Regions(out / REGIONS)
    assert (gallery.split, gallery.world, len(gallery.images)) == ("val", "data", 7)
    assert [caption.text for caption in gallery.captions] == split.captions[:14]
    assert np.array_equal(regions.all_features(), split.features[:7])
    assert regions.boxes is None
    drawn = {Image.open(out / image.file).tobytes() for image in gallery.images}
    assert len(drawn) == 7  # by their numbers


def test_a_drawing_shows_the_boxes(data: Path) -> None:
    boxes = np.tile(np.array([0.25, 0.25, 0.75, 0.75], np.float32), (20, 5, 1))
    np.save(data / "test_boxes.npy", boxes)
    out = make(data)
    first = np.asarray(Image.open(out / load_gallery(out).images[0].file).convert("L"), int)
    high, wide = first.shape
    edge, beside = first[high // 2, wide // 4], first[high // 2, wide // 4 + 20]
    assert beside - edge > 50
    results = Regions(out / REGIONS).boxes
    assert results is not None
    np.testing.assert_array_equal(results, boxes)


def test_photographs_in_the_order_of_their_names(data: Path, tmp_path: Path) -> None:
    for i in range(20):
        Image.new("RGB", (900, 300), (12 * i, 0, 0)).save(tmp_path / f"{i}.png")
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{19 - i}.png\n" for i in range(20)))
    out = make(data, "--images", str(tmp_path), "--names", str(names), "--count", "3")
    for i, image in enumerate(load_gallery(out).images):
        displayed = Image.open(out / image.file)
        assert displayed.size == (640, 213)
        assert np.asarray(displayed)[..., 0].mean() == pytest.approx(12 * (19 - i), abs=6)


def test_what_is_refused(data: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("a.png\n")
    for more, sentence in (
        (["--images", str(tmp_path)], "--images and --names go together"),
        (["--names", str(names)], "--images and --names go together"),
        (["--images", str(tmp_path), "--names", str(names)], "1 names .* features of 20 images"),
        (["--count", "0"], "--count must be 1 or more"),
        (["--split", "testall"], "no features of the split"),
        (["--out", str(tmp_path)], "exists already"),
    ):
        with pytest.raises(SystemExit, match=sentence):
            make(data, *more)
    names.write_text("a.png\n" * 20)
    with pytest.raises(SystemExit, match=r"a\.png"):
        make(data, "--images", str(tmp_path), "--names", str(names))
    assert not (tmp_path / "gallery").exists()
