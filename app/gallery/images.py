"""Opens and decodes an image file within limits on bytes, pixels and memory.

A file may be a pipe, half a JPEG, or a few bytes that unpack to gigabytes. The header is read
first, to refuse large images before decoding. Every failure is an `ImageError` of one sentence.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import PIL
from PIL import ExifTags, Image, UnidentifiedImageError

from polyview.app.gallery.video import VIDEOS, Moment, VideoError, frame_times, read_video, sample
from polyview.models.files import DiskFullError
from polyview.models.preprocess import flat_rgb, is_deep, to_rgb

_IMAGES = ".jpg .jpeg .jfif .webp .avif .heic .heif .png .apng .gif .bmp .tif .tiff .ppm"
SUFFIXES = VIDEOS.union(_IMAGES.split())
MAX_BYTES = 512 * 2**20  # bytes of a file
MAX_PIXELS = 100_000_000  # pixels of an image, before a JPEG is reduced
WORKING_SIDE = 1024  # pixels; no encoder needs more, so larger JPEGs are decoded at reduced size
_RULES_VERSION = 10  # increase when the rules for refusing files or choosing frames change
# Pillow reads more formats, some by running other programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "HEIF")
_SLOW_PIXELS = 4_000_000  # limit for formats that Pillow decodes in Python
_LARGE_PIXELS = 16_000_000  # images with more pixels are decoded one at a time
_BAND_PIXELS = 4_000_000  # pixels converted at once
_MAX_SCANS = 100  # scans of a JPEG; encoders write at most 10, or 18 for CMYK
_MAX_EXIF = 2**20  # bytes; cameras write at most 64 KB
_MAX_BLOCKS = 2**22  # data blocks of a GIF; 512 MB of full blocks are half as many
_MAX_COMMENT_BLOCKS = 4096  # blocks of at most 255 bytes; Pillow joins them in quadratic time
# tags of a TIFF: width, length, bits per sample, samples per pixel, rows per strip, planar
# configuration, tile width, tile length
_LAYOUT_TAGS = frozenset({256, 257, 258, 277, 278, 284, 322, 323})
# the marker that starts a segment of a JPEG, or ends the JPEG
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
# open a file without waiting for the writer of a pipe, and without taking over a terminal
_FLAG_NAMES = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
_FLAGS = sum(getattr(os, name, 0) for name in _FLAG_NAMES)
# limits of an animation: number of frames, pixels of all frames, pixels of a frame
MAX_FRAMES, MAX_ALL_PIXELS, MAX_FRAME_PIXELS = 10_000, 1_500_000_000, 16_000_000
_ANIMATED = frozenset({"GIF", "WEBP", "PNG"})
# seconds: a frame of at most `_SHORT_DURATION` is shown for `_DEFAULT_DURATION`, as in browsers
_SHORT_DURATION, _DEFAULT_DURATION = 0.011, 0.1

Frames = Generator[tuple[Moment | None, Image.Image]]
_large_image_slot = threading.Semaphore(1)


class ImageError(ValueError):
    """A file cannot be used as an image; the message names the file and the reason."""


@dataclass(frozen=True)
class RefusedFile:
    """A file or folder that is left out, and the reason."""

    file: str
    reason: str


class Stamp(NamedTuple):
    """Size in bytes and times in nanoseconds of a file; an equal stamp means an unchanged file.

    Programs can set the modification time, but not the change time.
    """

    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: Path | BinaryIO) -> Stamp:
        """Reads the stamp of a file; raises OSError if the file does not exist."""
        status = file.stat() if isinstance(file, Path) else os.fstat(file.fileno())
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def suffix_of(file: str) -> str:
    """Returns a file name's suffix in lower case (".jpg"), ten times as fast as `PurePath`."""
    return os.path.splitext(file)[1].lower()  # noqa: PTH122


def open_file(path: Path, name: str, root: Path | None = None) -> BufferedReader:
    """Opens a regular file of at most `MAX_BYTES`, without waiting for the writer of a pipe.

    If `root`, a resolved folder, is given, links may lead only to files inside it. Raises
    ImageError if the file cannot be opened or is refused; `name` is its name in the message.
    """
    try:
        target = Path(os.path.realpath(path, strict=True))
        if root is not None and not target.is_relative_to(root):
            raise outside_link_error(name)
        file = open(target, "rb", opener=lambda p, flags: os.open(p, flags | _FLAGS))  # noqa: SIM115
        status = os.fstat(file.fileno())  # not of `target`, which may be replaced meanwhile
    except (OSError, ValueError) as error:
        raise to_image_error(name, error) from None
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a regular file; put the image itself in its place"
    elif not status.st_size:
        problem = "is empty (0 bytes); save it again"
    elif status.st_size > MAX_BYTES:
        size, limit = status.st_size / 2**20, MAX_BYTES // 2**20
        problem = f"has {size:,.0f} MB, more than the {limit} MB allowed; make it smaller"
    else:
        return file
    file.close()
    raise ImageError(f"{name} {problem}")


