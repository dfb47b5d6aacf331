"""Decodes a video in a process of its own: `video_process.py KIND BYTES TOGETHER [SECONDS]`.

A damaged video can end the process that decodes it, or have it take all memory. So the app decodes
none itself (`app/gallery/videos.py`): this process reads the open file that it is given as standard
input, and nothing else; it may take so much memory and time; and it ends with the clip. Formats and
codecs are those that cameras and browsers make. Formats that name other files are not among them,
and whatever would open one is refused.

What it writes is for each frame a `HEADER` (seconds, number, width, height, turns by 90 degrees
against the clock) and its RGB pixels. A width of 0 ends it; the height is then the length in bytes
of a sentence that follows: why the clip cannot be used.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import av
from av.container import InputContainer
from av.video.frame import VideoFrame

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.gallery.sampling import FEWEST, HEADER, LOOKS, SIDE, Moment, choose, evenly, slots

CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg", "prores", "h263", "mpeg2video")
MAX_PIXELS = 36_000_000  # of a frame; 8192 x 4320 is less
MOST_PIXELS = 8_000_000_000  # decoded for one clip: about two minutes of 1920 x 1080 at 30 a second
_LEAST_PIXELS = 50_000  # that any frame counts for
_PACKETS = 4_000  # read for one slot, where only key frames are decoded
_SIDE = 1024  # of a frame that is handed on, the longer one
_CPU = 120  # seconds of one processor
_ODD = 4  # times wider or higher than its pixels say: what is more is not believed


class _RefusedError(Exception):
    """The clip cannot be used; the message says why, to follow its name."""


def main(argv: list[str]) -> int:
    """Writes the frames that are asked for; see the module."""
    kind, limit, together = argv[0], int(argv[1]), int(argv[2])
    _bound(limit)
    out = sys.stdout.buffer
    try:
        with open(0, "rb", closefd=False) as file:
            for part in _answer(file, kind, together, float(argv[3]) if len(argv) > 3 else None):
                out.write(part)
        sentence = ""
    except _RefusedError as error:
        sentence = str(error)
    except MemoryError:
        sentence = "needs more memory than there is for a clip; make it smaller"
    except av.FFmpegError as error:
        what = error.strerror or type(error).__name__
        sentence = f"is damaged, or is no clip that can be read ({what}); save it anew as MP4"
    refusal = sentence.encode()
    out.write(HEADER.pack(0, 0, 0, len(refusal), 0) + refusal)
    out.flush()
    return 0


def _bound(limit: int) -> None:
    """Has the system end the process where it takes too much; Windows cannot."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _answer(file: BinaryIO, kind: str, together: int, seconds: float | None) -> Iterator[bytes]:
    with av.open(file, "r", format=kind, io_open=_open_nothing) as container:
        clip = _Clip(container, together)
        if seconds is not None:
            frames = clip.at(seconds)
        elif together > 1:
            frames = evenly(clip.frames(), clip.length, together)
        else:
            frames = choose(clip.looked(), clip.length)
        some = False
        for moment, frame in frames:
            some = True
            yield from _packed(moment, frame, clip.ratio)
        if not some:
            raise _RefusedError("has no frame that can be decoded; save it anew as MP4")


def _open_nothing(*_: object) -> None:
    raise _RefusedError("names other files, which are not read; save it anew as MP4")


