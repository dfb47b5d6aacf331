"""Decodes videos with PyAV in a separate process, and chooses the frames that represent a clip.

A damaged video can crash the process that decodes it, or use up all memory. `read_video` therefore
runs this file as a script, which reads only the open file on its standard input, within limits on
memory and time. The script accepts the containers and codecs of cameras and browsers, and refuses
formats that open other files. It imports no module of Polyview: importing torch takes seconds.

For each frame the script writes a `HEADER` (seconds, number, width, height) and the RGB pixels. A
width of 0 ends the stream; the height is then the length in bytes of an error message that follows.
"""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from PIL import Image

VIDEOS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm"})
DECODER = Path(__file__)
MAX_MEMORY = 1_500 * 2**20  # bytes of address space of the decoder; enforced on Linux only
MAX_SECONDS = 900.0  # time limit for decoding a clip, sufficient on a busy machine
MIN_FRAMES, MAX_FRAMES = 8, 64  # limits on the frames chosen from a clip, one for each second
HEADER = struct.Struct("<dIII")
CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg", "prores", "h263", "mpeg2video")
MAX_PIXELS = 36_000_000  # pixels of a frame; 8192 x 4320 is less
MAX_ALL_PIXELS = 8_000_000_000  # pixels of all frames; above this, only key frames are decoded
_MIN_PIXELS = 50_000  # minimum number of pixels that a frame counts as
_SIDE = 1024  # longer side of the written frames
_MAX_ASPECT = 4  # larger pixel aspect ratios, and their inverses, are ignored
_MAX_CPU_SECONDS = 120  # CPU time of the decoder
_slots = threading.Semaphore(2)  # decoders that may run at the same time
T = TypeVar("T")


class VideoError(ValueError):
    """A video cannot be used; the message continues a sentence that starts with the file's name."""


class Moment(NamedTuple):
    """The position of a frame in its clip."""

    seconds: float  # from the start of the clip
    frame: int  # from 0; estimated from the mean rate if earlier frames were not decoded


def frame_times(length: float, frames_per_set: int = 1) -> list[float]:
    """Returns the times of the frames that represent a clip; times and `length` are in seconds.

    The clip is divided into equal slots, with a frame at the middle of each. There is one slot for
    each second, at most `MAX_FRAMES`, and at least `MIN_FRAMES` or, if above 1, `frames_per_set`.

    >>> frame_times(2.0, 4), len(frame_times(20.5)), len(frame_times(36000.0))
    ([0.25, 0.75, 1.25, 1.75], 21, 64)
    """
    min_frames = MIN_FRAMES if frames_per_set == 1 else frames_per_set
    count = min(MAX_FRAMES, max(min_frames, math.ceil(length)))
    return [(slot + 0.5) * length / count for slot in range(count)]


def sample(
    frames: Iterable[tuple[Moment, T]], times: Sequence[float], frames_per_set: int = 1
) -> Iterator[tuple[Moment, T]]:
    """Yields the frame that a clip shows at each of `times`, with this time as its moment.

    A frame that is shown at several times is yielded once. If a pack reads `frames_per_set` > 1
    frames as a set, it is yielded for each time. `frames` and `times` (in seconds) ascend in time.

    >>> clip = [(Moment(0.0, 0), "a"), (Moment(1.2, 1), "b"), (Moment(1.3, 2), "c")]
    >>> [(moment.seconds, frame) for moment, frame in sample(clip, frame_times(2.0, 4), 4)]
    [(0.25, 'a'), (0.75, 'a'), (1.25, 'b'), (1.75, 'c')]
    """
    times_left, end = list(times), [(Moment(math.inf, 0), None)]
    for (moment, frame), (next_moment, _) in pairwise(chain[tuple[Moment, Any]](frames, end)):
        times_shown = [time for time in times_left if time < next_moment.seconds]
        del times_left[: len(times_shown)]
        for time in times_shown if frames_per_set > 1 else times_shown[:1]:
            yield Moment(time, moment.frame), frame
        if not times_left:
            return


def read_video(
    file: BinaryIO, frames_per_set: int = 1, seconds: float | None = None
) -> Generator[tuple[Moment, Image.Image]]:
    """Yields the frames that represent a video, or only the frame at `seconds`, with their moments.

    Frames are upright RGB images with sides of at most 1,024 pixels. For `frames_per_set`, see
    `sample`. `file` must have a descriptor. Raises VideoError if the file cannot be decoded.
    """
    file.seek(0)
    container = "matroska" if file.read(4) == b"\x1aE\xdf\xa3" else "mov"
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    command = [sys.executable, "-I", str(DECODER), container, str(MAX_MEMORY), str(frames_per_set)]
    command += [] if seconds is None else [repr(seconds)]
    pipe, devnull = subprocess.PIPE, subprocess.DEVNULL
    with _slots, subprocess.Popen(command, stdin=file, stdout=pipe, stderr=devnull) as process:
        timer = threading.Timer(MAX_SECONDS, process.kill)
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        try:
            for _ in range(MAX_FRAMES + 1):
                header = process.stdout.read(HEADER.size)
                if len(header) < HEADER.size:
                    break
                time, number, width, height = HEADER.unpack(header)
                if not width:  # the end of the stream; `height` is the length of a message
                    if message := process.stdout.read(min(height, 1000)).decode(errors="replace"):
                        raise VideoError(message)
                    return
                size = 3 * width * height if max(width, height) <= _SIDE else 0  # 0 if not valid
                pixels = process.stdout.read(size)
                if not size or len(pixels) < size:
                    break
                yield Moment(time, number), Image.frombytes("RGB", (width, height), pixels)
        finally:
            timer.cancel()
            process.kill()
    raise VideoError(
        "cannot be decoded: its decoder ended, or took too much time or memory; save it again as "
        "MP4 with H.264, or make it shorter"
    )


