"""Frames of animated images: GIF, WebP and PNG, decoded by Pillow.

How many frames there are, and how long each is shown, is read from the file's blocks first: nothing
is decoded of what is too much.
"""

import struct
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import BinaryIO

from PIL import Image

from app.gallery.image_files import ImageError
from app.gallery.images import WORKING_SIDE, decoding, open_header
from app.gallery.sampling import LOOKS, SIDE, Moment, choose, evenly, slots
from models.preprocess import flat_rgb

MOST_FRAMES = 10_000
MOST_PIXELS = 1_500_000_000  # of all frames together
MAX_PIXELS = 16_000_000  # of one
_PER_PIXEL = 32  # bytes that decoding takes
_MOST_BLOCKS = 4 * MOST_FRAMES  # of a file, beside those of pixels
_SHORTEST, _USUAL = 0.011, 0.1  # browsers show a frame of less than the first for the second
_PNG = b"\x89PNG\r\n\x1a\n"


def shown_for(file: BinaryIO, most: int = MOST_FRAMES + 1) -> list[float]:
    """Seconds that each frame of an animation is shown; of a still image, none.

    Args:
        file: of any kind.
        most: frames after which it looks no further.
    """
    file.seek(0)
    begin = file.read(12)
    if begin[:4] == b"GIF8":
        found = _of_gif(file)
    elif begin[:4] == b"RIFF" and begin[8:] == b"WEBP":
        found = _of_webp(file)
    elif begin[:8] == _PNG:
        found = _of_png(file)
    else:
        return []
    seconds: list[float] = []
    try:
        for one in found:
            seconds.append(one if one > _SHORTEST else _USUAL)
            if len(seconds) >= most:
                break
    except (struct.error, IndexError):  # it ends within a block: its decoder says so
        pass
    return seconds if len(seconds) > 1 else []


def frames(
    file: BinaryIO, name: str, number: int | None = None, together: int = 1
) -> Generator[tuple[Moment, Image.Image]]:
    """Upright RGB frames of an animation, in the order they are shown.

    Args:
        file: from `open_image_file`.
        name: what to call it in messages.
        number: of one frame; None for those that are chosen.
        together: how many frames are read as one set.

    Raises:
        ImageError: it cannot be used; the sentence says why.
    """
    seconds = shown_for(file)
    if len(seconds) > MOST_FRAMES:
        raise ImageError(f"{name} has more than {MOST_FRAMES:,} frames; save it as MP4, or cut it")
    file.seek(0)
    header, _ = open_header(file, name)
    width, height = header.size
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name} has frames of {width} x {height} pixels, more than the "
            f"{MAX_PIXELS // 10**6} million allowed in an animation; make it smaller"
        )
    if len(seconds) * width * height > MOST_PIXELS:
        raise ImageError(
            f"{name} has {len(seconds):,} frames of {width} x {height} pixels, more than "
            f"{MOST_PIXELS // 10**6:,} million in all; save it as MP4, or make it smaller"
        )
    file.seek(0)
    needed = _PER_PIXEL * width * height
    with decoding(needed, name), Image.open(file, formats=[header.format or ""]) as image:
        # a PNG may show another image to those that know no animations; it comes first
        still = [0.0] * getattr(image, "default_image", False)
        durations = still + seconds
        if number is None and together > 1:
            starts = accumulate(durations[:-1], initial=0.0)
            shown = [(Moment(start, place), place) for place, start in enumerate(starts)]
            for moment, place in evenly(shown[len(still) :], sum(durations), together):
                yield moment, _copy(image, place)
        elif number is None:
            yield from choose(_looked(image, durations), sum(durations))
        elif number < len(durations):
            yield Moment(sum(durations[:number]), number), _copy(image, number)


def _looked(
    image: Image.Image, durations: list[float]
) -> Iterator[tuple[float, bytes, tuple[Moment, Image.Image]]]:
    """What `choose` takes."""
    length = sum(durations)
    now, last, gap = 0.0, -length, length / slots(length) / LOOKS
    for number, seconds in enumerate(durations):
        if now - last >= gap:
            try:
                copy = _copy(image, number)
            except EOFError:
                return
            tiny = copy.resize((SIDE, SIDE), Image.Resampling.BOX)
            last = now
            yield now, tiny.tobytes(), (Moment(now, number), copy)
        now += seconds


def _copy(image: Image.Image, number: int) -> Image.Image:
    image.seek(number)
    copy = flat_rgb(image)
    copy.thumbnail((2 * WORKING_SIDE, 2 * WORKING_SIDE))
    copy.info = {}
    return copy


def _of_gif(file: BinaryIO) -> Iterator[float]:
    file.seek(10)
    flags = file.read(3)[0]
    file.seek(3 * 2 ** (flags % 8 + 1) if flags & 128 else 0, 1)
    delay = 0.0
    for _ in range(_MOST_BLOCKS):
        kind = file.read(1)
        if kind == b"!":
            label, rest = file.read(1), _sub_block(file)
            if label == b"\xf9" and len(rest) >= 3:
                delay = int.from_bytes(rest[1:3], "little") / 100
            if rest:
                _skip_blocks(file)
        elif kind == b",":
            flags = file.read(9)[8]
            file.seek(3 * 2 ** (flags % 8 + 1) if flags & 128 else 0, 1)
            file.read(1)
            _skip_blocks(file)
            yield delay
        else:
            return


def _sub_block(file: BinaryIO) -> bytes:
    return file.read(file.read(1)[0])


def _skip_blocks(file: BinaryIO) -> None:
    while size := file.read(1)[0]:
        file.seek(size, 1)


def _of_webp(file: BinaryIO) -> Iterator[float]:
    for _ in range(_MOST_BLOCKS):
        kind, size = struct.unpack("<4sI", file.read(8))
        start = file.tell()
        if kind in (b"VP8 ", b"VP8L"):  # not animated
            return
        if kind == b"ANMF":
            yield int.from_bytes(file.read(15)[12:15], "little") / 1000
        file.seek(start + size + size % 2)


def _of_png(file: BinaryIO) -> Iterator[float]:
    file.seek(len(_PNG))
    animated = False
    for _ in range(_MOST_BLOCKS):
        size, kind = struct.unpack(">I4s", file.read(8))
        start = file.tell()
        if kind == b"IEND" or (kind == b"IDAT" and not animated):
            return
        animated = animated or kind == b"acTL"
        if kind == b"fcTL":
            over, under = struct.unpack(">20x2H2x", file.read(26))
            yield over / (under or 100)
        file.seek(start + size + 4)