class _Clip:
    """The frames of an open video.

    Args:
        container: holds it.
        together: how many frames are read as one set.

    Attributes:
        length: in seconds.
        ratio: of a pixel's width to its height.
    """

    def __init__(self, container: InputContainer, together: int = 1) -> None:
        self._container = container
        if not container.streams.video:
            raise _RefusedError("holds no pictures, only sound or nothing; take it out")
        self._stream = stream = container.streams.video[0]
        context = stream.codec_context
        if (
            context is None
            or context.name.removeprefix("lib").replace("dav1d", "av1") not in CODECS
        ):
            name = "a codec that is not known" if context is None else f"the codec {context.name}"
            raise _RefusedError(f"is packed with {name}, which is not read; save it with H.264")
        self._pixels = context.width * context.height
        if self._pixels > MAX_PIXELS:
            raise _RefusedError(
                f"has frames of {context.width} x {context.height} pixels, more than the "
                f"{MAX_PIXELS // 10**6} million allowed; make it smaller"
            )
        context.thread_count = 1
        context.options = {"max_pixels": str(MAX_PIXELS)}
        self._base = stream.time_base or Fraction(1, 1000)
        self._start = stream.start_time or 0
        self._rate = float(stream.average_rate or 0) or 25.0
        self.length = self._length()
        self._slots = slots(self.length, together)
        ratio = float(stream.sample_aspect_ratio or 1)
        self.ratio = ratio if 1 / _ODD <= ratio <= _ODD else 1.0
        self._left = MOST_PIXELS
        frames = max(stream.frames, self.length * self._rate)
        short = frames * max(self._pixels, _LEAST_PIXELS) <= MOST_PIXELS
        self._whole = short or self._has_few_keys()

    def looked(self) -> Iterator[tuple[float, bytes, tuple[Moment, VideoFrame]]]:
        """What `choose` takes: of all frames as far as may be decoded, or of key frames."""
        gap = self.length / self._slots / LOOKS
        last = -gap
        for moment, frame in self.frames():
            if moment.seconds - last >= gap * 0.999 or not self._whole:
                last = moment.seconds
                yield moment.seconds, _tiny(frame), (moment, frame)

    def at(self, seconds: float) -> Iterator[tuple[Moment, VideoFrame]]:
        """The frame that is shown at a time."""
        self._seek(seconds)
        held: list[tuple[Moment, VideoFrame]] = []
        for moment, frame in self._decoded():
            if held and moment.seconds > seconds + 1e-6:
                break
            held = [(moment, frame)]
        yield from held

    def frames(self) -> Iterator[tuple[Moment, VideoFrame]]:
        """All frames, as far as may be decoded, or key frames."""
        return self._every() if self._whole else self._key_frames()

    def _has_few_keys(self) -> bool:
        """Whether key frames are known to be too few to stand for the clip."""
        self._seek(self.length)  # an index may lie at the end
        keys = sum(entry.is_keyframe for entry in self._stream.index_entries)
        self._seek(0.0)
        return 0 < keys < FEWEST

    def _every(self) -> Iterator[tuple[Moment, VideoFrame]]:
        for number, (moment, frame) in enumerate(self._decoded()):
            yield Moment(moment.seconds, number), frame

    def _key_frames(self) -> Iterator[tuple[Moment, VideoFrame]]:
        """A few key frames of each slot; what lies between is passed over, not decoded."""
        step = self.length / self._slots
        allowed = max(1, self._left // max(self._pixels, _LEAST_PIXELS) // self._slots)
        after, last = 0.0, -1.0
        for slot in range(self._slots):
            begin, end, seen = slot * step, (slot + 1) * step, 0
            if end <= after:
                continue
            if slot and begin > after:
                self._seek(begin)
            for moment, frame in self._decoded(keys=True):
                after = moment.seconds
                if moment.seconds > last:
                    last = moment.seconds
                    seen += moment.seconds >= begin
                    yield moment, frame
                if seen >= min(allowed, LOOKS) or after >= end:
                    break

    def _decoded(self, keys: bool = False) -> Iterator[tuple[Moment, VideoFrame]]:
        """Frames from here on, as far as there is time for them; what is damaged is passed over."""
        last, packets = -1, 0
        demuxed = self._container.demux(self._stream)
        while self._left > 0 and packets < _PACKETS * (1 if keys else 1000):
            try:
                packet = next(demuxed)
                packets += 1
                if keys and packet.size and not packet.is_keyframe:
                    continue
                frames = packet.decode()
            except StopIteration:
                return
            except MemoryError:
                raise
            except av.FFmpegError:
                self._left -= _LEAST_PIXELS
                continue
            for frame in frames:
                self._left -= max(frame.width * frame.height, _LEAST_PIXELS)
                seconds = self._seconds(frame, last)
                last = max(last + 1, round(seconds * self._rate))
                yield Moment(seconds, last), frame

    def _seconds(self, frame: VideoFrame, last: int) -> float:
        if frame.pts is None:
            return (last + 1) / self._rate
        return max(0.0, float((frame.pts - self._start) * (frame.time_base or self._base)))

    def _seek(self, seconds: float) -> None:
        with suppress(av.FFmpegError):  # then it is decoded from where it is
            self._container.seek(self._start + int(seconds / self._base), stream=self._stream)

    def _length(self) -> float:
        """Seconds, as the file says; where it does not, as its last packet does."""
        if self._stream.duration:
            return max(0.0, float(self._stream.duration * self._base))
        if self._container.duration:
            return max(0.0, self._container.duration / av.time_base)
        last = 0
        with suppress(av.FFmpegError):
            for packet in self._container.demux(self._stream):
                last = max(last, packet.pts or 0)
        self._seek(0.0)
        return max(0.0, float((last - self._start) * self._base))


def _tiny(frame: VideoFrame) -> bytes:
    small = frame.reformat(SIDE, SIDE, "rgb24", interpolation="FAST_BILINEAR")
    return _rows(small)


def _rows(frame: VideoFrame) -> bytes:
    """The pixels of an RGB frame, without what fills its lines up."""
    [plane] = frame.planes
    data, width = bytes(plane), 3 * frame.width
    if plane.line_size == width:
        return data[: width * frame.height]
    starts = range(0, plane.line_size * frame.height, plane.line_size)
    return b"".join(data[start : start + width] for start in starts)


def _packed(moment: Moment, frame: VideoFrame, ratio: float) -> Iterator[bytes]:
    """A frame at working size, its pixels made square."""
    width = frame.width * ratio
    scale = min(1.0, _SIDE / max(width, frame.height))
    wide, high = max(1, round(width * scale)), max(1, round(frame.height * scale))
    pixels = _rows(frame.reformat(wide, high, "rgb24", interpolation="AREA"))
    turns = round(frame.rotation / 90) % 4
    yield HEADER.pack(moment.seconds, moment.frame, wide, high, turns)
    yield pixels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
