"""Writes small videos and animations for tests."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.video.stream import VideoStream
from PIL import Image

CODECS = {".mp4": "libx264", ".mkv": "libx264", ".mov": "mpeg4", ".webm": "libvpx"}


def write_video(
    path: Path,
    frames: Iterable[Image.Image],
    rate: int = 10,
    ticks: Sequence[int] | None = None,
    codec: str | None = None,
    **options: str,
) -> Path:
    """Writes frames of one size, with even sides, as a video; the suffix determines the format.

    `rate` is in frames a second or, with `ticks`, the start of each frame, in ticks a second.
    `codec` and its `options` are FFmpeg's; by default the format's usual codec.
    """
    with av.open(str(path), "w") as file:
        stream = cast(VideoStream, file.add_stream(codec or CODECS[path.suffix], rate, options))
        stream.time_base = stream.codec_context.time_base = Fraction(1, rate)
        for number, image in enumerate(frames):
            if number == 0:
                stream.width, stream.height = image.size
                stream.pix_fmt = "yuv420p"
            frame = av.VideoFrame.from_image(image)
            frame.pts = number if ticks is None else ticks[number]
            frame.time_base = Fraction(1, rate)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


def write_animation(path: Path, frames: Sequence[Image.Image], ms: int | list[int] = 100) -> Path:
    """Writes frames as an animated GIF, WebP or PNG; `ms` is the duration of each frame."""
    lossless = path.suffix == ".webp"
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=ms, loop=0, lossless=lossless
    )
    return path


def plain(colour: str | tuple[int, int, int], size: tuple[int, int] = (64, 48)) -> Image.Image:
    """An image of one colour."""
    return Image.new("RGB", size, colour)
