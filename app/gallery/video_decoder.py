"""Decodes a video in a separate process: `video_decoder.py FORMAT BYTES TOGETHER [SECONDS]`.

A damaged video can crash the process that decodes it, or use up all memory. This process reads only
the open file on its standard input, within limits on memory and time, and decodes one clip. It
accepts the containers and codecs of cameras and browsers; formats that would open other files are
refused.

For each frame it writes a `HEADER` (seconds, number, width, height, counter-clockwise turns by 90
degrees) and the RGB pixels. A width of 0 ends the stream; the height is then the length in bytes of
an error message that follows.
"""

import math
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

FEWEST, MOST = 8, 64  # frames of a clip, one for each second
HEADER = struct.Struct("<dIIII")
CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg", "prores", "h263", "mpeg2video")
MAX_PIXELS = 36_000_000  # of a frame; 8192 x 4320 is less
ALL_PIXELS = 8_000_000_000  # of all frames; above this only key frames are decoded
_LEAST_PIXELS = 50_000  # minimum count for a frame
_SIDE = 1024  # longer side of the written frames
_CPU = 120  # seconds of CPU time
_ODD = 4  # pixel aspect ratios of at least this are ignored
_CLOSE = 1e-6  # seconds

T = TypeVar("T")


class RefusedError(Exception):
    """The clip cannot be used; the message continues a sentence that starts with its name."""


class Moment(NamedTuple):
    """The position of a frame in its clip.

    Attributes:
        seconds: its time from the start of the clip.
        frame: its number from 0, estimated from the mean rate if earlier frames were not decoded.
    """

    seconds: float
    frame: int


def middles(length: float, together: int = 1) -> list[float]:
    """The times in seconds of a clip's chosen frames: the middles of equal slots.

    Args:
        length: length of the clip in seconds.
        together: number of frames that are read as one set, the minimum number of slots.

    >>> middles(2.0, 4), len(middles(20.5)), len(middles(36000.0))
    ([0.25, 0.75, 1.25, 1.75], 21, 64)
    """
    count = min(MOST, max(FEWEST if together == 1 else together, math.ceil(length)))
    return [(slot + 0.5) * length / count for slot in range(count)]


def sample(
    frames: Iterable[tuple[Moment, T]], length: float, together: int = 1
) -> Iterator[tuple[Moment, T]]:
    """The frame shown at each of `middles`; for sets, repeated if it fills several slots.

    Args:
        frames: all frames in time order.
        length: length of the clip in seconds.
        together: see `middles`.

    >>> clip = [(Moment(0.0, 0), "a"), (Moment(1.2, 1), "b"), (Moment(1.3, 2), "c")]
    >>> [(moment.seconds, frame) for moment, frame in sample(clip, 2.0, 4)]
    [(0.25, 'a'), (0.75, 'a'), (1.25, 'b'), (1.75, 'c')]
    """
    times = middles(length, together)
    before: list[tuple[Moment, T]] = []

    def passed(end: float) -> Iterator[tuple[Moment, T]]:
        for moment, frame in before:
            while times and times[0] < end:
                yield Moment(times.pop(0), moment.frame), frame
                while together == 1 and times and times[0] < end:
                    times.pop(0)

    for moment, frame in frames:
        yield from passed(moment.seconds)
        before = [(moment, frame)]
    yield from passed(math.inf)


def main(argv: list[str]) -> int:
    """Writes the frames; see the top of the module."""
    import av  # only in this process

    container_format, memory, together = argv[0], int(argv[1]), int(argv[2])
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    out, sentence = sys.stdout.buffer, ""
    try:
        with (
            open(0, "rb", closefd=False) as file,
            av.open(file, "r", format=container_format, io_open=_refuse) as container,
        ):
            clip, count = _Clip(container), 0
            for moment, frame in clip.at(float(argv[3])) if argv[3:] else clip.chosen(together):
                count += 1
                for part in _packed(moment, frame, clip.ratio):
                    out.write(part)
            if not count:
                raise RefusedError("has no frame that can be decoded; save it again as MP4")
    except RefusedError as error:
        sentence = str(error)
    except MemoryError:
        sentence = "needs more memory than a clip may take; make it smaller"
    except av.FFmpegError as error:
        what = error.strerror or type(error).__name__
        sentence = f"is damaged, or not a clip that can be read ({what}); save it again as MP4"
    refusal = sentence.encode()
    out.write(HEADER.pack(0, 0, 0, len(refusal), 0) + refusal)
    out.flush()
    return 0


