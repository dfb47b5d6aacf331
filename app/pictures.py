"""The one way the app opens a picture, whether it was uploaded or lies in somebody's folder.

A picture from outside may be anything: a renamed text file, half a JPEG, a "bomb" of few bytes that
unpacks to gigabytes. The header is read first and refuses what is too large; only then are pixels
decoded, and every failure becomes one sentence.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from models.preprocess import to_rgb

MAX_PIXELS = 100_000_000  # decoded; a 16-bit RGBA picture of this size takes 800 MB
WORKING_SIDE = 1024  # no encoder of ours sees more, so larger JPEGs are decoded at a fraction
THUMBNAIL_SIDE = 320
_WEB_FORMATS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}


class PictureError(ValueError):
    """A file cannot be used as a picture; the message is a sentence that says why."""


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
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"{name} has {width} x {height} pixels, more than the {MAX_PIXELS // 10**6} million "
            "allowed; make it smaller"
        )
    try:
        with image:
            rgb = to_rgb(image)
    except MemoryError as error:
        raise PictureError(f"{name} needs more memory than there is; make it smaller") from error
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise PictureError(f"{name} is damaged and cannot be decoded ({_reason(error)})") from error
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


def _open_header(path: Path, name: str) -> Image.Image:
    """Reads a picture's header; no pixel is decoded."""
    if not path.is_file():
        raise PictureError(f"{name} is not there any more")
    if path.stat().st_size == 0:
        raise PictureError(f"{name} is empty (0 bytes)")
    try:
        return Image.open(path)
    except Image.DecompressionBombError as error:
        raise PictureError(
            f"{name} has far more than the {MAX_PIXELS // 10**6} million pixels allowed; "
            "make it smaller"
        ) from error
    except UnidentifiedImageError as error:
        hint = "; convert it to JPEG first" if path.suffix.lower() in {".heic", ".heif"} else ""
        raise PictureError(f"{name} is not a picture in a format that can be read{hint}") from error
    except Exception as error:  # a hostile header can make a format's parser raise anything
        raise PictureError(f"{name} cannot be opened ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    """An exception's first line, short enough for a sentence and without paths."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return type(error).__name__ if len(text) > 90 or "/" in text or "\\" in text else text
