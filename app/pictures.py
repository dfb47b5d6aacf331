"""The one way the app opens a picture, whether it was uploaded or lies in somebody's folder.

A picture from outside may be anything: a renamed text file, half a JPEG, a "bomb" of few bytes that
unpacks to gigabytes. The header is read first and refuses what is too large; only then are pixels
decoded, and every failure becomes one sentence.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import tempfile
import threading
from contextlib import nullcontext
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import PIL
from PIL import ExifTags, Image, UnidentifiedImageError

from models.preprocess import flat_rgb, is_deep, to_rgb

_RULES = 1  # counts up when this file refuses others than before
MAX_PIXELS = 100_000_000  # decoded; Pillow holds at most 4 bytes for each
# Formats of photographs and of drawings; Pillow knows more, and runs other programs for some.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "HEIF")
# their decoders hold several copies
_FEWER_PIXELS = dict.fromkeys(("WEBP", "AVIF", "HEIF"), 40_000_000)
_LARGE = 25_000_000  # pixels; such pictures are decoded one at a time
_one_at_a_time = threading.Lock()
_BAND = 4_000_000  # pixels converted at once
WORKING_SIDE = 1024  # no encoder of ours sees more, so larger JPEGs are decoded at a fraction
THUMBNAIL_SIDE = 320
_WEB_FORMATS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}


class PictureError(ValueError):
    """A file cannot be used as a picture; the message is a sentence that says why."""


class NotNowError(PictureError):
    """A file cannot be used now, which may be otherwise although its contents are the same."""


def open_picture(path: Path, name: str | None = None) -> Image.Image:
    """Opens, checks and decodes one picture.

    Args:
        path: the file.
        name: what to call it in messages; by default the file's own name.

    Returns:
        An upright RGB picture whose longer side is at most 2,048 pixels.

    Raises:
        PictureError: it is missing, empty, too large, damaged or no picture at all.
    """
    name = name or path.name
    image = _open_header(path, name)
    image.draft(None, (WORKING_SIDE, WORKING_SIDE))  # only JPEG knows how; others ignore it
    _check_size(image, name)
    large = image.width * image.height > _LARGE
    try:
        with image, _one_at_a_time if large else nullcontext():
            rgb = to_rgb(_shrunk(image))
    except MemoryError as error:
        raise NotNowError(f"{name} needs more memory than there is; make it smaller") from error
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise PictureError(f"{name} is damaged and cannot be decoded ({reason(error)})") from error
    rgb.thumbnail((2 * WORKING_SIDE, 2 * WORKING_SIDE))
    return rgb


def make_thumbnail(path: Path, folder: Path, name: str) -> Path:
    """A small copy of a picture, made once.

    Args:
        path: the picture.
        folder: where thumbnails are kept.
        name: the thumbnail's file name without suffix.

    Returns:
        The thumbnail's file. A picture that is small and of a web format is copied as it is.

    Raises:
        PictureError: the picture cannot be opened.
        OSError: the folder cannot be written.
    """
    for suffix in _WEB_FORMATS.values():
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    folder.mkdir(parents=True, exist_ok=True)
    with _open_header(path, path.name) as header:
        suffix = _WEB_FORMATS.get(header.format or "", "")
        small = max(header.size) <= THUMBNAIL_SIDE and not getattr(header, "is_animated", False)
    handle, partial = tempfile.mkstemp(dir=folder, suffix=".partial")
    os.close(handle)
    try:
        if suffix and small:
            shutil.copyfile(path, partial)
        else:
            suffix = ".webp"
            picture = open_picture(path)
            picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
            picture.save(partial, "WEBP", quality=82)
        return Path(partial).replace(folder / f"{name}{suffix}")
    finally:
        Path(partial).unlink(missing_ok=True)


def open_mask(path: Path) -> np.ndarray:
    """Opens a picture of numbers, one for each pixel: (H, W) of whole numbers.

    Raises:
        PictureError: it cannot be opened, or holds colours.
    """
    image = _open_header(path, path.name)
    _check_size(image, path.name)
    try:
        with image:
            values = np.asarray(image)
    except Exception as error:  # see open_picture
        raise PictureError(f"{path.name} is damaged ({reason(error)})") from error
    if values.ndim != 2 or values.dtype.kind not in "bu":
        raise PictureError(f"{path.name} holds {image.mode} pixels instead of whole numbers")
    return values


def _check_size(image: Image.Image, name: str) -> None:
    most = _FEWER_PIXELS.get(image.format or "", MAX_PIXELS)
    if image.width * image.height > most:
        raise PictureError(
            f"{name} has {image.width} x {image.height} pixels, more than the {most // 10**6} "
            f"million allowed{f' of {image.format}' if most < MAX_PIXELS else ''}; make it smaller"
        )


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


def _open_header(path: Path, name: str) -> Image.Image:
    """Reads a picture's header; no pixel is decoded."""
    if not path.is_file():
        raise NotNowError(f"{name} is not there any more")
    if path.stat().st_size == 0:
        raise PictureError(f"{name} is empty (0 bytes)")
    try:
        return Image.open(path, formats=_formats())
    except Image.DecompressionBombError as error:
        raise PictureError(
            f"{name} has far more than the {MAX_PIXELS // 10**6} million pixels allowed; "
            "make it smaller"
        ) from error
    except UnidentifiedImageError as error:
        heic = path.suffix.lower() in {".heic", ".heif"}
        hint = "; convert it to JPEG first, or install pillow-heif" if heic else ""
        raise PictureError(f"{name} is not a picture in a format that can be read{hint}") from error
    except Exception as error:  # a hostile header can make a format's parser raise anything
        raise PictureError(f"{name} cannot be opened ({reason(error)})") from error


@cache
def reader() -> str:
    """By what pictures are opened: where that is another one, a refused file is tried again."""
    heif = metadata.version("pillow_heif") if "HEIF" in _formats() else "none"
    return f"rules {_RULES}, Pillow {PIL.__version__}, pillow-heif {heif}"


@cache
def _formats() -> tuple[str, ...]:
    """Those of `_FORMATS` that this Pillow reads, HEIC with the package pillow-heif."""
    if importlib.util.find_spec("pillow_heif"):
        importlib.import_module("pillow_heif").register_heif_opener()
    Image.init()
    return tuple(kind for kind in _FORMATS if kind in Image.OPEN)


def reason(error: Exception) -> str:
    """An exception's first line, short enough for a sentence and without paths."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return type(error).__name__ if len(text) > 90 or "/" in text or "\\" in text else text
