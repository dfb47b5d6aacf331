"""A gallery of ready-made features: its captions, photographs, drawings, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.regions import Regions
from polyview.export.pack.schema import REGIONS
from polyview.training.data.precomputed import main, open_regions
from tests.training.conftest import write_regions


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
