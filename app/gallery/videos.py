"""Frames of videos: MP4, MOV, MKV and WebM, decoded by PyAV in a process that may fail.

See `app/gallery/video_process.py`, which is that process.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from PIL import Image

from app.gallery.image_files import ImageError
from app.gallery.images import decoding
from app.gallery.sampling import HEADER, MOST, Moment

HEADER_OF = {b"\x1aE\xdf\xa3": "matroska"}  # first bytes, to PyAV's name; others are taken for MP4
MEMORY = 1_500 * 2**20  # bytes of addresses that the process may have; Linux alone holds it to that
_TAKES = 256 * 2**20  # bytes that it counts for, of what all decoders share
_PATIENCE = 900.0  # seconds for one clip, however busy the machine is
_CHILD = Path(__file__).with_name("video_process.py")
_LARGEST = 8192  # pixels of a side that the process may hand on
_TURNS = {
    1: Image.Transpose.ROTATE_90,
    2: Image.Transpose.ROTATE_180,
    3: Image.Transpose.ROTATE_270,
}


def frames(
    file: BinaryIO, name: str, seconds: float | None = None, together: int = 1
) -> Generator[tuple[Moment, Image.Image]]:
    """Upright RGB frames of a video, at most 1,024 pixels long, in the order they are shown.

    Args:
        file: from `open_image_file`; it is not to be read meanwhile.
        name: what to call it in messages.
        seconds: of one frame; None for those that are chosen.
        together: how many frames are read as one set.

    Raises:
        ImageError: it cannot be used; the sentence says why.
    """
    file.seek(0)
    kind = HEADER_OF.get(file.read(4), "mov")
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    command = [sys.executable, "-I", str(_CHILD), kind, str(MEMORY), str(together)]
    if seconds is not None:
        command.append(repr(seconds))
    with decoding(_TAKES, name):
        process = subprocess.Popen(
            command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        watch = threading.Timer(_PATIENCE, process.kill)
        watch.daemon = True
        watch.start()
        try:
            assert process.stdout is not None
            yield from _received(process.stdout, name)
        finally:
            watch.cancel()
            process.kill()
            process.communicate()


def _received(pipe: IO[bytes], name: str) -> Iterator[tuple[Moment, Image.Image]]:
    for _ in range(MOST + 1):
        head = pipe.read(HEADER.size)
        if len(head) < HEADER.size:
            break
        seconds, number, width, height, turns = HEADER.unpack(head)
        if not width:
            if height:
                raise ImageError(f"{name} {pipe.read(height).decode()}")
            return
        pixels = pipe.read(3 * width * height) if max(width, height) <= _LARGEST else b""
        if not pixels or len(pixels) < 3 * width * height:
            break
        image = Image.frombytes("RGB", (width, height), pixels)
        if turns:
            image = image.transpose(_TURNS[turns])
        yield Moment(seconds, number), image
    raise ImageError(
        f"{name} cannot be decoded: it ended its decoder, or took too much time or memory; "
        "save it anew as MP4 with H.264, or make it shorter"
    )
