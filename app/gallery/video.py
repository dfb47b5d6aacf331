"""Frames of clips: videos, decoded by PyAV in a process that may fail, and animated images.

A clip is one file, and an image of the collection for each frame that was chosen of it: the one on
the screen in the middle of each second (`app/gallery/video_decoder.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import IO, BinaryIO

from PIL import Image

from polyview.app.gallery.images import ImageError, NotNowError, decoding, open_header, working_copy
from polyview.app.gallery.images import decode as decode_image
from polyview.app.gallery.scan import VIDEOS, Collection, CollectionImage
from polyview.app.gallery.video_decoder import HEADER, MOST, Moment, sample
from polyview.models.preprocess import flat_rgb

DECODER = Path(__file__).with_name("video_decoder.py")
MEMORY = 1_500 * 2**20  # bytes of addresses that the decoder may have; enforced on Linux alone
SECONDS = 900.0  # for one clip, however busy the machine is
FRAMES, ALL_PIXELS, FRAME_PIXELS = 10_000, 1_500_000_000, 16_000_000  # of an animation
_ANIMATED = frozenset({"GIF", "WEBP", "PNG"})
_SHORTEST, _USUAL = 0.011, 0.1  # seconds; browsers show a frame of the first or less for the second
_LONGEST_SIDE = 8192  # pixels of a frame that the decoder may hand on
_TURNS = {
    1: Image.Transpose.ROTATE_90,
    2: Image.Transpose.ROTATE_180,
    3: Image.Transpose.ROTATE_270,
}
_decoders = threading.Semaphore(2)

Frames = Generator[tuple[Moment | None, Image.Image]]


class Clips(dict[int, tuple[Moment, ...]]):
    """The moments of clips' frames by the clips' ids; see `Collection.frame`.

    Args:
        collection: whose clips they are.
        together: how many frames the pack reads as one set; 1 for each by itself.
    """

    def __init__(self, collection: Collection, together: int = 1) -> None:
        super().__init__()
        self._files, self._together = len(collection.images), together

    def rows(self, file_id: int) -> list[int]:
        """The ids that stand for a file in galleries: of the first frames of its windows."""
        runs = windows(len(self.get(file_id, ())), self._together)
        return [file_id + run.start * self._files for run in runs] or [file_id]

    def read_with(self, image_id: int) -> list[int]:
        """The ids of the images that are read as one set with an image, in order of time."""
        place, file_id = divmod(image_id, self._files)
        for window in windows(len(self.get(file_id, ())), self._together):
            if place in window:
                return [file_id + i * self._files for i in window]
        return [image_id]


def windows(count: int, together: int) -> list[range]:
    """Cuts frames into runs of at most `together` that are about as long as each other.

    >>> windows(20, 16), windows(2, 1)
    ([range(0, 10), range(10, 20)], [range(0, 1), range(1, 2)])
    """
    parts = -(-count // together)
    return [range(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def read_frames(file: BinaryIO, name: str, together: int = 1) -> Frames:
    """A still image with None; or the frames by which a clip is found, always the same.

    Args:
        file: an open file.
        name: what messages call it.
        together: how many frames are read as one set.

    Yields:
        When a frame is on the screen, and the frame: upright, RGB, at most 2,048 pixels a side.
        For sets, a frame that fills several slots comes several times.

    Raises:
        ImageError: it cannot be used; the sentence says why.
    """
    if is_video(name):
        yield from _video(file, name, together)
        return
    with open_header(file, name) as image:
        if is_animated(image):
            yield from _animation(image, name, together)
        else:
            yield None, decode_image(file, name)


def open_frame(image: CollectionImage) -> Image.Image:
    """An image of a collection, decoded: of a clip its frame, the first where it is not known.

    Raises:
        ImageError: it cannot be decoded; the sentence says why.
    """
    moment = image.moment or Moment(0.0, 0)
    with image.open() as file:
        if image.is_video:
            with closing(_video(file, image.file, 1, moment.seconds)) as frames:
                return next(frames)[1]
        if image.moment is None:
            return decode_image(file, image.file)
        with open_header(file, image.file) as animation, decoding(animation, image.file):
            try:
                animation.seek(moment.frame)
            except EOFError:
                raise NotNowError(
                    f"{image.file} has no frame at {moment.seconds:.1f} s any more; start again"
                ) from None
            return working_copy(flat_rgb(animation))


def is_video(name: str) -> bool:
    """Whether a file has the name of a video."""
    return os.path.splitext(name)[1].lower() in VIDEOS  # noqa: PTH122


def is_animated(image: Image.Image) -> bool:
    """Whether an image of an open header has several frames."""
    return image.format in _ANIMATED and bool(getattr(image, "is_animated", False))


def _animation(image: Image.Image, name: str, together: int) -> Frames:
    pixels = image.width * image.height
    if pixels > FRAME_PIXELS:
        raise ImageError(
            f"{name} has frames of {image.width} x {image.height} pixels, more than the "
            f"{FRAME_PIXELS // 10**6} million allowed in an animation; make it smaller"
        )
    # a PNG may show another image to those that know no animations; it comes first
    still = int(bool(getattr(image, "default_image", False)))
    durations: list[float] = []
    with decoding(image, name):
        for number in range(FRAMES + 1):
            try:
                image.seek(number)
                image.load()
            except EOFError:
                break
            seconds = float(image.info.get("duration", 0)) / 1000
            durations.append(0.0 if number < still else seconds if seconds > _SHORTEST else _USUAL)
            if number == FRAMES or (number + 1) * pixels > ALL_PIXELS:
                raise ImageError(
                    f"{name} has more than {FRAMES:,} frames, or {ALL_PIXELS // 10**6:,} million "
                    "pixels in all; save it as MP4, or make it smaller"
                )
        starts = accumulate(durations[:-1], initial=0.0)
        moments = [(Moment(start, number), number) for number, start in enumerate(starts)]
        for moment, number in sample(moments[still:], sum(durations), together):
            image.seek(number)
            yield moment, working_copy(flat_rgb(image))


def _video(file: BinaryIO, name: str, together: int, seconds: float | None = None) -> Frames:
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
    """The frames that the decoder writes."""
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
