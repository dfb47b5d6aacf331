"""Which frames of a clip are looked at: one of each of its slots.

A clip is cut into slots of the same time, one for each second it lasts, at least `FEWEST` and at
most `MOST`. Of each slot one frame is taken: the one that differs most from the frame before it,
where that is a change of scene; else the one nearest to the slot's middle. So there is never more
than one frame of a slot in memory, and the same clip always gives the same frames.

Methods that read frames as a set were trained on frames at equal times. For them it is the frame
that is shown in the slot's midst, again where it is shown in the midst of several, and a short clip
has as many slots as the set has frames.

Only what the decoding process may import (`app/gallery/video_process.py`): Python's own alone.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

FEWEST, MOST = 8, 64  # slots of a clip
LOOKS = 8  # frames looked at in a slot, about
SIDE = 8  # of the tiny picture, in RGB, by which two frames are compared
HEADER = struct.Struct("<dIIII")  # before each frame that the decoding process writes
_CHANGE = 28.0  # of 255: the mean difference of tiny pictures from which a scene has changed

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Moment:
    """Where a frame is in its clip.

    Attributes:
        seconds: when it is shown, from the clip's beginning on.
        frame: its number, from 0; by the mean rate where not all frames before it were decoded.
    """

    seconds: float
    frame: int


def slots(length: float, together: int = 1) -> int:
    """Into how many slots a clip is cut.

    Args:
        length: of the clip in seconds.
        together: how many frames are read as one set.

    >>> slots(0.5), slots(20.5), slots(36000.0), slots(3.2, 16)
    (8, 21, 64, 16)
    """
    return min(MOST, max(FEWEST if together == 1 else together, math.ceil(length)))


def choose(looked: Iterable[tuple[float, bytes, T]], length: float) -> Iterator[T]:
    """The frame of each slot; slots without a frame give none.

    Args:
        looked: frames in the order they are shown: seconds from the clip's beginning, the tiny
            picture, and the frame itself.
        length: seconds of the clip; what comes later belongs to the last slot.

    >>> dark, light = bytes(3), bytes([255] * 3)
    >>> frames = [(0.0, dark, "a"), (0.5, dark, "b"), (0.9, light, "c"), (1.6, light, "d")]
    >>> list(choose(frames, 8.0))
    ['c', 'd']
    """
    count = slots(length)
    step = max(length, 1e-6) / count
    slot, best, before = 0, (0.0, 0.0), b""
    held: list[T] = []
    for seconds, tiny, frame in looked:
        here = min(max(int(seconds / step), slot), count - 1)
        change = _difference(tiny, before) if before else 0.0
        rank = (change if change >= _CHANGE else 0.0, -abs(seconds - (here + 0.5) * step))
        before = tiny
        if here != slot:
            yield from held
            held = []
        if not held or rank > best:
            best, held = rank, [frame]
        slot = here
    yield from held


def evenly(
    shown: Iterable[tuple[Moment, T]], length: float, together: int
) -> Iterator[tuple[Moment, T]]:
    """The frame that is shown in the midst of each slot, and when that is.

    Args:
        shown: all frames in the order they are shown.
        length: seconds of the clip.
        together: see `slots`.

    >>> frames = [(Moment(0.0, 0), "a"), (Moment(1.2, 1), "b"), (Moment(1.3, 2), "c")]
    >>> [(moment.seconds, frame) for moment, frame in evenly(frames, 2.0, 4)]
    [(0.25, 'a'), (0.75, 'a'), (1.25, 'b'), (1.75, 'c')]
    """
    count = slots(length, together)
    middles = [(slot + 0.5) * length / count for slot in range(count)]
    held: list[tuple[int, T]] = []
    for moment, frame in shown:
        while held and middles and middles[0] < moment.seconds:
            yield Moment(middles.pop(0), held[0][0]), held[0][1]
        held = [(moment.frame, frame)]
    for number, frame in held:  # the last one is shown until the end
        yield from ((Moment(middle, number), frame) for middle in middles)


def _difference(a: bytes, b: bytes) -> float:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)
