"""Files that people really have, and files made to do harm; each writes itself into a folder."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from tests.app.conftest import draw

USABLE = (
    "cmyk.jpg", "grey16.png", "palette.gif", "animated.gif", "rotated.jpg", "alpha.png",
    "dot.png", "wide.png", "mislabelled.png",
)  # fmt: skip
REFUSED = {
    "text.jpg": "not a picture",
    "empty.png": "empty",
    "bomb.png": "pixels allowed",
    "large.png": "more than the 100 million",
    "cut.jpg": "damaged",
    "cut.png": "damaged",
    "noise.webp": "cannot be opened",
    "photo.heic": "convert it to JPEG",
}


def write(folder: Path, name: str) -> Path:
    """Writes one of the files above."""
    path = folder / name
    picture, _ = draw(4)
    stem = path.stem
    if stem == "cmyk":
        picture.convert("CMYK").save(path)
    elif stem == "grey16":
        ramp = np.linspace(0, 65535, 64 * 48).reshape(48, 64).astype(np.uint16)
        Image.fromarray(ramp).save(path)
    elif stem == "palette":
        picture.quantize(8).save(path, transparency=0)
    elif stem == "animated":
        picture.save(path, save_all=True, append_images=[draw(5)[0]], duration=80)
    elif stem == "rotated":
        exif = Image.Exif()
        exif[274] = 6  # the camera was turned: to be shown rotated by 90 degrees
        picture.save(path, exif=exif)
    elif stem == "alpha":
        picture.putalpha(90)
        picture.save(path)
    elif stem == "dot":
        picture.resize((1, 1)).save(path)
    elif stem == "wide":
        picture.resize((30000, 2)).save(path)
    elif stem == "mislabelled":
        picture.save(path, "JPEG")
    else:
        path.write_bytes(_refused(name, picture, path))
    return path


def png_header(width: int, height: int) -> bytes:
    """A valid beginning of a PNG of any size, without the pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0" * 64))
    )


def _refused(name: str, picture: Image.Image, path: Path) -> bytes:
    if name.startswith("cut"):
        picture.resize((960, 720)).save(path)
        return path.read_bytes()[: path.stat().st_size // 2]
    return {
        "text.jpg": b"this is no picture, whatever its name says\n",
        "empty.png": b"",
        "bomb.png": png_header(30000, 30000),
        "large.png": png_header(11000, 11000),
        "noise.webp": b"RIFF\x10\x00\x00\x00WEBPVP8 " + bytes(range(40)),
        "photo.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
    }[name]


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
