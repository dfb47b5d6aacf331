"""The one way the app opens a picture, whether it was uploaded or lies in somebody's folder.

A picture from outside may be anything: a renamed text file, half a JPEG, a "bomb" of few bytes that
unpacks to gigabytes. The header is read first and refuses what is too large; only then are pixels
decoded, and every failure becomes one sentence.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from PIL import ExifTags, Image, ImageFile, JpegImagePlugin, TiffImagePlugin, UnidentifiedImageError

from app.gallery.image_files import ImageError, NotNowError, open_image_file, reason
from app.gallery.jpeg import Jpeg, JpegError, read_jpeg
from app.gallery.metadata import BoundedFile, bound
from models.preprocess import flat_rgb, is_deep, to_rgb

_RULES = 5  # counts up when others are refused than before, or other frames chosen of clips
MAX_PIXELS = 100_000_000  # of the file, not of the fraction of a JPEG that is decoded
MAX_STREAMED = 150_000_000  # of a JPEG of one scan, which is decoded row by row
# Formats of photographs and of drawings; Pillow knows more, and runs other programs for some.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "HEIF")
# their decoders hold several copies
_FEWER_PIXELS = dict.fromkeys(("WEBP", "AVIF", "HEIF"), 40_000_000)
_SLOWLY = 4_000_000  # pixels that are decoded by a loop in Python
_BAND = 4_000_000  # pixels converted at once
_PER_PIXEL = 6  # bytes that a decoder takes; measured, with room
_PER_COPIED_PIXEL = 16  # of those that hold several copies
_PER_CONVERTED_PIXEL = 8  # of plain colours, to RGB
_PER_FLATTENED_PIXEL = 32  # of 16 bits, or transparent
_PLAIN = frozenset({"RGB", "L", "P", "1", "CMYK", "YCbCr"})
SMALL_MEMORY = 512 * 2**20  # bytes of all decoders together that take little each
LARGE_MEMORY = 2**30  # of those that take much
_LARGE = 64 * 2**20  # bytes
_PATIENCE = 120.0  # seconds that a picture waits for the memory it needs
WORKING_SIDE = 1024  # no encoder of ours sees more, so larger JPEGs are decoded at a fraction


class Budget:
    """Memory that all decoders share; who comes first is served first.

    Args:
        total: bytes.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._left = total
        self._changed = threading.Condition()
        self._line: deque[object] = deque()

    @contextmanager
    def take(self, count: int, patience: float) -> Iterator[None]:
        """Holds bytes while a block runs.

        Args:
            count: bytes; more than the total counts as the total.
            patience: seconds to wait for them.

        Raises:
            TimeoutError: they did not become free in time.
        """
        count = min(count, self.total)
        self._wait(count, time.monotonic() + patience)
        try:
            yield
        finally:
            with self._changed:
                self._left += count
                self._changed.notify_all()

    def _wait(self, count: int, deadline: float) -> None:
        turn = object()
        with self._changed:
            self._line.append(turn)
            try:
                while self._line[0] is not turn or self._left < count:
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        raise TimeoutError
                self._left -= count
            finally:
                self._line.remove(turn)
                self._changed.notify_all()


_small_ones, _large_ones = Budget(SMALL_MEMORY), Budget(LARGE_MEMORY)


def open_image(path: Path, name: str | None = None, root: Path | None = None) -> Image.Image:
    """Opens, checks and decodes one picture.

    Args:
        path: the file.
        name: what to call it in messages; by default the file's own name.
        root: a resolved folder that links may not lead out of; None for anywhere.

    Returns:
        An upright RGB picture whose longer side is at most 2,048 pixels, without metadata.

    Raises:
        ImageError: it is missing, empty, too large, damaged or no picture at all.
    """
    name = name or path.name
    with open_image_file(path, name, root) as file:
        return decode(file, name)


def decode(file: BinaryIO, name: str) -> Image.Image:
    """As `open_image`, of a file that `open_image_file` opened."""
    image, needed = open_header(file, name)
    with image, decoding(needed, name):
        rgb = to_rgb(_shrunk(image))
        rgb.thumbnail((2 * WORKING_SIDE, 2 * WORKING_SIDE))
    rgb.info = {}  # nothing that is made of it says where it was taken
    return rgb


def open_mask(path: Path) -> np.ndarray:
    """Opens a picture of numbers, one for each pixel: (H, W) of whole numbers.

    Raises:
        ImageError: it cannot be opened, leads out of its folder, or holds colours.
    """
    with open_image_file(path, path.name, path.parent) as file:
        image, needed = open_header(file, path.name)
        with image, decoding(needed, path.name):
            values = np.asarray(image)
    if values.ndim != 2 or values.dtype.kind not in "bu":
        raise ImageError(f"{path.name} holds {image.mode} pixels instead of whole numbers")
    return values


@contextmanager
def decoding(needed: int, name: str) -> Iterator[None]:
    """Waits for memory, and turns what goes wrong while pixels are decoded into sentences.

    Args:
        needed: bytes.
        name: of the picture.
    """
    try:
        budget = _large_ones if needed >= _LARGE else _small_ones
        with budget.take(needed, _PATIENCE):
            yield
    except TimeoutError as error:
        raise NotNowError(
            f"{name} has waited for {_PATIENCE:.0f} s while other large pictures were opened; "
            "try again in a moment"
        ) from error
    except ImageError:
        raise
    except MemoryError as error:
        raise NotNowError(f"{name} needs more memory than there is; make it smaller") from error
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise ImageError(f"{name} is damaged and cannot be decoded ({reason(error)})") from error