def outside_link_error(name: str) -> ImageError:
    """Returns the error for a link that leads out of the gallery's folder."""
    return ImageError(
        f"{name} is a link that leads out of the gallery's folder; put a copy in its place"
    )


def to_image_error(name: str, error: Exception) -> ImageError:
    """Converts an error of reading a file or folder to `ImageError`, unless it already is one."""
    if isinstance(error, ImageError):
        return error
    if isinstance(error, FileNotFoundError):
        return ImageError(f"{name} was not found; check its path")
    return ImageError(f"{name} cannot be read ({reason(error)}); check permissions and disk")


def reason(error: Exception) -> str:
    """Describes an error in a few words, without paths, to be quoted in a message."""
    if isinstance(error, DiskFullError):
        return "the disk is full"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return type(error).__name__ if len(line) > 90 or "/" in line or "\\" in line else line


def open_image(path: Path) -> Image.Image:
    """Opens, checks and decodes an image, or the first frame of a clip; see `decode`."""
    with open_file(path, path.name) as file:
        return decode(file, path.name)


def decode(file: BinaryIO, name: str, moment: Moment | None = None) -> Image.Image:
    """Decodes an image, or the frame of a clip at `moment` (the first frame if `moment` is None).

    Returns an upright RGB image without metadata, with sides of at most 2,048 pixels. Raises
    ImageError if it is too large, damaged or not an image; `name` is its name in the message.
    """
    with _convert_errors(name):
        if suffix_of(name) in VIDEOS:
            with closing(read_video(file, seconds=moment.seconds if moment else 0.0)) as frames:
                return next(frames)[1]
        with _open_image(file, name) as image:
            if moment is None:
                return _to_working_size(image)
            image.seek(moment.frame)
            return _shrink(flat_rgb(image))


def read_frames(file: BinaryIO, name: str, frames_per_set: int = 1) -> Frames:
    """Yields (None, image) for a still image, or (moment, frame) for each frame chosen from a clip.

    Images and errors are as in `decode`. `frames_per_set` is the number of frames that a pack reads
    as one set. If it is above 1, a frame may be chosen several times, see `sample`.
    """
    with _convert_errors(name):
        if suffix_of(name) in VIDEOS:
            yield from read_video(file, frames_per_set)
            return
        with _open_image(file, name) as image:
            if _is_animated(image):
                yield from _animation_frames(image, name, frames_per_set)
                return
            still = _to_working_size(image)
        yield None, still  # outside of the block, so that another large image can be decoded


