"""How the encoder (`app/gallery/encoder.py`) meets clips: as the images of their chosen frames.

A pack of still images reads each frame by itself. One that knows video reads frames as a set, so
its galleries have a row for each *window* of a clip: at most as many frames, in order, as its
methods were trained on. A clip of no more chosen frames than that is one window.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import astuple, replace
from pathlib import Path

from PIL import Image

from app.gallery.clips import chosen_frames, is_clip
from app.gallery.collection import Collection, CollectionImage
from app.gallery.embedding_cache import Catalogue
from app.gallery.encoding_steps import Looked, Read, Rows
from app.gallery.image_files import Contents, ImageError, NotNowError, Refusal, Stamp
from app.gallery.images import reader
from app.gallery.sampling import Moment
from app.gallery.thumbnails import keep_thumbnail

MOST_FRAMES = 500_000  # of all clips of a gallery
Squares = dict[bytes, Image.Image]  # what an encoder sees of frames, by key


class Clips(dict[int, tuple[Moment, ...]]):
    """The moments of clips' frames by the place of the clip's file; see `Collection.frame`.

    Args:
        collection: they are of.
        frames: how many the pack reads as one set; 1 for each by itself.
    """

    def __init__(self, collection: Collection, frames: int = 1) -> None:
        super().__init__()
        self._collection = collection
        self._most = frames
        self._frames = 0

    def note(self, clips: Mapping[int, tuple[Moment, ...]]) -> None:
        """Takes the moments of clips by the places of their files."""
        self._frames += sum(len(clips[clip]) for clip in clips.keys() - self.keys())
        self.update(clips)

    def rows(self, file_id: int) -> list[int]:
        """The ids by which galleries hold a file: those of the first frames of its windows."""
        runs = windows(len(self.get(file_id, ())), self._most)
        return [file_id + run.start * len(self._collection.images) for run in runs] or [file_id]

    def read_with(self, image_id: int) -> list[int]:
        """The ids of the images that are read as one set with an image, in order of time."""
        count = len(self._collection.images)
        place, file_id = divmod(image_id, count)
        for window in windows(len(self.get(file_id, ())), self._most):
            if place in window:
                return [file_id + one * count for one in window]
        return [image_id]

    def too_many(self, clips: Mapping[int, tuple[Moment, ...]]) -> dict[str, Refusal]:
        """The clips, by file, that there is no room for."""
        refused, count = dict[str, Refusal](), self._frames
        for file_id in clips.keys() - self.keys():
            file, more = self._collection.images[file_id].file, len(clips[file_id])
            if count + more > MOST_FRAMES:
                reason = (
                    f"{file} is left out: it has {more} frames to look at, and of the "
                    f"{MOST_FRAMES:,} of a gallery's clips {count:,} are taken; split the folder"
                )
                refused[file] = Refusal(file, reason)
            else:
                count += more
        return refused


def windows(count: int, most: int) -> list[range]:
    """Cuts so many frames into runs of at most `most` that are as long as each other, about.

    >>> windows(20, 16), windows(2, 1)
    ([range(0, 10), range(10, 20)], [range(0, 1), range(1, 2)])
    """
    parts = -(-count // most)
    return [range(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def tell_clips(looked: Looked, catalogue: Catalogue, collection: Collection, most: int) -> None:
    """Sets clips apart from images, and puts the windows of those that are known in their place.

    Args:
        looked: what is in files.
        catalogue: knows which frames were chosen.
        collection: whose files they are.
        most: frames of a window.
    """
    maybe = {found.digest: image for image, found in looked.images if image.may_be_clip}
    known = _known(catalogue, maybe, most)
    stills: dict[bytes, tuple[Moment, ...]] = {}
    for digest in maybe.keys() - known.keys():
        image = maybe[digest]
        with suppress(OSError, ImageError), image.open() as file:  # reading it will say why
            if not is_clip(file, image.file):
                stills[digest] = ()
    note_clips(catalogue, stills, most)
    known |= stills
    clips = {digest for digest in maybe if known.get(digest) != ()}
    looked.clips[:] = [one for one in looked.images if one[1].digest in clips]
    if looked.clips:
        looked.images[:] = [one for one in looked.images if one[1].digest not in clips]
        spread(looked, collection, known, most)


def note_clips(catalogue: Catalogue, clips: Mapping[bytes, Sequence[Moment]], most: int) -> None:
    """Keeps which frames were chosen of files, by SHA-256; none of those that are no clips."""
    notes = {key: (json.dumps([astuple(one) for one in clip]),) for key, clip in clips.items()}
    catalogue.note("clips", _chooser(most), notes)


def _known(
    catalogue: Catalogue, digests: Iterable[bytes], most: int
) -> dict[bytes, tuple[Moment, ...]]:
    """The frames that were chosen of those of these contents that were looked at."""
    found = catalogue.noted("clips", "moments", _chooser(most), digests)
    return {key: tuple(Moment(*one) for one in json.loads(clip)) for key, clip in found}


def _chooser(most: int) -> str:
    """What a choice of frames depends on, beside the file."""
    return reader() if most == 1 else f"{reader()}, sets of {most}"


def spread(
    looked: Looked, collection: Collection, moments: Mapping[bytes, tuple[Moment, ...]], most: int
) -> None:
    """Adds windows of clips to the images, in the order of the collection.

    A window is the image of its first frame. It is known by the SHA-256 of the clip's file and the
    numbers of its frames, so that of one frame it is that frame.

    Args:
        looked: to which they are added.
        collection: whose files they are.
        moments: of the frames that were chosen, by SHA-256.
        most: frames of a window.
    """
    for image, contents in looked.clips:
        chosen = moments.get(contents.digest, ())
        for window in windows(len(chosen), most):
            frame = collection.frame(image, window.start, chosen[window.start])
            parts = [_key(contents, chosen[place]) for place in window]
            key = _key(contents, *(chosen[place] for place in window))
            looked.images.append((frame, replace(contents, digest=key)))
            looked.parts[key] = parts
    looked.spread.update(moments)
    looked.images.sort(key=lambda one: collection.file_id(one[0].image_id))


def of_frame(image: CollectionImage, contents: Contents) -> tuple[CollectionImage, Contents]:
    """A frame with what it is known by: the SHA-256 of its clip's file, and its number."""
    assert image.moment is not None
    key = _key(contents, image.moment)
    return image, Contents(
        key, contents.stamp, contents.read_ns
    )  # `replace` takes ten times as long