def main(argv: list[str]) -> None:
    """Decodes the video on standard input and writes its frames; see the top of the module."""
    import av  # only in this process

    container_format, memory, frames_per_set = argv[0], int(argv[1]), int(argv[2])
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU_SECONDS, _MAX_CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    out, message = sys.stdout.buffer, "has no frame that can be decoded; save it again as MP4"
    try:
        with (
            open(0, "rb", closefd=False) as file,
            av.open(file, "r", format=container_format, io_open=_refuse_file) as container,
        ):
            clip = Clip(container)
            for moment, frame in clip.select(frames_per_set, *map(float, argv[3:])):
                image = clip.to_upright_image(frame)
                out.write(HEADER.pack(*moment, *image.size) + image.tobytes())
                message = ""
    except VideoError as error:
        message = str(error)
    except MemoryError:
        message = "needs more memory than a clip may take; make it smaller"
    except av.FFmpegError as error:
        reason = error.strerror or type(error).__name__
        message = f"is damaged, or not a clip that can be read ({reason}); save it again as MP4"
    encoded = message.encode()
    out.write(HEADER.pack(0, 0, 0, len(encoded)) + encoded)
    out.flush()


def _refuse_file(*_: object) -> None:
    """Refuses a file that the video refers to; PyAV calls this function to open the file."""
    raise VideoError("refers to other files, which are not opened; save it again as MP4")


class Clip:
    """The first video stream of an open container; raises VideoError if it cannot be used."""

    def __init__(self, container: Any) -> None:
        import av

        self._container, self._errors = container, av.FFmpegError
        if not container.streams.video:
            raise VideoError("has no video stream, so it is left out")
        self._stream = stream = container.streams.video[0]
        context = stream.codec_context
        codec = "an unknown codec" if context is None else context.name
        if codec.removeprefix("lib").replace("dav1d", "av1") not in CODECS:
            raise VideoError(f"is encoded with {codec}, which is not supported; save it with H.264")
        if context.width * context.height > MAX_PIXELS:
            raise VideoError(
                f"has frames of {context.width} x {context.height} pixels, more than the "
                f"{MAX_PIXELS // 10**6} million allowed; make it smaller"
            )
        context.thread_count = 1
        context.options = {"max_pixels": str(MAX_PIXELS)}
        self._time_base = stream.time_base or Fraction(1, 1000)
        self._start, self._rate = stream.start_time or 0, float(stream.average_rate or 0) or 25.0
        duration = float((stream.duration or 0) * self._time_base)
        duration = duration or (container.duration or 0) / av.time_base
        self._duration = duration or self._last_packet_time()
        frame_count = max(stream.frames, self._duration * self._rate)
        pixels = frame_count * max(context.width * context.height, _MIN_PIXELS)
        self._decode_all = pixels <= MAX_ALL_PIXELS

    def select(
        self, frames_per_set: int, seconds: float | None = None
    ) -> Iterator[tuple[Moment, Any]]:
        """Yields the frames that represent the clip, or only the frame at `seconds`."""
        if seconds is not None:
            yield from sample(self._frames_from(seconds), [seconds])
        elif self._decode_all:
            times = frame_times(self._duration, frames_per_set)
            yield from sample(self._frames_from(0.0), times, frames_per_set)
        else:  # a long clip: the last key frame before each time
            last_number = -1
            for time in frame_times(self._duration, frames_per_set):
                for moment, frame in islice(self._frames_from(time), 1):
                    if frames_per_set > 1 or moment.frame != last_number:
                        yield moment, frame
                    last_number = moment.frame

    def to_upright_image(self, frame: Any) -> Image.Image:
        """Converts a frame to an upright image with square pixels and sides of at most `_SIDE`."""
        ratio = float(self._stream.sample_aspect_ratio or 1)  # a pixel's width over its height
        width = frame.width * (ratio if 1 / _MAX_ASPECT <= ratio <= _MAX_ASPECT else 1)
        scale = min(1.0, _SIDE / max(width, frame.height))
        size = [max(1, round(side * scale)) for side in (width, frame.height)]
        image = frame.reformat(*size, "rgb24", interpolation="AREA").to_image()
        return image.rotate(90 * round(frame.rotation / 90), expand=True)

    def _frames_from(self, seconds: float) -> Iterator[tuple[Moment, Any]]:
        """Yields the frames from the last key frame before `seconds` on; skips damaged packets."""
        with suppress(self._errors):  # on failure, decoding continues at the current position
            self._container.seek(self._start + int(seconds / self._time_base), stream=self._stream)
        packets, number = self._container.demux(self._stream), -1
        while True:
            try:
                frames = next(packets).decode()
            except StopIteration:
                return
            except MemoryError:  # not to be skipped, although PyAV's MemoryError is in `_errors`
                raise
            except self._errors:
                continue
            for frame in frames:
                time = (number + 1) / self._rate
                if frame.pts is not None:
                    time = max(0.0, float((frame.pts - self._start) * self._time_base))
                number = round(time * self._rate) if number < 0 else number + 1
                yield Moment(time, number), frame

    def _last_packet_time(self) -> float:
        """Returns the time in seconds of the last packet, for files that state no duration."""
        last_pts = 0
        with suppress(self._errors):
            for packet in self._container.demux(self._stream):
                last_pts = max(last_pts, packet.pts or 0)
        return max(0.0, float((last_pts - self._start) * self._time_base))


if __name__ == "__main__":
    main(sys.argv[1:])