@contextmanager
def _convert_errors(name: str) -> Iterator[None]:
    """Turns every error of a decoder into an `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except VideoError as error:
        raise ImageError(f"{name} {error}") from error
    except Image.DecompressionBombError as error:
        limit = f"{MAX_PIXELS // 10**6} million pixels allowed"
        raise ImageError(f"{name} has far more than the {limit}; make it smaller") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{name} is not an image in a known format; convert it to JPEG") from error
    except MemoryError as error:
        raise ImageError(f"{name} needs more memory than is available; make it smaller") from error
    except Exception as error:  # decoders raise any error for damaged files
        raise ImageError(f"{name} is damaged and cannot be decoded ({reason(error)})") from error


@contextmanager
def _open_image(file: BinaryIO, name: str) -> Iterator[Image.Image]:
    """Opens an image to be decoded inside the block; raises ImageError beyond the limits."""
    file.seek(0)
    gif_width, gif_height = _checked_gif_size(file, name) if file.read(3) == b"GIF" else (0, 0)
    file.seek(0)
    image = Image.open(file, formats=_formats())
    pixels = image.width * image.height
    is_slow = bool(image.tile) and image.tile[0][0] in Image.DECODERS  # decoders written in Python
    max_pixels = _SLOW_PIXELS if is_slow else MAX_PIXELS
    if pixels > max_pixels:
        condition = f" for this kind of {image.format}" if is_slow else ""
        raise ImageError(
            f"{name} has {image.width} x {image.height} pixels, more than the "
            f"{max_pixels // 10**6} million allowed{condition}; make it smaller"
        )
    # later frames of a GIF may be larger than its header says
    width, height = max(image.width, gif_width), max(image.height, gif_height)
    if width * height > MAX_FRAME_PIXELS and _is_animated(image):
        raise ImageError(
            f"{name} has frames of {width} x {height} pixels, more than the "
            f"{MAX_FRAME_PIXELS // 10**6} million allowed in an animation; make it smaller"
        )
    if image.format == "TIFF":
        pixels = max(pixels, _tile_pixels(image, file, name))  # a tile is decoded as a whole
    if image.format in ("JPEG", "MPO"):
        _check_scans(file, name)
    if len(image.info.get("exif") or b"") > _MAX_EXIF:
        raise ImageError(f"{name} has more than 1 MB of EXIF; save it without EXIF")
    # an AVIF may have more pixels than its header says; libavif's limit is 268 million
    is_large = pixels > _LARGE_PIXELS or image.format == "AVIF"
    with image, _large_image_slot if is_large else nullcontext():  # one large image at a time
        image.draft(None, (WORKING_SIDE, WORKING_SIDE))  # decodes a JPEG at reduced size
        yield image


def _tile_pixels(image: Any, file: BinaryIO, name: str) -> int:
    """Counts the pixels of a TIFF's tile (1 without tiles); raises ImageError beyond the limits."""
    file.seek(0)
    header = file.read(16)
    order = "<" if header[:1] == b"I" else ">"  # the byte order
    is_big = 43 in header[2:4]  # 43 is the version of a BigTIFF
    offset_format, count_format, entry_size = ("8xQ", "Q", 20) if is_big else ("4xL8x", "H", 12)
    file.seek(*struct.unpack(order + offset_format, header))
    [count] = struct.unpack(order + count_format, file.read(8 if is_big else 2))
    entries = [file.read(entry_size) for _ in range(min(count, 2**16))]
    tags = [struct.unpack(order + "H", data[:2])[0] for data in entries if len(data) == entry_size]
    layout_tags = [tag for tag in tags if tag in _LAYOUT_TAGS]
    # Pillow reads the last of repeated tags, and libtiff reads the first; Pillow ignores some types
    if len(set(layout_tags)) < len(layout_tags) or any(t not in image.tag_v2 for t in layout_tags):
        raise ImageError(f"{name} repeats or hides tags of its layout; save it again")
    width, height = (int(image.tag_v2.get(tag, 1)) for tag in (322, 323))  # of a tile
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name} has tiles of {width} x {height} pixels, more than the "
            f"{MAX_PIXELS // 10**6} million allowed; save it in smaller tiles"
        )
    return width * height


