"""Opening images: formats, attacks, memory; and thumbnails."""

import errno
import os
import struct
import tempfile
import time
from pathlib import Path
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from PIL import ExifTags, Image
from pillow_heif import register_heif_opener

from polyview.app.gallery import images, scan
from polyview.app.gallery.images import ImageError, open_file, open_image, read_frames
from polyview.app.gallery.scan import THUMBNAIL_SIDE, CollectionImage, delete_old_thumbnails
from tests.app import hostile
from tests.app.conftest import draw

# the app has its own limit; main.py also disables Pillow's warning
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


@pytest.mark.parametrize("name", hostile.USABLE)
def test_usable_images(tmp_path: Path, name: str) -> None:
    image = open_image(hostile.write(tmp_path, name))
    assert image.mode == "RGB"
    assert max(image.size) <= 2048
    if name not in ("alpha.png", "dot.png", "grey16.png", "palette.gif", "wide.png"):
        upright = draw(4)[0].rotate(-90 if name == "rotated.jpg" else 0, expand=True)
        assert np.abs(np.asarray(image, int) - np.asarray(upright, int)).mean() < 6


@pytest.mark.parametrize("name", [*hostile.REFUSED, "gone.png"])
def test_refused_images(tmp_path: Path, name: str) -> None:
    path, why = tmp_path / name, "no longer"
    if name in hostile.REFUSED:
        path, why = hostile.write(tmp_path, name), hostile.REFUSED[name][1]
    with pytest.raises(ImageError, match=why) as refusal:
        open_image(path)
    sentence = str(refusal.value)
    assert sentence.startswith(f"{name} ")
    assert str(tmp_path) not in sentence


@pytest.mark.parametrize("kind", ["little-endian", "big-endian", "BigTIFF"])
def test_layouts_of_tiffs(tmp_path: Path, kind: str) -> None:
    path, image = tmp_path / "a.tif", draw(4)[0]
    if kind == "BigTIFF":
        image.save(path, big_tiff=True)
    else:
        path.write_bytes(hostile.stripped(image, ">" if kind == "big-endian" else "<"))
    assert open_image(path).tobytes() == image.tobytes()


def test_blocks_of_a_gif_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "a.gif", hostile.commented(0)
    open_image(hostile.write(tmp_path, "animated.gif"))
    monkeypatch.setattr(images, "_MAX_BLOCKS", 100)
    for extra in (b"\x01 " * 101, bytes(101)):  # blocks of a frame, and skipped bytes
        path.write_bytes(content[:-2] + extra + b"\0;")
        with pytest.raises(ImageError, match="more than 100 blocks of data"):
            open_image(path)


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_headers_of_false_size(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libheif refuses HEIF; AVIF is decoded under the lock for large images."""
    register_heif_opener()
    path, turn = tmp_path / f"a.{kind.lower()}", MagicMock()
    Image.new("RGB", (300, 200)).save(path, kind)
    content = bytearray(path.read_bytes())
    start = content.index(b"ispe") + 8
    content[start : start + 8] = struct.pack(">2I", 30, 20)
    path.write_bytes(content)
    monkeypatch.setattr(images, "_large_image_slot", turn)
    if kind == "HEIF":
        with pytest.raises(ImageError, match="damaged"):
            open_image(path)
    else:
        with open_file(path, path.name) as file:
            frames = read_frames(file, path.name)
            assert next(frames)[1].size == (30, 20)
            turn.__exit__.assert_called_once()  # before the caller uses the image


def test_large_jpegs_are_decoded_at_a_fraction(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    Image.new("L", (9000, 4500), 128).save(path, quality=10)
    image = open_image(path)
    assert 1024 <= image.width <= 2048
    assert image.getpixel((5, 5)) == (128, 128, 128)


@pytest.mark.parametrize("mode", ["1", "CMYK", "I;16", "L", "LA", "P", "RGB", "RGBA"])
def test_conversion_in_bands(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is nearly the same without bands."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    values = np.add.outer(np.arange(216), np.arange(384))
    large = Image.fromarray((values / 2.5).astype(np.uint8)).convert("1" if mode == "1" else "RGB")
    values[:27] = 2  # of 16 bits: bands that a byte could hold
    large = large.convert(mode) if mode != "I;16" else Image.fromarray((values * 90).astype("u2"))
    for name in ("large.tif", "large.jpg" if mode == "CMYK" else "large.png"):
        large.save(tmp_path / name, exif=exif)
        with monkeypatch.context() as patch:
            patch.setattr(images, "WORKING_SIDE", 64)
            whole = open_image(tmp_path / name)
            patch.setattr(images, "_BAND", 4000)
            banded = open_image(tmp_path / name)
        assert whole.size == banded.size == (72, 128)
        difference = np.abs(np.asarray(whole, float) - np.asarray(banded, float))
        assert difference.mean() < (20 if mode == "1" else 3)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="uses Linux's /proc")
def test_a_large_image_of_16_bits_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.new("I;16", (4200, 4200), 21_845).save(path, compress_level=1)

    def peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = peak()
    image = open_image(path)
    assert peak() - before < 280  # MB; converting all pixels at once takes 500
    assert image.getpixel((9, 9)) == (85, 85, 85)


def thumbnail_of(path: Path, folder: Path) -> Path:
    return CollectionImage(0, path, path.name).thumbnail(folder)


def test_a_thumbnail_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("kind", "side"), [("jpg", 60), ("jpg", 1200), ("png", 60), ("webp", 60)])
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


def test_thumbnails_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(3)[0].save(tmp_path / "photo.png")
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", Mock(side_effect=full))
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", tmp_path / "thumbs"):
        with pytest.raises(ImageError, match="another disk") as refusal:
            thumbnail_of(tmp_path / "photo.png", folder)
        assert str(tmp_path) not in str(refusal.value)


def test_thumbnails_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "thumbs"
    made = []
    for number in range(5):
        draw(3)[0].save(tmp_path / f"{number}.png")
        made.append(thumbnail_of(tmp_path / f"{number}.png", folder))
        os.utime(made[-1], (time.time() - 1e6 + number,) * 2)
    os.utime(made[0], (0, 0))
    assert thumbnail_of(tmp_path / "0.png", folder) == made[0]  # used, so it stays
    monkeypatch.setattr(scan, "THUMBNAILS_BYTES", 3 * made[0].stat().st_size)
    delete_old_thumbnails(folder)
    assert set(folder.iterdir()) == {made[0], made[3], made[4]}
