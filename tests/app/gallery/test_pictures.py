"""Opening pictures: what people have works, what would do harm is refused in a sentence."""

import errno
import importlib
import os
import tempfile
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import ExifTags, Image

from app.gallery.pictures import (
    MAX_PIXELS,
    THUMBNAIL_SIDE,
    DiskError,
    PictureError,
    make_thumbnail,
    open_picture,
)
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


def test_a_tiff_of_one_huge_tile_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "tile.tif"
    path.write_bytes(hostile.tiff_tile(16, 32_768))
    with pytest.raises(PictureError, match="32768 x 32768 pixels, more than the 100 million"):
        open_picture(path)
    path.write_bytes(hostile.tiff_tile(16, 64))
    assert open_picture(path).size == (16, 16)


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
    assert [path.name for path in thumbnail.parent.iterdir()] == ["one.webp"]


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("side", [60, 1200])
def test_thumbnails_and_pictures_hold_no_metadata(tmp_path: Path, kind: str, side: int) -> None:
    path = tmp_path / f"photo.{kind}"
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    exif[ExifTags.Base.Artist] = "somebody"
    draw(3)[0].resize((side, side)).save(path, exif=exif, icc_profile=b"x" * 200, comment=b"home")
    thumbnail = make_thumbnail(path, tmp_path / "thumbs", "two")
    with Image.open(thumbnail) as opened:
        assert not opened.getexif()
        assert not {"exif", "xmp", "icc_profile", "comment"} & opened.info.keys()
    assert b"somebody" not in thumbnail.read_bytes()
    open_picture(path).save(tmp_path / "shown.png")
    with Image.open(tmp_path / "shown.png") as opened:
        assert not opened.getexif()
        assert not opened.info


@pytest.mark.parametrize("junk", ["text", "cut", "large", "metadata", "link", "pipe"])
def test_what_lies_in_a_thumbnails_place_is_made_anew(tmp_path: Path, junk: str) -> None:
    path = tmp_path / "photo.png"
    draw(3)[0].resize((600, 600)).save(path)
    kept = make_thumbnail(path, tmp_path / "thumbs", "one")
    content = kept.read_bytes()
    kept.unlink()
    if junk == "text":
        kept.write_text("no picture")
    elif junk == "cut":
        kept.write_bytes(content[: len(content) // 2])
    elif junk == "large":
        draw(4)[0].resize((900, 900)).save(kept)
    elif junk == "metadata":
        exif = Image.Exif()
        exif[ExifTags.Base.Artist] = "somebody"
        draw(4)[0].save(kept, exif=exif)
    elif junk == "link":
        draw(4)[0].save(tmp_path / "secret.webp")
        kept.symlink_to(tmp_path / "secret.webp")
    else:
        os.mkfifo(kept)
    assert make_thumbnail(path, tmp_path / "thumbs", "one") == kept
    assert kept.read_bytes() == content
    assert not kept.is_symlink()


@pytest.mark.parametrize("trouble", ["a file", "full"])
def test_thumbnails_that_cannot_be_kept_are_a_sentence_about_the_disk(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "photo.png"
    draw(3)[0].save(path)
    if trouble == "a file":
        (tmp_path / "thumbs").write_text("no folder")
    else:
        full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
        monkeypatch.setattr(tempfile, "mkstemp", Mock(side_effect=full))
    with pytest.raises(DiskError) as refusal:
        make_thumbnail(path, tmp_path / "thumbs", "one")
    assert "disk" in str(refusal.value)
    assert str(tmp_path) not in str(refusal.value)


def test_a_failed_thumbnail_leaves_nothing(tmp_path: Path) -> None:
    cut = hostile.write(tmp_path, "cut.jpg")
    with pytest.raises(PictureError):
        make_thumbnail(cut, tmp_path / "thumbs", "three")
    assert not (tmp_path / "thumbs").exists()


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_pictures_of_phones_are_read(kind: str, tmp_path: Path) -> None:
    if kind == "HEIF":
        importlib.import_module("pillow_heif").register_heif_opener()
    path = tmp_path / f"photo.{kind.lower()}"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path, kind)
    opened = open_picture(path)
    assert opened.size == (64, 48)
    assert make_thumbnail(path, tmp_path / "thumbs", "one").suffix == ".webp"