def _to_working_size(image: Image.Image) -> Image.Image:
    """Converts an image to upright RGB with sides of at most 2,048 pixels."""
    image.load()  # also turns a TIFF upright
    width, height = image.size
    factor = max(width, height) // (2 * WORKING_SIDE)
    if width * height <= 2 * _BAND_PIXELS or factor < 2:
        return _shrink(to_rgb(image))
    # in bands: converting all 16-bit pixels at once would take thirty times their memory
    white = float(image.getextrema()[1]) if is_deep(image) else None  # type: ignore[arg-type]
    small = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    band_height = max(1, _BAND_PIXELS // (width * factor)) * factor
    for top in range(0, height, band_height):
        band = image.crop((0, top, width, min(top + band_height, height)))
        small.paste(flat_rgb(band, white).reduce(factor), (0, top // factor))
    small.getexif()[ExifTags.Base.Orientation] = image.getexif().get(ExifTags.Base.Orientation, 1)
    return _shrink(to_rgb(small))


def _shrink(rgb: Image.Image) -> Image.Image:
    """Shrinks an RGB image to sides of at most 2,048 pixels; removes metadata such as location."""
    rgb.thumbnail((2 * WORKING_SIDE, 2 * WORKING_SIDE))
    rgb.info = {}
    return rgb


def _check_scans(file: BinaryIO, name: str) -> None:
    """Raises ImageError for a JPEG of too many scans; one megabyte can contain 100,000."""
    file.seek(0)
    content, scan_count, offset = file.read(), 0, 2
    while (marker := _MARKER.search(content, offset)) and marker[1] != b"\xd9":  # end of image
        scan_count += marker[1] == b"\xda"  # start of scan
        if scan_count > _MAX_SCANS:
            raise ImageError(f"{name} is a JPEG of more than {_MAX_SCANS} scans; save it again")
        offset = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")


def _skip_palette(content: bytearray, offset: int) -> int:
    """Skips a GIF's flags at `offset`, and the palette that they announce; returns the offset."""
    return offset + 1 + (6 << (content[offset] & 7) if content[offset] & 128 else 0)


def _checked_gif_size(file: BinaryIO, name: str) -> tuple[int, int]:
    """Returns the size of the area that a GIF's frames cover; raises ImageError beyond limits."""
    size = file.seek(0, os.SEEK_END)
    content = bytearray(size + 16)  # with zeros after the end of a file that is cut off
    file.seek(0)
    file.readinto(content)  # type: ignore[attr-defined]
    offset, is_first = _skip_palette(content, 10) + 2, True
    width, height, block_count, comment_block_count = 0, 0, 0, 0

    def skip_blocks(offset: int) -> tuple[int, int]:  # returns the next offset and block count
        count = 1  # counts the empty block at the end
        while offset < size and content[offset] and count <= _MAX_BLOCKS:
            offset, count = offset + content[offset] + 1, count + 1
        return offset + 1, count

    while offset < size and content[offset] != ord(";"):
        start, offset, count = offset, offset + 1, 1
        if content[start] == ord(","):  # a frame
            x, y, frame_width, frame_height = struct.unpack_from("<4H", content, start + 1)
            width, height = max(width, x + frame_width), max(height, y + frame_height)
            offset, count = skip_blocks(_skip_palette(content, start + 9) + 1)
            is_first = False
        elif content[start] == ord("!"):  # an extension
            offset, count = skip_blocks(start + 2)
            is_loop = content[start + 1] == 0xFF and content.startswith(b"NETSCAPE2.0", start + 3)
            if content[start + 1] == 0xFE:  # a comment
                comment_block_count += count
            elif count == 1 or (is_first and is_loop and count == 2):
                offset, count = skip_blocks(offset)  # Pillow also reads blocks after an empty one
        block_count += count
        if comment_block_count > _MAX_COMMENT_BLOCKS:
            raise ImageError(
                f"{name} has comments of more than {_MAX_COMMENT_BLOCKS:,} blocks; "
                "save it without comments"
            )
        if block_count > _MAX_BLOCKS:
            raise ImageError(f"{name} has more than {_MAX_BLOCKS:,} blocks of data; save it again")
    return width, height


def _is_animated(image: Image.Image) -> bool:
    return image.format in _ANIMATED and getattr(image, "is_animated", False)


def _animation_frames(image: Image.Image, name: str, frames_per_set: int) -> Frames:
    """Yields the frames that represent an animation; see `read_frames`."""
    # the first image of a PNG may be a fallback that is not part of the animation
    first_frame = int(bool(getattr(image, "default_image", False)))
    total_pixels, durations = 0, list[float]()
    for number in range(MAX_FRAMES + 1):
        try:
            image.seek(number)
        except EOFError:
            break
        image.load()
        total_pixels += image.width * image.height
        seconds = float(image.info.get("duration", 0)) / 1000
        seconds = seconds if seconds > _SHORT_DURATION else _DEFAULT_DURATION
        durations.append(0.0 if number < first_frame else seconds)
        if number == MAX_FRAMES or total_pixels > MAX_ALL_PIXELS:
            raise ImageError(
                f"{name} has more than {MAX_FRAMES:,} frames, or {MAX_ALL_PIXELS // 10**6:,} "
                "million pixels in all; save it as MP4, or make it smaller"
            )
    starts = accumulate(durations[:-1], initial=0.0)
    # `sample` takes pairs (moment, frame); the chosen frames are decoded below
    frames = [(Moment(start, number), None) for number, start in enumerate(starts)][first_frame:]
    for moment, _ in sample(frames, frame_times(sum(durations), frames_per_set), frames_per_set):
        image.seek(moment.frame)
        yield moment, _shrink(flat_rgb(image))


@cache
def decoder_versions() -> str:
    """Returns a text that changes with the decoders and the rules of this module; see `Store`."""
    heif, av = metadata.version("pillow_heif"), metadata.version("av")
    return f"rules {_RULES_VERSION}, Pillow {PIL.__version__}, pillow-heif {heif}, PyAV {av}"


@cache
def _formats() -> tuple[str, ...]:
    """Returns the formats of `_FORMATS` that the installed Pillow can read."""
    import pillow_heif  # imported only if images are opened

    pillow_heif.register_heif_opener()
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)