def _full_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of what a decoder makes; a TIFF's tile may be larger than its picture."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return image.size
    tags = TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH
    tiles = [np.ravel(image.tag_v2.get(tag, 1)) for tag in tags]
    sides = [max(1, int(tile[0])) if len(tile) else 1 for tile in tiles]
    return -(-image.width // sides[0]) * sides[0], -(-image.height // sides[1]) * sides[1]


def _memory(image: Image.Image, jpeg: Jpeg | None) -> int:
    """Bytes that decoding takes at most, of the full size where the decoder holds that."""
    if image.format == "AVIF":  # whose frame may be larger than its header says: one at a time
        return LARGE_MEMORY
    each = _PER_COPIED_PIXEL if image.format in _FEWER_PIXELS else _PER_PIXEL
    if jpeg is not None:
        return jpeg.coefficients + 2 * _PER_PIXEL * image.width * image.height
    pixels = math.prod(_full_size(image))
    plain = image.mode in _PLAIN and "transparency" not in image.info
    converted = _PER_CONVERTED_PIXEL if plain else _PER_FLATTENED_PIXEL
    return each * pixels + converted * min(pixels, 2 * _BAND)


def _check_size(image: ImageFile.ImageFile, jpeg: Jpeg | None, name: str) -> None:
    width, height = _full_size(image) if jpeg is None else (jpeg.width, jpeg.height)
    most = _FEWER_PIXELS.get(image.format or "", MAX_PIXELS)
    kind = f" of {image.format}" if most < MAX_PIXELS else ""
    if jpeg is not None and jpeg.scans == 1 and not jpeg.coefficients:
        most = MAX_STREAMED
    elif _is_slow(image):
        most, kind = _SLOWLY, f" of this kind of {image.format}"
    if width * height > most:
        raise ImageError(
            f"{name} has {width} x {height} pixels, more than the {most // 10**6} million "
            f"allowed{kind}; make it smaller"
        )


def _is_slow(image: ImageFile.ImageFile) -> bool:
    """Whether it is decoded by a loop in Python."""
    return bool(image.tile) and image.tile[0][0] in Image.DECODERS


def _shrunk(image: Image.Image) -> Image.Image:
    """A large picture at a fraction, in RGB; its orientation stays to be applied.

    Converted whole, a picture of 16 bits would take thirty times the memory of its pixels.
    """
    factor = max(image.size) // (2 * WORKING_SIDE)
    if image.width * image.height <= 2 * _BAND or factor < 2:
        return image
    image.seek(0)
    image.load()
    width, height = image.size
    most = float(image.getextrema()[1]) if is_deep(image) else None  # type: ignore[arg-type]
    small = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    rows = max(1, _BAND // (width * factor)) * factor
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        small.paste(flat_rgb(band, most).reduce(factor), (0, top // factor))
    small.getexif()[ExifTags.Base.Orientation] = image.getexif().get(ExifTags.Base.Orientation, 1)
    return small


def open_header(file: BinaryIO, name: str) -> tuple[ImageFile.ImageFile, int]:
    """Reads a picture's header and checks its full size; no pixel is decoded.

    Returns:
        The picture, of a large JPEG a fraction of it, and how many bytes decoding takes.
    """
    try:
        bounded = BoundedFile(file)
        image = Image.open(bounded, formats=_formats())
        jpeg = read_jpeg(file) if isinstance(image, JpegImagePlugin.JpegImageFile) else None
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"{name} has far more than the {MAX_PIXELS // 10**6} million pixels allowed; "
            "make it smaller"
        ) from error
    except UnidentifiedImageError as error:
        heic = Path(file.name).suffix.lower() in {".heic", ".heif"}
        hint = "; convert it to JPEG first, or install pillow-heif" if heic else ""
        raise ImageError(f"{name} is not a picture in a format that can be read{hint}") from error
    except JpegError as error:
        raise ImageError(f"{name} {error}") from error
    except Exception as error:  # a hostile header can make a format's parser raise anything
        raise ImageError(f"{name} cannot be opened ({reason(error)})") from error
    _check_size(image, jpeg, name)
    bounded.header_is_read(_is_slow(image))
    if jpeg is not None:
        try:
            jpeg.check()
        except JpegError as error:
            raise ImageError(f"{name} {error}") from error
        image.draft(None, (WORKING_SIDE, WORKING_SIDE))
    return image, _memory(image, jpeg)


@cache
def reader() -> str:
    """By what pictures are opened: where that is another one, a refused file is tried again."""
    heif = metadata.version("pillow_heif") if "HEIF" in _formats() else "none"
    others = f"pillow-heif {heif}, PyAV {metadata.version('av')}"
    return f"rules {_RULES}, Pillow {PIL.__version__}, {others}"


@cache
def _formats() -> tuple[str, ...]:
    """Those of `_FORMATS` that this Pillow reads, HEIC with the package pillow-heif."""
    if importlib.util.find_spec("pillow_heif"):
        importlib.import_module("pillow_heif").register_heif_opener()
    Image.init()
    bound()
    return tuple(kind for kind in _FORMATS if kind in Image.OPEN)
