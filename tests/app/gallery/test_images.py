"""Opening images: formats, attacks, memory; and thumbnails."""

import errno
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from PIL import ExifTags, Image
from pillow_heif import register_heif_opener

from polyview.app.gallery import images, scan
from polyview.app.gallery.images import ImageError, open_file, open_image, read_frames
from polyview.app.gallery.scan import THUMBNAIL_SIDE, CollectionImage, delete_old_thumbnails
from tests.app.conftest import draw, saved

# the app has its own limit; main.py also disables Pillow's warning
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
USABLE = (
    "cmyk.jpg", "grey16.png", "palette.gif", "animated.gif", "rotated.jpg", "alpha.png",
    "dot.png", "wide.png", "mislabelled.png", "bitmap.bmp", "camera.avif", "phone.heif",
    "plain.ppm", "scan.tiff", "web.webp",
)  # fmt: skip


def png_header(width: int, height: int) -> bytes:
    """A PNG of one pixel whose header states another size."""
    content = bytearray(saved(Image.new("RGB", (1, 1)), "PNG"))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def jpeg(side: int, is_progressive: bool = True) -> bytes:
    """A grey JPEG."""
    return saved(Image.new("L", (side, side), 128), "JPEG", progressive=is_progressive)


def progressive(side: int) -> bytes:
    """A progressive JPEG of 64 x 64 pixels whose header states `side` pixels on each side."""
    content = jpeg(64)
    frame = content.index(b"\xff\xc2") + 5
    return content[:frame] + struct.pack(">HH", side, side) + content[frame + 4 :]


def repeated_scans(side: int, scans: int, is_progressive: bool = True) -> bytes:
    """A valid grey JPEG whose last scan is repeated, up to `scans` scans."""
    content = jpeg(side, is_progressive)
    start, end = b"\xff\xda", b"\xff\xd9"
    last = content.rindex(start)
    return content[:last] + content[last:-2] * (scans - content.count(start) + 1) + end


def commented(size: int) -> bytes:
    """A GIF of one pixel with a comment of `size` bytes."""
    return saved(Image.new("P", (1, 1)), "GIF", comment=bytes(size))


def looped() -> bytes:
    """A GIF whose comment Pillow finds in image data, after a loop extension without a count."""
    start = b"GIF89a" + struct.pack("<2H3x", 1, 1) + b"!\xff\x0bNETSCAPE2.0\0"
    image = b"," + bytes(9) + b"\x08" + b"\x24" + bytes(33) + b"\0!\xfe"
    return start + image + (b"\xff" + bytes(255)) * 5000 + b"\0;"


def tiff(
    size: tuple[int, int], tags: list[tuple[int, int, int]], data: bytes, order: str = "<"
) -> bytes:
    """A TIFF of a width and height, with tags (number, type, value), and data from byte 8."""
    tags = [(256, 4, size[0]), (257, 4, size[1]), (258, 4, 8), *tags]
    entries = b"".join(struct.pack(f"{order}HHII", tag, kind, 1, v) for tag, kind, v in tags)
    start = struct.pack(f"{order}HI", 42, 8 + len(data)) + data
    mark = b"II" if order == "<" else b"MM"
    return mark + start + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)


def tiled(*sides: int, kind: int = 4) -> bytes:
    """A TIFF of 64 x 48 pixels in tiles; libtiff uses the first of `sides`, Pillow the last."""
    data = zlib.compress(bytes(10**6))
    tiles = [(tag, kind, side) for tag in (322, 323) for side in sides]
    tags = [(259, 4, 8), (277, 4, 1), *tiles, (324, 4, 8), (325, 4, len(data))]
    return tiff((64, 48), tags, data)


def stripped(image: Image.Image, order: str) -> bytes:
    """A TIFF of an RGB image, with two tags for its software."""
    pixels = image.tobytes()
    tags = [(259, 4, 1), (262, 4, 2), (273, 4, 8), (277, 4, 3), (278, 4, image.height)]
    tags += [(279, 4, len(pixels)), (305, 2, 0), (305, 2, 0)]
    return tiff(image.size, tags, pixels, order)


