"""How the encoder (`app/gallery/encoder.py`) meets clips: as the images of their chosen frames."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import astuple, replace
from itertools import islice
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
    """

    def __init__(self, collection: Collection) -> None:
        super().__init__()
        self._collection = collection
        self._frames = 0

    def note(self, images: Sequence[CollectionImage]) -> None:
        """Takes the frames of clips; others are passed over."""
        moments: dict[int, tuple[Moment, ...]] = {}
        for image in images:
            if image.moment is not None:
                file_id = self._collection.file_id(image.image_id)
                moments[file_id] = (*moments.get(file_id, ()), image.moment)
        self._frames += sum(len(moments[clip]) for clip in moments.keys() - self.keys())
        self.update(moments)

    def too_many(self, frames: Sequence[CollectionImage]) -> dict[str, Refusal]:
        """The clips, by file, that there is no room for."""
        files = (f for f in frames if self._collection.file_id(f.image_id) not in self)
        refused, count = dict[str, Refusal](), self._frames
        for file, more in Counter(frame.file for frame in files).items():
            if count + more > MOST_FRAMES:
                reason = (
                    f"{file} is left out: it has {more} frames to look at, and of the "
                    f"{MOST_FRAMES:,} of a gallery's clips {count:,} are taken; split the folder"
                )
                refused[file] = Refusal(file, reason)
            else:
                count += more
        return refused


def tell_clips(looked: Looked, catalogue: Catalogue, collection: Collection) -> None:
    """Sets clips apart from images, and puts the frames that are known in their place."""
    maybe = {found.digest: image for image, found in looked.images if image.may_be_clip}
    known = _known(catalogue, maybe)
    stills: dict[bytes, tuple[Moment, ...]] = {}
    for digest in maybe.keys() - known.keys():
        image = maybe[digest]
        with suppress(OSError, ImageError), image.open() as file:  # reading it will say why
            if not is_clip(file, image.file):
                stills[digest] = ()
    note_clips(catalogue, stills)
    known |= stills
    clips = {digest for digest in maybe if known.get(digest) != ()}
    looked.clips[:] = [one for one in looked.images if one[1].digest in clips]
    if looked.clips:
        looked.images[:] = [one for one in looked.images if one[1].digest not in clips]
        spread(looked, collection, known)


def note_clips(catalogue: Catalogue, clips: Mapping[bytes, Sequence[Moment]]) -> None:
    """Keeps which frames were chosen of files, by SHA-256; none of those that are no clips."""
    notes = {key: (json.dumps([astuple(one) for one in clip]),) for key, clip in clips.items()}
    catalogue.note("clips", reader(), notes)


def _known(catalogue: Catalogue, digests: Iterable[bytes]) -> dict[bytes, tuple[Moment, ...]]:
    """The frames that were chosen of those of these contents that were looked at."""
    found = catalogue.noted("clips", "moments", reader(), digests)
    return {key: tuple(Moment(*one) for one in json.loads(clip)) for key, clip in found}


def spread(
    looked: Looked, collection: Collection, moments: Mapping[bytes, Sequence[Moment]]
) -> None:
    """Adds frames of clips, by SHA-256, to the images, in the order of the collection."""
    for image, contents in looked.clips:
        for place, moment in enumerate(moments.get(contents.digest, ())):
            looked.images.append(of_frame(collection.frame(image, place, moment), contents))
    looked.spread.update(moments)
    looked.images.sort(key=lambda one: collection.file_id(one[0].image_id))


def of_frame(image: CollectionImage, contents: Contents) -> tuple[CollectionImage, Contents]:
    """A frame with what it is known by: the SHA-256 of its clip's file, and its number."""
    assert image.moment is not None
    return image, replace(contents, digest=_key(contents, image.moment))


def read_clip(
    image: CollectionImage,
    contents: Contents,
    square: Callable[[Image.Image], Image.Image],
    encode: Callable[[Squares], Rows],
    at_once: int,
    stop: threading.Event,
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
        thumbnails: the folder where the frames' are kept, as each would have to be decoded again.
    """
    read, moments = Read(), list[Moment]()
    try:
        for squares in _parts(image, contents, square, at_once, moments, thumbnails):
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
    thumbnails: Path | None,
) -> Iterator[Squares]:
    """A clip's frames, a few at a time and some ahead; notes their moments."""
    with image.open() as file, closing(chosen_frames(file, image.file)) as frames:

        def part() -> Squares:
            held: Squares = {}
            for moment, frame in islice(frames, at_once):
                moments.append(moment)
                held[_key(contents, moment)] = square(frame)
                if thumbnails is not None:
                    with suppress(ImageError, OSError):  # whoever wants to see it is told
                        name = replace(image, moment=moment).thumbnail_name()
                        keep_thumbnail(frame, thumbnails, name)
            return held

        with ThreadPoolExecutor(1, "clip") as ahead:
            held = ahead.submit(part).result()
            while held:
                following = ahead.submit(part)
                yield held
                held = following.result()
        if Stamp.of(file) != contents.stamp:
            raise NotNowError(f"{image.file} changed while it was read; start again")


def _key(contents: Contents, moment: Moment) -> bytes:
    return contents.digest + moment.frame.to_bytes(4, "little")
