"""Ready-made features: what the layout's files become, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from training.data.batches import batches
from training.data.features import load_features
from training.data.open_split import open_split
from training.data.texts import TokenTable
from training.data.tokenizer import build_tokenizer

NOWHERE = Path("there is no backbone")


def write_part(folder: Path, part: str, images: int, captions: int) -> np.ndarray:
    """Features (images, 3, 2), each number another one, and so many captions of each image."""
    numbers = np.arange(images * 6, dtype=np.float32).reshape(images, 3, 2)
    np.save(folder / f"{part}_ims.npy", numbers)
    lines = [f"{part} {i // captions} caption {i % captions}" for i in range(captions * images)]
    (folder / f"{part}_caps.txt").write_text("\n".join(lines) + "\n")
    return numbers


def write_ids(folder: Path, part: str, ids: list[int]) -> None:
    (folder / f"{part}_ids.txt").write_text("".join(f"{i}\n" for i in ids))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four training images with two captions each, and two for validation."""
    write_part(tmp_path, "train", 4, 2)
    write_part(tmp_path, "dev", 2, 2)
    return tmp_path


def test_captions_belong_to_images_in_turn(folder: Path) -> None:
    data = open_split(folder, "train")
    assert load_features(folder, "train", NOWHERE).features.shape == (4, 3, 2)
    assert data.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.captions[5] == "train 2 caption 1"
    assert not data.summary_token
    assert data.boxes is None


def test_validation_is_called_dev_or_val(folder: Path) -> None:
    assert open_split(folder, "val").captions[0] == "dev 0 caption 0"
    write_part(folder, "val", 2, 2)
    (folder / "dev_ims.npy").unlink()
    assert open_split(folder, "val").captions[0] == "val 0 caption 0"


def test_a_limit_counts_images(folder: Path) -> None:
    data = open_split(folder, "train").first(3)
    assert len(data.captions) == len(data.image_of) == 6


def test_features_stay_on_the_disk(folder: Path) -> None:
    features = open_split(folder, "train").features
    assert isinstance(features, np.memmap)
    half = np.load(folder / "train_ims.npy").astype(np.float16)
    np.save(folder / "train_ims.npy", half)
    data = open_split(folder, "train")
    table = TokenTable(build_tokenizer(data.captions), data.captions)
    (batch,) = batches(data, table, 8, (0, 0))
    assert batch.features.dtype.is_floating_point
    assert batch.features.element_size() == 4
    assert np.array_equal(batch.features.numpy(), half[batch.image_ids.numpy()])


@pytest.mark.parametrize("with_ids", [True, False])
def test_five_equal_rows_are_one_image(tmp_path: Path, with_ids: bool) -> None:
    once = write_part(tmp_path, "test", 3, 5)
    np.save(tmp_path / "test_ims.npy", np.repeat(once, 5, axis=0))
    if with_ids:
        write_ids(tmp_path, "test", [7] * 5 + [3] * 5 + [9] * 5)
    data = open_split(tmp_path, "test")
    assert np.array_equal(data.features[:], once)
    assert data.image_of.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert len(open_split(tmp_path, "test").first(2).captions) == 10


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_caption_an_image_is_no_repetition(tmp_path: Path, with_ids: bool) -> None:
    write_part(tmp_path, "test", 10, 1)
    if with_ids:
        write_ids(tmp_path, "test", list(range(10)))
    data = open_split(tmp_path, "test")
    assert len(data.features) == 10
    assert data.image_of.tolist() == list(range(10))


def test_ids_can_say_which_caption_is_whose(folder: Path) -> None:
    write_ids(folder, "train", [4, 4, 4, 8, 1, 1, 9, 9])
    data = open_split(folder, "train")
    assert data.image_of.tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
    assert len(open_split(folder, "train").first(2).captions) == 4


def test_boxes_come_along(folder: Path) -> None:
    boxes = np.random.default_rng(0).random((4, 3, 4))
    np.save(folder / "train_boxes.npy", boxes)
    data = open_split(folder, "train")
    assert data.boxes is not None
    assert np.array_equal(data.boxes, boxes)


def _no_captions(folder: Path) -> None:
    (folder / "train_caps.txt").unlink()


def _blank_line(folder: Path) -> None:
    path = folder / "train_caps.txt"
    path.write_text(path.read_text().replace("train 1 caption 0", " "))


def _cut_short(folder: Path) -> None:
    path = folder / "train_ims.npy"
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "train_caps.txt").write_text("one\ntwo\nthree\n"),
            r"holds 3 captions, which do not divide evenly among the 4 images",
        ),
        (_no_captions, r"there is no .*train_caps\.txt"),
        (_blank_line, r"train_caps\.txt: line 3 is empty"),
        (
            lambda folder: np.save(folder / "train_ims.npy", np.zeros((4, 6), np.float32)),
            r"floats with 3 axes .* not float32 \(4, 6\)",
        ),
        (
            lambda folder: np.save(folder / "train_ims.npy", np.zeros((4, 3, 2), np.int64)),
            r"not int64",
        ),
        (_cut_short, r"train_ims\.npy is not a whole \.npy file"),
        (
            lambda folder: write_ids(folder, "train", [1, 2, 3]),
            r"holds 3 numbers, but there are 4 images and 8 captions",
        ),
        (
            lambda folder: write_ids(folder, "train", [1, 1, 1, 1, 2, 2, 3, 3]),
            r"tells 3 images apart.* train_ims\.npy holds 4",
        ),
        (lambda folder: (folder / "train_ids.txt").write_text("one\n"), r"one whole number a line"),
        (
            lambda folder: np.save(folder / "train_boxes.npy", np.zeros((4, 2, 4))),
            r"a box for each region, \(4, 3, 4\), not \(4, 2, 4\)",
        ),
        (
            lambda folder: np.save(folder / "train_boxes.npy", np.full((4, 3, 4), 224.0)),
            r"must be relative xyxy, 0 to 1, but reach from 224 to 224",
        ),
    ],
)
def test_disagreeing_files(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_split(folder, "train")


def test_a_missing_split_is_named(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r'the split "test": no test_ims\.npy'):
        open_split(folder, "test")


def test_a_folder_with_nothing_says_what_it_could_hold(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nor a rendered split .* nor ready-made"):
        open_split(tmp_path, "train")