def cut(kind: str) -> bytes:
    """The first half of an image's file."""
    content = saved(draw(4)[0].resize((960, 720)), kind)
    return content[: len(content) // 2]


COMMENTS = "comments of more than 4,096 blocks"
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "text.jpg": (lambda: b"text with the name of an image\n", "not an image"),
    "empty.png": (lambda: b"", "empty"),
    "bomb.png": (lambda: png_header(30000, 30000), "pixels allowed"),
    "large.png": (lambda: png_header(11000, 11000), "more than the 100 million"),
    "progressive.jpg": (lambda: progressive(13_300), "more than the 100 million"),
    "scans.jpg": (lambda: repeated_scans(2000, 1200), "more than 100 scans"),
    "baseline.jpg": (lambda: repeated_scans(2000, 1200, False), "more than 100 scans"),
    "exif.png": (
        lambda: saved(Image.new("L", (9, 9)), "PNG", exif=b"Exif\0\0II*\0" + bytes(2**21)),
        "more than 1 MB of EXIF",
    ),
    "comment.gif": (lambda: commented(2**21), COMMENTS),
    "short.gif": (lambda: commented(0)[:-1] + b"!\xfe" + b"\x01 " * 5000 + b"\0;", COMMENTS),
    "loop.gif": (looped, COMMENTS),
    "tiles.tif": (lambda: tiled(40_000), "tiles of 40000 x 40000 pixels"),
    "repeated.tif": (lambda: tiled(40_000, 16), "repeats or hides tags"),
    "hidden.tif": (lambda: tiled(8, kind=17), "repeats or hides tags"),
    "cut.jpg": (lambda: cut("JPEG"), "damaged"),
    "cut.png": (lambda: cut("PNG"), "damaged"),
    "noise.webp": (lambda: b"RIFF\x10\x00\x00\x00WEBPVP8 " + bytes(range(40)), "damaged"),
    "photo.heic": (
        lambda: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
        "convert it to JPEG",
    ),
}


def write_usable(path: Path) -> None:
    """Writes a file of `USABLE`."""
    register_heif_opener()
    image, options = draw(4)[0], dict[str, Any]()
    match path.stem:
        case "cmyk":
            image = image.convert("CMYK")
        case "grey16":
            ramp = np.linspace(0, 65535, 64 * 48).reshape(48, 64).astype(np.uint16)
            image = Image.fromarray(ramp)
        case "palette":
            image, options = image.quantize(8), {"transparency": 0}
        case "animated":
            options = {"save_all": True, "append_images": [draw(5)[0]], "duration": 80}
        case "rotated":  # the camera was turned: displayed rotated by 90 degrees
            options["exif"] = Image.Exif()
            options["exif"][274] = 6
        case "alpha":
            image.putalpha(90)
        case "dot" | "wide":
            image = image.resize((1, 1) if path.stem == "dot" else (30000, 2))
        case "mislabelled":
            options = {"format": "JPEG"}
    image.save(path, **options)


@pytest.mark.parametrize("name", USABLE)
def test_usable_images(tmp_path: Path, name: str) -> None:
    write_usable(tmp_path / name)
    image = open_image(tmp_path / name)
    assert image.mode == "RGB"
    assert max(image.size) <= 2048
    if name not in ("alpha.png", "dot.png", "grey16.png", "palette.gif", "wide.png"):
        upright = draw(4)[0].rotate(-90 if name == "rotated.jpg" else 0, expand=True)
        assert np.abs(np.asarray(image, int) - np.asarray(upright, int)).mean() < 6


@pytest.mark.parametrize("name", [*REFUSED, "gone.png"])
def test_refused_images(tmp_path: Path, name: str) -> None:
    path, (content, why) = tmp_path / name, REFUSED.get(name, (None, "was not found"))
    if content is not None:
        path.write_bytes(content())
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
        path.write_bytes(stripped(image, ">" if kind == "big-endian" else "<"))
    assert open_image(path).tobytes() == image.tobytes()


def test_blocks_of_a_gif_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "a.gif", commented(0)
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
            patch.setattr(images, "_BAND_PIXELS", 4000)
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