def _refuse(*_: object) -> None:
    raise RefusedError("names other files, which are not read; save it again as MP4")


class _Clip:
    """An open video; `ratio` is the width of a pixel divided by its height."""

    def __init__(self, container: Any) -> None:
        import av

        self._container, self._errors = container, av.FFmpegError
        if not container.streams.video:
            raise RefusedError("holds no images, only sound or nothing; take it out")
        self._stream = stream = container.streams.video[0]
        context = stream.codec_context
        codec = "an unknown codec" if context is None else context.name
        if codec.removeprefix("lib").replace("dav1d", "av1") not in CODECS:
            raise RefusedError(f"is packed with {codec}, which is not read; save it with H.264")
        if context.width * context.height > MAX_PIXELS:
            raise RefusedError(
                f"has frames of {context.width} x {context.height} pixels, more than the "
                f"{MAX_PIXELS // 10**6} million allowed; make it smaller"
            )
        context.thread_count = 1
        context.options = {"max_pixels": str(MAX_PIXELS)}
        self._base = stream.time_base or Fraction(1, 1000)
        self._start, self._rate = stream.start_time or 0, float(stream.average_rate or 0) or 25.0
        ratio = float(stream.sample_aspect_ratio or 1)
        self.ratio = ratio if 1 / _ODD <= ratio <= _ODD else 1.0
        length = (stream.duration or 0) * self._base
        self._length = float(length or (container.duration or 0) / av.time_base) or self._last()
        pixels = max(context.width * context.height, _LEAST_PIXELS)
        self._short = max(stream.frames, self._length * self._rate) * pixels <= ALL_PIXELS

    def chosen(self, together: int) -> Iterator[tuple[Moment, Any]]:
        """The frames that represent the clip; of a long clip, preceding key frames."""
        if self._short:
            numbered = (
                (Moment(moment.seconds, i), frame) for i, (moment, frame) in enumerate(self._all())
            )
            yield from sample(numbered, self._length, together)
            return
        last = -1
        for seconds in middles(self._length, together):
            self._seek(seconds)
            for moment, frame in self._all():
                if together > 1 or moment.frame != last:
                    yield moment, frame
                last = moment.frame
                break

    def at(self, seconds: float) -> Iterator[tuple[Moment, Any]]:
        """The frame shown at a time."""
        self._seek(seconds)
        held: list[tuple[Moment, Any]] = []
        for moment, frame in self._all():
            if held and moment.seconds > seconds + _CLOSE:
                break
            held = [(moment, frame)]
        yield from held

    def _all(self) -> Iterator[tuple[Moment, Any]]:
        """Frames from the present position, within `ALL_PIXELS`; skips damaged packets."""
        last, left = -1, ALL_PIXELS
        packets = self._container.demux(self._stream)
        while left > 0:
            try:
                frames = next(packets).decode()
            except StopIteration:
                return
            except self._errors as error:
                if isinstance(error, MemoryError):
                    raise
                left -= _LEAST_PIXELS
                continue
            for frame in frames:
                left -= max(frame.width * frame.height, _LEAST_PIXELS)
                seconds = (last + 1) / self._rate
                if frame.pts is not None:
                    base = frame.time_base or self._base
                    seconds = max(0.0, float((frame.pts - self._start) * base))
                last = max(last + 1, round(seconds * self._rate))
                yield Moment(seconds, last), frame

    def _seek(self, seconds: float) -> None:
        with suppress(self._errors):  # on failure, decoding goes on from the present position
            self._container.seek(self._start + int(seconds / self._base), stream=self._stream)

    def _last(self) -> float:
        """The time of the last packet, for files that state no length."""
        last = 0
        with suppress(self._errors):
            for packet in self._container.demux(self._stream):
                last = max(last, packet.pts or 0)
        self._seek(0.0)
        return max(0.0, float((last - self._start) * self._base))


def _packed(moment: Moment, frame: Any, ratio: float) -> Iterator[bytes]:
    """Encodes a frame at working size with square pixels."""
    width = frame.width * ratio
    scale = min(1.0, _SIDE / max(width, frame.height))
    wide, high = max(1, round(width * scale)), max(1, round(frame.height * scale))
    small = frame.reformat(wide, high, "rgb24", interpolation="AREA")
    turns = round(frame.rotation / 90) % 4
    yield HEADER.pack(moment.seconds, moment.frame, wide, high, turns)
    [plane] = small.planes
    data, row = bytes(plane), plane.line_size
    yield b"".join(data[row * i : row * i + 3 * wide] for i in range(high))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
