"""Images of which nearly nothing is pixels: refused before they take memory or time."""

import io
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from app.gallery.image_files import ImageError
from app.gallery.images import open_image

_MOST_MEMORY = 100_000_000


def tags(count: int, size: int) -> bytes:
    """A directory of tags that all name the same bytes."""
    plain = [(256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    plain += [(273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, 8), (279, 4, 1, 64)]
    entries = [*plain, *((1000 + number, 7, size, 8) for number in range(count))]
    head = b"II*\0" + struct.pack("<LH", 8, len(entries))
    body = head + b"".join(struct.pack("<HHLL", *entry) for entry in entries) + bytes(4)
    return body + bytes(max(0, size + 8 - len(body)))


def numbers(tag: int, kind: int, count: int, turned: int = 1) -> bytes:
    """A directory in which one tag has many values of a type."""
    values = bytes([1, 0, 0, 0]) * (count * {1: 1, 3: 2, 4: 4, 5: 8}[kind] // 4)
    plain = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 274: turned, 277: 1, 278: 8, 279: 64}
    entries = {name: (3, 1, value) for name, value in plain.items()}
    entries[tag] = (kind, count, 14 + 12 * len(entries | {tag: 0}))
    head = b"II*\0" + struct.pack("<LH", 8, len(entries))
    listed = (struct.pack("<HHLL", name, *entries[name]) for name in sorted(entries))
    return head + b"".join(listed) + bytes(4) + values + bytes(64)


def saved(kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def png(between: bytes, before: bytes = b"IDAT") -> bytes:
    plain = saved("PNG")
    place = plain.index(before) - 4
    return plain[:place] + between + plain[place:]


def jpeg(between: bytes) -> bytes:
    plain = saved("JPEG")
    return plain[:2] + between + plain[2:]


def gif(between: bytes) -> bytes:
    plain = saved("GIF")
    place = 13 + (3 << (plain[10] & 7) + 1)
    return plain[:place] + between + plain[place:]


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("tif", lambda: tags(300, 1_000_000)),
        ("png", lambda: png(chunk(b"eXIf", tags(300, 1_000_000)))),
        ("webp", lambda: saved("WEBP", exif=tags(300, 1_000_000))),
        ("tif", lambda: numbers(273, 1, 1_000_000)),  # where strips are
        ("tif", lambda: numbers(324, 4, 400_000)),  # where tiles are
        ("tif", lambda: numbers(320, 3, 800_000)),  # a palette
        ("png", lambda: png(chunk(b"eXIf", numbers(40_000, 5, 400_000, turned=6)))),
        ("webp", lambda: saved("WEBP", exif=numbers(40_000, 5, 400_000, turned=6))),
        ("png", lambda: png(chunk(b"prVt", b"") * 20_000)),
        ("png", lambda: png(chunk(b"prVt", b"") * 20_000, b"IEND")),
        ("gif", lambda: gif(b"!\xfe" + (b"\xff" + b"x" * 255) * 20_000 + b"\0")),
        ("jpg", lambda: jpeg(b"\xff\xfe\0\2" * 20_000)),
    ],
)
def test_few_pixels_are_refused(tmp_path: Path, kind: str, make: Callable[[], bytes]) -> None:
    file = tmp_path / f"mine.{kind}"
    file.write_bytes(make())
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match="too much beside its pixels"):
            open_image(file)
        assert tracemalloc.get_traced_memory()[1] < _MOST_MEMORY
    finally:
        tracemalloc.stop()


def test_exif_of_a_jpeg_that_names_the_same_bytes_again_is_not_kept(tmp_path: Path) -> None:
    exif = tags(5000, 60_000)
    part = b"Exif\0\0" + exif[:65_000]
    file = tmp_path / "mine.jpg"
    file.write_bytes(jpeg(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part))
    tracemalloc.start()
    try:
        assert open_image(file).size == (8, 8)
        assert tracemalloc.get_traced_memory()[1] < _MOST_MEMORY
    finally:
        tracemalloc.stop()


def test_profiles_packed_in_a_png_are_not_unpacked(tmp_path: Path) -> None:
    profile = chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(1_000_000), 9))
    file = tmp_path / "mine.png"
    file.write_bytes(png(profile * 1000))
    started = time.process_time()
    assert open_image(file).size == (8, 8)
    assert time.process_time() - started < 1


def test_what_photographs_hold_is_read(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (8, 4), "red")
    for kind in ("jpg", "png", "webp", "tif"):
        file = tmp_path / f"mine.{kind}"
        image.save(file, exif=exif, icc_profile=bytes(500_000))
        assert open_image(file).size == (4, 8), kind
