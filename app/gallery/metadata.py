"""Bounds what an image holds beside its pixels, while Pillow reads it.

Pillow keeps and joins all of it, before anything of the image's size is known: two megabytes of
EXIF or TIFF tags that all name the same bytes take a hundred gigabytes, and four million empty
parts of a PNG, a GIF or a JPEG take minutes.
"""

from __future__ import annotations

import io
import math
from functools import wraps
from typing import IO, Any

from PIL import ImageFile, PngImagePlugin, TiffImagePlugin

MOST_READS = 4_000  # until a header is read, and of one directory of tags
MOST_BYTES = 16_000_000  # of a header, in parts; some formats read all of a file at once
MOST_NUMBERS = 150_000  # of a directory of tags: Pillow makes more than 200 bytes of each
_FRACTION = 10  # numbers that a fraction counts for, by the time it takes
_FRACTIONS = frozenset({5, 10})  # types of tags
_BYTES, _TEXT = frozenset({1, 7}), 2
_OPAQUE = 347  # from this tag on, bytes are not numbers: profiles, makers' notes, XMP
_PART = 256  # bytes of a file that give one read more once its header is read


class MetadataError(ValueError):
    """An image holds too much beside its pixels."""

    def __init__(self) -> None:
        super().__init__("too much beside its pixels; save it anew")


class BoundedFile:
    """A file of which little can be read before `header_is_read`, and in few parts.

    Args:
        file: the image.
        size: bytes of it that may be read in parts.

    Attributes:
        file: the image.
    """

    def __init__(self, file: IO[bytes], size: int = MOST_BYTES) -> None:
        self.file = file
        self._bytes: float = size
        self._reads: float = MOST_READS

    def __getattr__(self, name: str) -> Any:
        """Everything else is the file's own."""
        return getattr(self.file, name)

    def read(self, size: int = -1) -> bytes:
        """Reads a part.

        Raises:
            MetadataError: it was read in too many parts, or too much of it.
        """
        content = self.file.read(size)
        self._reads -= 1
        if size is not None and size >= 0:
            self._bytes -= len(content)
        if self._reads < 0 or self._bytes < 0:
            raise MetadataError
        return content

    def header_is_read(self, slowly: bool) -> None:
        """Lets the pixels be read, too.

        Args:
            slowly: they are decoded by a loop that reads byte by byte.
        """
        self._bytes = math.inf
        self._reads = math.inf if slowly else MOST_READS + _size(self.file) / _PART


def bound() -> None:
    """Has Pillow read no more of a directory of tags than there is, also of EXIF in any format.

    A directory of too many numbers is refused before anything is made of them.

    Colour profiles packed in a PNG, which nobody here uses, are passed over: there may be many.
    """
    directory: Any = TiffImagePlugin.ImageFileDirectory_v2
    load = directory.load
    if hasattr(load, "__wrapped__"):
        return

    @wraps(load)
    def bounded(tags: Any, file: Any) -> None:
        file = file.file if isinstance(file, BoundedFile) else file
        load(tags, BoundedFile(file, _size(file)))
        numbers = sum(_numbers(tag, tags.tagtype[tag], content) for tag, content in _raw(tags))
        if numbers > MOST_NUMBERS:
            raise MetadataError

    directory.load = bounded
    PngImagePlugin.PngStream.chunk_iCCP = _pass_over  # type: ignore[assignment,method-assign]


def _raw(tags: Any) -> list[tuple[int, bytes]]:
    """The tags of a directory of which nothing was made yet."""
    return list(tags._tagdata.items())


def _numbers(tag: int, kind: int, content: bytes) -> int:
    """How many numbers Pillow would make of a tag, by the time that takes."""
    if kind == _TEXT or (kind in _BYTES and tag >= _OPAQUE):
        return 0
    size = TiffImagePlugin.ImageFileDirectory_v2._load_dispatch[kind][0]
    return len(content) // size * (_FRACTION if kind in _FRACTIONS else 1)


def _pass_over(stream: Any, _: int, length: int) -> bytes:
    return ImageFile._safe_read(stream.fp, length)


def _size(file: IO[bytes]) -> int:
    here = file.tell()
    size = file.seek(0, io.SEEK_END)
    file.seek(here)
    return size
