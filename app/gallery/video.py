"""Reads frames of clips; PyAV decodes videos in a separate process.

A clip is a video or an animated image. Each of its chosen frames is an image of the collection: the
frame shown in the middle of each second (`video_decoder.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, BinaryIO

from PIL import Image

from polyview.app.gallery.images import ImageError, decode, decode_frame
from polyview.app.gallery.scan import Collection, CollectionImage
from polyview.app.gallery.video_decoder import HEADER, MOST, Moment

DECODER = Path(__file__).with_name("video_decoder.py")
MEMORY = 1_500 * 2**20  # bytes of address space of the decoder; enforced on Linux only
SECONDS = 900.0  # for one clip, also on a busy machine
_LONGEST_SIDE = 8192  # pixels of a frame from the decoder
_TURNS = {
    1: Image.Transpose.ROTATE_90,
    2: Image.Transpose.ROTATE_180,
    3: Image.Transpose.ROTATE_270,
}
_decoders = threading.Semaphore(2)


class Clips(dict[int, tuple[Moment, ...]]):
    """The moments of clip frames by clip id; see `Collection.frame`.

    Args:
        collection: the collection of the clips.
        together: number of frames that the pack reads as one set.
    """

    def __init__(self, collection: Collection, together: int = 1) -> None:
        super().__init__()
        self._files, self._together = len(collection.images), together

    def rows(self, file_id: int) -> list[int]:
        """The ids of a file in galleries: those of the first frames of its windows."""
        runs = windows(len(self.get(file_id, ())), self._together)
        return [file_id + run.start * self._files for run in runs] or [file_id]

    def read_with(self, image_id: int) -> list[int]:
        """The ids of the images in the same set as an image, in time order."""
        place, file_id = divmod(image_id, self._files)
        for window in windows(len(self.get(file_id, ())), self._together):
            if place in window:
                return [file_id + i * self._files for i in window]
        return [image_id]


def windows(count: int, together: int) -> list[range]:
    """Splits frames into windows of at most `together` frames and nearly equal length.

    >>> windows(20, 16), windows(2, 1)
    ([range(0, 10), range(10, 20)], [range(0, 1), range(1, 2)])
    """
    parts = -(-count // together)
    return [range(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def open_frame(image: CollectionImage) -> Image.Image:
    """Decodes an image; for a clip its frame, or the first one if none is given.

    Raises:
        ImageError: it cannot be decoded.
    """
    with image.open() as file:
        if image.is_video:
            seconds = 0.0 if image.moment is None else image.moment.seconds
            with closing(read_video(file, image.file, 1, seconds)) as frames:
                return next(frames)[1]
        if image.moment is None:
            return decode(file, image.file)
        return decode_frame(file, image.file, image.moment)


def read_video(
    file: BinaryIO, name: str, together: int = 1, seconds: float | None = None
) -> Generator[tuple[Moment, Image.Image]]:
    """Yields the frames that represent a video; with `seconds`, the frame shown then.

    See `app.gallery.images.read_frames`.
    """
    file.seek(0)
    kind = "matroska" if file.read(4) == b"\x1aE\xdf\xa3" else "mov"
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    command = [sys.executable, "-I", str(DECODER), kind, str(MEMORY), str(together)]
    command += [] if seconds is None else [repr(seconds)]
    pipe = subprocess.PIPE
    with _decoders:
        process = subprocess.Popen(command, stdin=file, stdout=pipe, stderr=subprocess.DEVNULL)
        watch = threading.Timer(SECONDS, process.kill)
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
    """Reads frames from the decoder's output."""
    for _ in range(MOST + 1):
        head = pipe.read(HEADER.size)
        if len(head) < HEADER.size:
            break
        seconds, number, width, height, turns = HEADER.unpack(head)
        if not width:
            if height:
                raise ImageError(f"{name} {pipe.read(height).decode()}")
            return
        pixels = pipe.read(3 * width * height) if max(width, height) <= _LONGEST_SIDE else b""
        if len(pixels) < 3 * width * height:
            break
        image = Image.frombytes("RGB", (width, height), pixels)
        yield Moment(seconds, number), image.transpose(_TURNS[turns]) if turns else image
    raise ImageError(
        f"{name} cannot be decoded: its decoder ended, or took too much time or memory; "
        "save it again as MP4 with H.264, or make it shorter"
    )
