"""Clips: files that hold many images, such as videos and animations.

A clip is one file of the collection, and an image of the collection for each frame that was chosen
of it (`app/gallery/sampling.py`). Its frames come one after the other, so that as many of them are
in memory as whoever asks for them keeps.
"""

from collections.abc import Generator
from contextlib import closing
from pathlib import PurePath
from typing import BinaryIO

from PIL import Image

from app.gallery import animations, videos
from app.gallery.collection import VIDEOS, CollectionImage
from app.gallery.image_files import NotNowError
from app.gallery.images import decode
from app.gallery.sampling import Moment


def is_clip(file: BinaryIO, name: str) -> bool:
    """Whether a file holds several frames, or should, by its name."""
    if PurePath(name).suffix.lower() in VIDEOS:
        return True
    return bool(animations.shown_for(file, 2))


def chosen_frames(
    file: BinaryIO, name: str, together: int = 1
) -> Generator[tuple[Moment, Image.Image]]:
    """The frames by which a clip is found, as the clip shows them; always the same.

    Args:
        file: from `open_image_file`, for which `is_clip` holds.
        name: what to call it in messages.
        together: how many frames are read as one set.

    Yields:
        When a frame is shown, and the frame: upright, RGB, at most 2,048 pixels long. One that is
        chosen several times comes several times.

    Raises:
        ImageError: it cannot be used; the sentence says why.
    """
    return _decoded(file, name, None, together)


def open_picture(image: CollectionImage) -> Image.Image:
    """An image of a collection, decoded; of a clip its frame.

    Raises:
        ImageError: it cannot be had; the sentence says why.
    """
    with image.open() as file:
        if image.moment or image.is_video:
            return open_frame(file, image)
        return decode(file, image.file)


def open_frame(file: BinaryIO, image: CollectionImage) -> Image.Image:
    """One of a clip's chosen frames; the first where it is not said which.

    Raises:
        ImageError: it cannot be had; the sentence says why.
    """
    moment = image.moment or Moment(0.0, 0)
    with closing(_decoded(file, image.file, moment)) as found:
        for _, frame in found:
            return frame
    raise NotNowError(f"{image.file} has no frame at {moment.seconds:.1f} s any more; start again")


def _decoded(
    file: BinaryIO, name: str, moment: Moment | None, together: int = 1
) -> Generator[tuple[Moment, Image.Image]]:
    if PurePath(name).suffix.lower() in VIDEOS:
        return videos.frames(file, name, None if moment is None else moment.seconds, together)
    return animations.frames(file, name, None if moment is None else moment.frame, together)
