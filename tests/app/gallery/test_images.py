"""Opening images: what people have works, what would do harm is refused; and thumbnails of them."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import ExifTags, Image

from polyview.app.gallery import images, scan
from polyview.app.gallery.images import THUMBNAIL_SIDE, ImageError, open_image, sweep
from polyview.app.gallery.scan import CollectionImage
from tests.app import hostile
from tests.app.conftest import draw

# The app has its own limit; main.py switches Pillow's warning off too.
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


@pytest.mark.parametrize("name", hostile.USABLE)
def test_what_people_have_opens(tmp_path: Path, name: str) -> None:
    image = open_image(hostile.write(tmp_path, name))
    assert image.mode == "RGB"
    assert max(image.size) <= 2048


@pytest.mark.parametrize(("name", "why"), [*hostile.REFUSED.items(), ("gone.png", "no longer")])
def test_what_cannot_be_used_is_refused(tmp_path: Path, name: str, why: str) -> None:
    path = tmp_path / name if name == "gone.png" else hostile.write(tmp_path, name)
    with pytest.raises(ImageError, match=why) as refusal:
        open_image(path)
    sentence = str(refusal.value)
    assert sentence.startswith(f"{name} ")
    assert str(tmp_path) not in sentence


def test_large_jpegs_are_decoded_at_a_fraction(tmp_path: Path) -> None:
    side = 9_000
    path = tmp_path / "large.jpg"
    Image.new("L", (side, side), 128).save(path, quality=10)
    image = open_image(path)
    assert 1024 <= max(image.size) <= 2048
    assert image.getpixel((5, 5)) == (128, 128, 128)


@pytest.mark.parametrize("mode", ["1", "CMYK", "I;16", "L", "LA", "P", "RGB", "RGBA"])
def test_large_images_of_any_mode_are_reduced_upright(tmp_path: Path, mode: str) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    large = Image.new(mode, (4000, 2200))
    for name in ("large.tif", "large.png") if mode != "CMYK" else ("large.tif", "large.jpg"):
        large.save(tmp_path / name, exif=exif)
        width, height = open_image(tmp_path / name).size
        assert width < height
        assert 1024 <= height <= 2048


def test_a_large_image_of_16_bits_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.new("I;16", (6000, 6000), 21_845).save(path, compress_level=1)
    code = (
        "import pathlib, resource, sys; from polyview.app.gallery.images import open_image\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); image = open_image(pathlib.Path(sys.argv[1]))\n"
        "assert (image.size, image.getpixel((9, 9))) == ((2048, 2048), (85, 85, 85))\n"
        "print((peak() - before) / (2**20 if sys.platform == 'darwin' else 2**10))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert float(ended.stdout) < 400, ended.stderr  # MB; 1 GB if it were converted whole


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    plain, _ = draw(4)
    turned = open_image(hostile.write(tmp_path, "rotated.jpg"))
    assert turned.size == (plain.height, plain.width)
    difference = np.abs(
        np.asarray(turned, np.int16) - np.asarray(plain.rotate(-90, expand=True), np.int16)
    )
    assert difference.mean() < 6


@pytest.mark.parametrize("kind", ["AVIF", "BMP", "HEIF", "PPM", "TIFF", "WEBP"])
def test_every_format_is_read(kind: str, tmp_path: Path) -> None:
    if kind == "HEIF":
        importlib.import_module("pillow_heif").register_heif_opener()
    path = tmp_path / f"photo.{kind.lower()}"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path, kind)
    opened = open_image(path)
    assert opened.size == (64, 48)
    assert opened.getpixel((9, 9)) == pytest.approx((200, 30, 30), abs=6)


def thumbnail_of(path: Path, folder: Path) -> Path:
    return CollectionImage(0, path, path.name).thumbnail(folder)


def test_thumbnails_are_small_and_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large.png"
    draw(3)[0].resize((1200, 900)).save(large)
    thumbnail = thumbnail_of(large, tmp_path / "thumbs")
    with Image.open(thumbnail) as opened:
        assert opened.size == (THUMBNAIL_SIDE, THUMBNAIL_SIDE * 3 // 4)
    with monkeypatch.context() as patch:
        patch.setattr(scan, "decode", None)
        assert thumbnail_of(large, tmp_path / "thumbs") == thumbnail
    draw(4)[0].save(large)
    assert thumbnail_of(large, tmp_path / "thumbs") != thumbnail


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("side", [60, 1200])
def test_thumbnails_and_images_hold_no_metadata(tmp_path: Path, kind: str, side: int) -> None:
    path = tmp_path / f"photo.{kind}"
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    exif[ExifTags.Base.Artist] = "somebody"
    draw(3)[0].resize((side, side)).save(path, exif=exif, icc_profile=b"x" * 200, comment=b"home")
    thumbnail = thumbnail_of(path, tmp_path / "thumbs")
    open_image(path).save(tmp_path / "large.png")
    for file in (thumbnail, tmp_path / "large.png"):
        with Image.open(file) as opened:
            assert not opened.getexif()
            assert not {"exif", "xmp", "icc_profile", "comment"} & opened.info.keys()
        assert b"somebody" not in file.read_bytes()


@pytest.mark.parametrize("trouble", ["a file", "full"])
def test_thumbnails_that_cannot_be_written_are_a_sentence_about_the_disk(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "photo.png"
    draw(3)[0].save(path)
    if trouble == "a file":
        (tmp_path / "thumbs").write_text("no folder")
    else:
        full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
        monkeypatch.setattr(tempfile, "mkdtemp", Mock(side_effect=full))
    with pytest.raises(ImageError, match="another disk") as refusal:
        thumbnail_of(path, tmp_path / "thumbs")
    assert str(tmp_path) not in str(refusal.value)


def test_all_thumbnails_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "thumbs"
    made = []
    for number in range(5):
        path = tmp_path / f"{number}.png"
        draw(3)[0].save(path)
        made.append(thumbnail_of(path, folder))
        os.utime(made[-1], (time.time() - 1e6 + number,) * 2)
    os.utime(made[0], (0, 0))
    assert thumbnail_of(tmp_path / "0.png", folder) == made[0]  # used, so it stays
    monkeypatch.setattr(images, "THUMBNAILS_BYTES", 3 * made[0].stat().st_size)
    sweep(folder)
    assert set(folder.iterdir()) == {made[0], made[3], made[4]}
