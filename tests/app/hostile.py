"""Files that users have, and files that attack the decoders."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pillow_heif import register_heif_opener

from tests.app.conftest import draw, saved

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
    "exif.png": (
        lambda: saved(Image.new("L", (9, 9)), "PNG", exif=b"Exif\0\0II*\0" + bytes(2**21)),
        "more than 1 MB of EXIF",
    ),
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
    draft, outer = folder / "draft", folder / "outer"
    draft.mkdir()
    draw(5)[0].save(draft / "deep.png")
    for _ in range(depth - 1):
        outer.mkdir()
        draft.rename(outer / name)
        outer.rename(draft)
    draft.rename(folder / name)


def cut(kind: str) -> bytes:
    """The first half of an image's file."""
    content = saved(draw(4)[0].resize((960, 720)), kind)
    return content[: len(content) // 2]


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


def jpeg(side: int, is_progressive: bool = True) -> bytes:
    """A grey JPEG."""
    return saved(Image.new("L", (side, side), 128), "JPEG", progressive=is_progressive)


def commented(size: int) -> bytes:
    """A GIF of one pixel with a comment of `size` bytes."""
    return saved(Image.new("P", (1, 1)), "GIF", comment=bytes(size))


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
    """A PNG of one pixel whose header states another size."""
    content = bytearray(saved(Image.new("RGB", (1, 1)), "PNG"))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)