def read_clip(
    image: CollectionImage,
    contents: Contents,
    square: Callable[[Image.Image], Image.Image],
    encode: Callable[[Squares], Rows],
    at_once: int,
    stop: threading.Event,
    together: int,
    thumbnails: Path | None = None,
) -> Read:
    """Opens a clip and encodes its frames: all of them, or none where it cannot be used.

    While some are encoded, the next ones are decoded.

    Args:
        image: the clip.
        contents: its own.
        square: what an encoder sees of a frame.
        encode: gives the features of frames.
        at_once: how many frames are encoded together.
        stop: ends it between two parts.
        together: how many frames are read as one set.
        thumbnails: the folder where the frames' are kept, as each would have to be decoded again.
    """
    read, moments = Read(), list[Moment]()
    try:
        chosen = _parts(image, contents, square, at_once, moments, together, thumbnails)
        for squares in chosen:
            if stop.is_set():
                return Read(stopped=True)
            for space, rows in encode(squares).items():
                read.features.setdefault(space, {}).update(rows)
    except ImageError as error:
        read = Read()
        read.refuse(contents.digest, image.file, error)
        return read
    read.clips[contents.digest] = tuple(moments)
    return read


def _parts(
    image: CollectionImage,
    contents: Contents,
    square: Callable[[Image.Image], Image.Image],
    at_once: int,
    moments: list[Moment],
    together: int,
    thumbnails: Path | None,
) -> Iterator[Squares]:
    """A clip's frames, a few at a time and some ahead; notes their moments."""
    with image.open() as file, closing(chosen_frames(file, image.file, together)) as frames:

        def part() -> Squares:
            held: Squares = {}
            for moment, frame in frames:
                known = bool(moments) and moments[-1].frame == moment.frame
                moments.append(moment)
                if known:  # it is shown for long, and chosen again
                    continue
                held[_key(contents, moment)] = square(frame)
                if thumbnails is not None:
                    with suppress(ImageError, OSError):  # whoever wants to see it is told
                        name = replace(image, moment=moment).thumbnail_name()
                        keep_thumbnail(frame, thumbnails, name)
                if len(held) == at_once:
                    break
            return held

        with ThreadPoolExecutor(1, "clip") as ahead:
            held = ahead.submit(part).result()
            while held:
                following = ahead.submit(part)
                yield held
                held = following.result()
        if Stamp.of(file) != contents.stamp:
            raise NotNowError(f"{image.file} changed while it was read; start again")


def _key(contents: Contents, *moments: Moment) -> bytes:
    return contents.digest + b"".join(one.frame.to_bytes(4, "little") for one in moments)
