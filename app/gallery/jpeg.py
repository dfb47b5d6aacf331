"""What a JPEG costs to decode, read from its markers before anything is decoded.

Most JPEGs are decoded row by row and cost next to nothing. One of several scans (progressive, or
one colour after the other) holds a number for every sample of the full size, whatever fraction of
it is wanted, and goes over all of them once for each scan: a megabyte can ask for a thousand scans.
"""

import math
import re
from dataclasses import dataclass
from typing import BinaryIO

MAX_SCANS = 32  # the encoders in use write 10, and 18 of CMYK
MAX_WORK = 2_000_000_000  # pixels times scans; takes 5 s
_MAX_MARKERS = 5000
_CHUNK = 2**16
# 00 follows a byte FF that belongs to the numbers, D0 to D7 restart them, FF fills.
_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")
_ALONE = frozenset({0x01, 0xD8})  # no length follows
_START_OF_SCAN, _END = 0xDA, 0xD9
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = frozenset({0xC0, 0xC1, 0xC9})


class JpegError(ValueError):
    """A JPEG is damaged or costs too much; the message goes on after the file's name."""


@dataclass(frozen=True)
class Jpeg:
    """What a JPEG says of itself.

    Attributes:
        width: in pixels.
        height: in pixels.
        scans: how often its samples are gone over.
        coefficients: bytes that all samples of its full size take; 0 where it has one scan.
    """

    width: int
    height: int
    scans: int
    coefficients: int

    @property
    def pixels(self) -> int:
        """Of the full size."""
        return self.width * self.height

    def check(self) -> None:
        """Refuses what takes too long.

        Raises:
            JpegError: it has too many scans.
        """
        most = min(MAX_SCANS, MAX_WORK // max(1, self.pixels))
        if self.scans > most:
            raise JpegError(
                f"is a JPEG of more than {most} scans, and takes too long to decode; save it anew"
            )


def read_jpeg(file: BinaryIO) -> Jpeg:
    """Reads the markers of a JPEG from its beginning; a file of too many scans not to its end.

    Raises:
        JpegError: there is no frame and no scan in it, or too many markers.
        OSError: it cannot be read.
    """
    file.seek(0)
    frame, kind, several, scans = b"", 0, False, 0
    for _ in range(_MAX_MARKERS):
        marker = _next_marker(file)
        if marker is None or marker == _END:
            break
        if marker in _ALONE:
            continue
        length = int.from_bytes(file.read(2), "big") - 2
        content = file.read(max(0, length))
        if marker in _FRAMES and not frame:
            frame, kind = content, marker
        elif marker == _START_OF_SCAN:
            if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
                break
            scans += 1
            if scans == 1:
                several = kind not in _SEQUENTIAL or content[:1] != frame[5:6]
            if not several or scans > MAX_SCANS:
                break
    else:
        raise JpegError(f"is a JPEG of more than {_MAX_MARKERS:,} parts; save it anew")
    if not scans:
        raise JpegError("is damaged and cannot be decoded (a JPEG without a scan)")
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    return Jpeg(width, height, scans, _coefficients(frame, width, height) if several else 0)


def _coefficients(frame: bytes, width: int, height: int) -> int:
    """Bytes of all samples: two for each, in blocks of 8 x 8."""
    parts = [frame[7 + 3 * part] for part in range(frame[5])]
    across = max(1, *(sampling >> 4 for sampling in parts), 1)
    down = max(1, *(sampling & 15 for sampling in parts), 1)
    return sum(
        128
        * math.ceil(width * (sampling >> 4) / (8 * across) + 1)
        * math.ceil(height * (sampling & 15) / (8 * down) + 1)
        for sampling in parts
    )


def _next_marker(file: BinaryIO) -> int | None:
    """Reads to the end of the next marker; None where there is none."""
    before = b""
    while chunk := file.read(_CHUNK):
        text = before + chunk
        if found := _MARKER.search(text):
            file.seek(found.end() - len(text), 1)
            return found[1][0]
        before = text[-1:]
    return None
