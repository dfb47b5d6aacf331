"""Opening pictures: what people have works, what would do harm is refused in a sentence."""

from __future__ import annotations

import importlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from app.pictures import MAX_PIXELS, THUMBNAIL_SIDE, PictureError, make_thumbnail, open_picture
from tests.app import hostile
from tests.app.conftest import draw

# The app has its own limit; main.py switches Pillow's warning off too.
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


@pytest.mark.parametrize("name", hostile.USABLE)
def test_what_people_have_opens(tmp_path: Path, name: str) -> None:
    picture = open_picture(hostile.write(tmp_path, name))
    assert picture.mode == "RGB"
    assert max(picture.size) <= 2048


@pytest.mark.parametrize(("name", "why"), hostile.REFUSED.items())
def test_what_cannot_be_used_is_refused(tmp_path: Path, name: str, why: str) -> None:
    path = hostile.write(tmp_path, name)
    with pytest.raises(PictureError, match=why) as refusal:
        open_picture(path, "shown name.png")
    sentence = str(refusal.value)
    assert sentence.startswith("shown name.png ")
    assert str(tmp_path) not in sentence


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    path = hostile.write(tmp_path, "bomb.png")
    tracemalloc.start()
    with pytest.raises(PictureError):
        open_picture(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_large_jpegs_are_decoded_at_a_fraction(tmp_path: Path) -> None:
    side = 10_500
    assert side * side > MAX_PIXELS
    path = tmp_path / "large.jpg"
    Image.new("L", (side, side), 128).save(path, quality=10)
    picture = open_picture(path)
    assert 1024 <= max(picture.size) <= 2048
    assert picture.getpixel((5, 5)) == (128, 128, 128)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    plain, _ = draw(4)
    turned = open_picture(hostile.write(tmp_path, "rotated.jpg"))
    assert turned.size == (plain.height, plain.width)
    difference = np.abs(
        np.asarray(turned, np.int16) - np.asarray(plain.rotate(-90, expand=True), np.int16)
    )
    assert difference.mean() < 6


def test_of_an_animation_the_first_frame_is_used(tmp_path: Path) -> None:
    opened = np.asarray(open_picture(hostile.write(tmp_path, "animated.gif")), np.int16)
    assert np.abs(opened - np.asarray(draw(4)[0], np.int16)).mean() < 4
    assert np.abs(opened - np.asarray(draw(5)[0], np.int16)).mean() > 10


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"gone\.png is not there any more"):
        open_picture(tmp_path / "gone.png")


def test_thumbnails_are_small_and_made_once(tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    draw(3)[0].resize((1200, 900)).save(large)
    thumbnail = make_thumbnail(large, tmp_path / "thumbs", "one")
    with Image.open(thumbnail) as opened:
        assert opened.size == (THUMBNAIL_SIDE, THUMBNAIL_SIDE * 3 // 4)
    large.unlink()
    assert make_thumbnail(large, tmp_path / "thumbs", "one") == thumbnail


def test_small_web_pictures_are_copied_as_they_are(tmp_path: Path) -> None:
    small = tmp_path / "small.webp"
    draw(3)[0].save(small)
    thumbnail = make_thumbnail(small, tmp_path / "thumbs", "two")
    assert thumbnail.read_bytes() == small.read_bytes()
    assert sorted(p.name for p in thumbnail.parent.iterdir()) == ["two.webp"]


def test_a_failed_thumbnail_leaves_nothing(tmp_path: Path) -> None:
    cut = hostile.write(tmp_path, "cut.jpg")
    with pytest.raises(PictureError):
        make_thumbnail(cut, tmp_path / "thumbs", "three")
    assert list((tmp_path / "thumbs").iterdir()) == []


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_pictures_of_phones_are_read(kind: str, tmp_path: Path) -> None:
    if kind == "HEIF":
        importlib.import_module("pillow_heif").register_heif_opener()
    elif not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    path = tmp_path / f"photo.{kind.lower()}"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path, kind)
    opened = open_picture(path)
    assert opened.size == (64, 48)
    assert make_thumbnail(path, tmp_path / "thumbs", "one").suffix == ".webp"
