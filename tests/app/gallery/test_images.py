"""Opening pictures: what people have works, what would do harm is refused in a sentence."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.app.gallery.images import ImageError, open_image
from tests.app import hostile
from tests.app.conftest import draw

# The app has its own limit; main.py switches Pillow's warning off too.
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


@pytest.mark.parametrize("name", hostile.USABLE)
def test_what_people_have_opens(tmp_path: Path, name: str) -> None:
    image = open_image(hostile.write(tmp_path, name))
    assert image.mode == "RGB"
    assert max(image.size) <= 2048


@pytest.mark.parametrize(("name", "why"), hostile.REFUSED.items())
def test_what_cannot_be_used_is_refused(tmp_path: Path, name: str, why: str) -> None:
    path = hostile.write(tmp_path, name)
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


def test_a_large_image_of_16_bits_is_opened_in_bands(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.new("I;16", (6000, 6000), 21_845).save(path, compress_level=1)
    code = (
        "import pathlib, resource, sys; from polyview.app.gallery.images import open_image\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); assert open_image(pathlib.Path(sys.argv[1])).size == (2048, 2048)\n"
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


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.png no longer exists"):
        open_image(tmp_path / "gone.png")


@pytest.mark.parametrize("kind", ["AVIF", "BMP", "HEIF", "PPM", "TIFF", "WEBP"])
def test_every_format_is_read(kind: str, tmp_path: Path) -> None:
    if kind == "HEIF":
        importlib.import_module("pillow_heif").register_heif_opener()
    path = tmp_path / f"photo.{kind.lower()}"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path, kind)
    opened = open_image(path)
    assert opened.size == (64, 48)
    assert opened.getpixel((9, 9)) == pytest.approx((200, 30, 30), abs=6)
