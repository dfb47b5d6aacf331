"""Files that users have, and files that attack the decoders."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pillow_heif import register_heif_opener

from tests.app.conftest import draw

USABLE = (
    "cmyk.jpg", "grey16.png", "palette.gif", "animated.gif", "rotated.jpg", "alpha.png",
    "dot.png", "wide.png", "mislabelled.png", "bitmap.bmp", "camera.avif", "phone.heif",
    "plain.ppm", "scan.tiff", "web.webp",
)  # fmt: skip
COMMENTS = "comments of more than 4,096 blocks"
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "text.jpg": (lambda: b"text with the name of an image\n", "not an image"),
    "empty.png": (lambda: b"", "empty"),
    "bomb.png": (lambda: png_header(30000, 30000), "pixels allowed"),
    "large.png": (lambda: png_header(11000, 11000), "more than the 100 million"),
    "progressive.jpg": (lambda: progressive(13_300), "more than the 100 million"),
    "scans.jpg": (lambda: repeated_scans(2000, 1200), "more than 100 scans"),
    "baseline.jpg": (lambda: repeated_scans(2000, 1200, False), "more than 100 scans"),
    "exif.png": (lambda: large_exif(), "more than 1 MB of EXIF"),
    "comment.gif": (lambda: commented(2**21), COMMENTS),
    "short.gif": (lambda: commented(0)[:-1] + b"!\xfe" + b"\x01 " * 5000 + b"\0;", COMMENTS),
    "loop.gif": (lambda: looped(), COMMENTS),
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


def write(folder: Path, name: str) -> Path:
    """Writes a file of `USABLE` or `REFUSED`."""
    path, image = folder / name, draw(4)[0]
    if name in REFUSED:
        path.write_bytes(REFUSED[name][0]())
        return path
    register_heif_opener()
    options: dict[str, Any] = {}
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
    return path


def set_traps(folder: Path) -> None:
    """Fills a folder with links, pipes and files that must not be read."""
    outside = folder.parent / "outside"
    outside.mkdir()
    draw(7)[0].save(outside / "secret.png")
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "links").symlink_to(outside)
    (folder / "zeros.jpg").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jpg")
    with (folder / "huge.jpg").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    write_below(folder, "d" * 200, 22)


def write_below(folder: Path, name: str, depth: int) -> None:
    """Writes an image in nested folders; its path may be longer than the system accepts."""
    parent = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=parent)
        child = os.open(name, os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = child
    with os.fdopen(os.open("deep.png", os.O_WRONLY | os.O_CREAT, dir_fd=parent), "wb") as file:
        draw(5)[0].save(file, "PNG")
    os.close(parent)


def cut(kind: str) -> bytes:
    """The first half of an image's file."""
    file = io.BytesIO()
    draw(4)[0].resize((960, 720)).save(file, kind)
    return file.getvalue()[: file.tell() // 2]


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


def large_exif() -> bytes:
    """A PNG with 2 MB of EXIF."""
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "PNG", exif=b"Exif\0\0" + b"II*\0" + bytes(2**21))
    return file.getvalue()


def jpeg(side: int, is_progressive: bool = True) -> bytes:
    """A grey JPEG."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=is_progressive)
    return file.getvalue()


def commented(size: int) -> bytes:
    """A GIF of one pixel with a comment of `size` bytes."""
    file = io.BytesIO()
    Image.new("P", (1, 1)).save(file, "GIF", comment=bytes(size))
    return file.getvalue()


def looped() -> bytes:
    """A GIF whose comment Pillow finds in image data, after a loop extension without a count."""
    start = b"GIF89a" + struct.pack("<2H3x", 1, 1) + b"!\xff\x0bNETSCAPE2.0\0"
    image = b"," + bytes(9) + b"\x08" + b"\x24" + bytes(33) + b"\0!\xfe"
    return start + image + (b"\xff" + bytes(255)) * 5000 + b"\0;"


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


def tiff(
    size: tuple[int, int], tags: list[tuple[int, int, int]], data: bytes, order: str = "<"
) -> bytes:
    """A TIFF of a width and height, with tags (number, type, value), and data from byte 8."""
    tags = [(256, 4, size[0]), (257, 4, size[1]), (258, 4, 8), *tags]
    entries = b"".join(struct.pack(f"{order}HHII", tag, kind, 1, v) for tag, kind, v in tags)
    start = struct.pack(f"{order}HI", 42, 8 + len(data)) + data
    mark = b"II" if order == "<" else b"MM"
    return mark + start + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)


def png_header(width: int, height: int) -> bytes:
    """The header of a PNG of any size, without the pixels."""
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for data in (b"IHDR" + header, b"IDAT" + zlib.compress(b"\0" * 64)):
        content += struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return content
