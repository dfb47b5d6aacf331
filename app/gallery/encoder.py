"""A pack's runtime that remembers on disk what it has encoded for one collection.

A picture's way: its file is read and known by its SHA-256 (`_look`), decoded and encoded where
something of it is missing (`_read`), and its views are made and kept (`_finish`). The three
overlap, a chunk of pictures behind the other. A clip becomes a picture for each of its windows
(`app/gallery/clip_frames.py`), once its frames are known: from the cache, or when it is read.
Features are of frames, views of windows. Pictures are read a few at a time
by a crew of threads, each of which decodes and encodes alone: threads that share one picture wait
for each other after every operator.
"""

import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from app.gallery.clip_frames import Squares, note_clips, of_frame, read_clip, spread, tell_clips
from app.gallery.clips import open_frame
from app.gallery.collection import Collection, CollectionImage, read_contents
from app.gallery.embedding_cache import Catalogue, Key
from app.gallery.encoding_steps import Encoded, Looked, Read, Rows, Underway
from app.gallery.image_files import Contents, ImageError, NotNowError, Refusal, Stamp, StoppedError
from app.gallery.images import decode, reader
from export.runtime import Runtime
from models import Views
from models.views import pad_sets

_DIGEST = 32  # bytes of a SHA-256, with which a frame's key begins
SHARD = 16  # pictures of 224 x 224 that one thread encodes at once; fewer larger ones


class Encoder:
    """Features and views of a collection's pictures and captions, each computed once.

    What was computed is kept in a `Catalogue` of the collection's folder: views under the pack's
    checksum, features under that of the image encoder, which packs may share.

    Args:
        runtime: the loaded pack.
        collection: whose pictures are encoded.
        cache: the user's cache folder.

    Attributes:
        thumbnails: a folder where frames of clips are kept small as they are read, or None.
        readers: a method that reads what each image encoder gives.
        prepared: gives the features of pictures by id, where they lie ready elsewhere; see
            `app/gallery/prepared.py`.
    """

    thumbnails: Path | None = None
    prepared: Callable[[str | None, Sequence[int]], dict[int, Tensor]] | None = None

    def __init__(self, runtime: Runtime, collection: Collection, cache: Path) -> None:
        place = hashlib.sha256(os.fsencode(collection.folder)).hexdigest()
        self._folder = cache / "galleries" / place[:24]
        self._catalogue = Catalogue(self._folder)
        self._runtime = runtime
        self._collection = collection
        self._most = runtime.info.image_encoder.frames
        self.readers = {runtime.image_encoder_of(name): name for name in runtime.methods}
        self._features = {file: _features_space(runtime, file) for file in self.readers}
        checksum = runtime.info.checksum
        self._at_once = max(1, min(SHARD, SHARD * 224**2 // runtime.preprocess.size**2))
        self._views = {name: f"views {name} {checksum}" for name in runtime.methods}
        self._captions = {name: f"captions {name} {checksum}" for name in runtime.methods}

    def encode_images(self, images: Sequence[CollectionImage]) -> Encoded:
        """Every method's views of pictures; files that cannot be used are left out and named."""
        (encoded,) = self.encode_each([images])
        return encoded

    def encode_each(
        self,
        chunks: Iterable[Sequence[CollectionImage]],
        methods: Iterable[str] | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Encoded]:
        """As `encode_images` of each chunk, reading later ones while one is encoded.

        What is yielded is on the disk; what is underway when the caller ends comes there, too.

        Args:
            chunks: of the collection.
            methods: those that make views; None for all.
            stop: when set, ends the reading at once, even in the middle of a file.

        Raises:
            StoppedError: `stop` was set before all was read.
        """
        stop = stop or threading.Event()
        names = list(self._views if methods is None else methods)
        disk, heads = (ThreadPoolExecutor(1, name) for name in ("disk", "heads"))
        looking: Future[Looked] | None = None
        writing: deque[Future[Encoded]] = deque()
        with self._crew() as crew:
            try:
                for images in chain(chunks, [None] * 3):  # three steps behind, the last is done
                    seen = None if looking is None else looking.result()
                    looking = (
                        None if images is None else disk.submit(self._look, images, names, stop)
                    )
                    if seen is not None:
                        underway = self._begin(seen, names, crew, stop)
                        writing.append(heads.submit(self._finish, underway, names))
                    if writing and (seen is None or len(writing) > 2):
                        yield writing.popleft().result()
            finally:
                disk.shutdown()
                heads.shutdown()

    def features(
        self, images: Sequence[CollectionImage], method: str, *, at_hand: bool = False
    ) -> tuple[dict[int, Tensor], list[Refusal]]:
        """What a method reads of pictures, and which were refused.

        Args:
            images: of the collection; of clips, frames.
            method: its image encoder gives the features.
            at_hand: only those that need not be computed.

        Returns:
            Features (N, d) by a picture's id, in the order given; and the refused.
        """
        file = self._runtime.image_encoder_of(method)
        if self.prepared is not None:
            return self.prepared(file, [image.image_id for image in images]), []
        space = self._features[file]
        looked = self._identify(images, threading.Event())
        looked.found[space] = self._catalogue.load(space, _digests(looked))
        missing, refused = _missing(looked, [space]), looked.refused
        if missing and not at_hand:
            with self._crew() as crew:
                reading = self._open_missing(looked, missing, [file], crew, threading.Event())
                fresh, refused = self._gather(Underway(looked, reading))
            self._catalogue.save(fresh)
        found = looked.found[space]
        return {
            image.image_id: torch.from_numpy(found[contents.digest])
            for image, contents in looked.images
            if contents.digest in found
        }, refused

    def encode_captions(self, texts: Sequence[str], method: str) -> Views:
        """A method's views of sentences."""
        space = self._captions[method]
        found = self._catalogue.load(space, texts)
        missing = list(dict.fromkeys(text for text in texts if text not in found))
        if missing:
            views = self._runtime.text_views(missing, method).embeddings.cpu().numpy()  # (B, V, D)
            self._catalogue.save({space: (missing, views)})
            found.update(zip(missing, views, strict=True))
        return Views(torch.from_numpy(np.stack([found[text] for text in texts])))

    def clusters(self, method: str) -> tuple[Path, str]:
        """The folder for clusters of a method's views, and the name of their space."""
        return self._folder / "clusters", self._views[method]

    def prune(self, images: Sequence[CollectionImage]) -> None:
        """Forgets what is kept of pictures whose files are gone or have changed.

        Args:
            images: the whole collection.
        """
        self._catalogue.prune(self._collection.folder, [image.file for image in images])

    def close(self) -> None:
        """Lets go of the files on disk until something is asked again."""
        self._catalogue.close()

    @contextmanager
    def _crew(self) -> Iterator[ThreadPoolExecutor]:
        """Threads that open pictures and encode them; what they have not begun is given up."""
        on_cpu = self._runtime.device.type == "cpu"
        threads = self._runtime.threads if on_cpu else min(8, os.cpu_count() or 1)
        crew = ThreadPoolExecutor(threads, "encode")
        try:
            yield crew
        finally:
            crew.shutdown(cancel_futures=True)

    def _identify(self, images: Sequence[CollectionImage], stop: threading.Event) -> Looked:
        """Finds out what is in files; those that have not changed are not read again."""
        known, read, refused = read_contents(images, self._catalogue.digests, stop)
        self._catalogue.record(read)
        found = known | read
        there = [(image, found[image.file]) for image in images if image.file in found]
        there = [of_frame(*one) if one[0].moment else one for one in there]
        return Looked(there, refused)

    def _look(
        self, images: Sequence[CollectionImage], names: Sequence[str], stop: threading.Event
    ) -> Looked:
        """What is in the files, and what is known of it: all views, or features to make them of."""
        looked = self._identify(images, stop)
        if any(image.may_be_clip for image, _ in looked.images):
            tell_clips(looked, self._catalogue, self._collection, self._most)
        digests = _digests(looked)
        for name in names:
            looked.found[self._views[name]] = self._catalogue.load(self._views[name], digests)
        missing = _missing(looked, [self._views[name] for name in names])
        whole = {digest[:_DIGEST] for digest in missing}
        whole |= {contents.digest for _, contents in looked.clips}
        looked.unusable.update(self._catalogue.refused(whole, reader()))
        for file in self._files(names):
            space = self._features[file]
            looked.found[space] = self._catalogue.load(space, _parts(looked, missing))
        return looked

    def _files(self, names: Sequence[str]) -> list[str | None]:
        """The image encoders that some methods read."""
        return list(dict.fromkeys(self._runtime.image_encoder_of(name) for name in names))

    def _begin(
        self, looked: Looked, names: Sequence[str], crew: ThreadPoolExecutor, stop: threading.Event
    ) -> Underway:
        """Begins to read what views are made of; each picture is opened once for all encoders."""
        wanted = _missing(looked, [self._views[name] for name in names])
        files = self._files(names)
        found = [looked.found[self._features[file]] for file in files]
        lacking = [d for d in _parts(looked, wanted) if any(d not in one for one in found)]
        digests = [d for d in lacking if d[:_DIGEST] not in looked.unusable]
        stills = [digest for digest in digests if len(digest) == _DIGEST]
        reading = self._open_missing(looked, stills, files, crew, stop)
        again = {digest[:_DIGEST] for digest in digests} & looked.spread.keys()
        for digest, clip in {found.digest: (image, found) for image, found in looked.clips}.items():
            new = digest not in looked.spread and digest not in looked.unusable
            if new or digest in again:
                reading.append(crew.submit(self._read_clip, clip, looked, files, stop))
        return Underway(looked, reading)

    def _open_missing(
        self,
        looked: Looked,
        digests: Sequence[bytes],
        files: Sequence[str | None],
        crew: ThreadPoolExecutor,
        stop: threading.Event,
    ) -> list[Future[Read]]:
        first = {contents.digest: (image, contents) for image, contents in looked.images[::-1]}
        found = {file: looked.found[self._features[file]].keys() for file in files}
        reading = []
        for start in range(0, len(digests), self._at_once):
            shard = digests[start : start + self._at_once]
            wanted = {file: [d for d in shard if d not in known] for file, known in found.items()}
            reading.append(crew.submit(self._read, {d: first[d] for d in shard}, wanted, stop))
        return reading

    def _open(self, image: CollectionImage, stamp: Stamp) -> Image.Image:
        """The square that the encoder sees, which is small enough to hold many of."""
        with image.open() as file:
            opened = open_frame(file, image) if image.moment else decode(file, image.file)
            square = self._runtime.preprocess.square(opened)
            if Stamp.of(file) == stamp:
                return square
        raise NotNowError(f"{image.file} changed while it was read; start again")

    def _read(
        self,
        files: dict[bytes, tuple[CollectionImage, Contents]],
        wanted: dict[str | None, list[bytes]],
        stop: threading.Event,
    ) -> Read:
        """Opens and encodes a few pictures, by each image encoder those that lack its features."""
        read, squares = Read(), Squares()
        for digest, (image, contents) in files.items():
            if stop.is_set():
                read.stopped = True
                break
            try:
                squares[digest] = self._open(image, contents.stamp)
            except ImageError as error:
                read.refuse(digest, image.file, error)
        read.features = self._encoded(squares, wanted)
        return read

    def _read_clip(
        self,
        clip: tuple[CollectionImage, Contents],
        looked: Looked,
        files: Sequence[str | None],
        stop: threading.Event,
    ) -> Read:
        """Opens and encodes a clip, by each image encoder the frames that lack its features."""

        def encode(squares: Squares) -> Rows:
            known = {file: looked.found[self._features[file]] for file in files}
            return self._encoded(
                squares, {file: [d for d in squares if d not in known[file]] for file in files}
            )

        square, most = self._runtime.preprocess.square, self._most
        return read_clip(*clip, square, encode, self._at_once, stop, most, self.thumbnails)

    def _encoded(self, squares: Squares, wanted: dict[str | None, list[bytes]]) -> Rows:
        """Features by each image encoder of the pictures that lack them."""
        features: Rows = {}
        for file, digests in wanted.items():
            new = [digest for digest in digests if digest in squares]
            if new:
                seen, method = [squares[digest] for digest in new], self.readers[file]
                rows = self._runtime.square_features(seen, method, alone=True).cpu().numpy()
                features[self._features[file]] = dict(zip(new, rows, strict=True))  # (N, d)
        return features

    def _finish(self, underway: Underway, names: Sequence[str]) -> Encoded:
        """Makes the views that are missing, and writes them with the features they came of."""
        fresh, refused = self._gather(underway)
        looked = underway.looked
        found, spaces = looked.found, {name: self._views[name] for name in names}
        for name, space in spaces.items():
            features = found[self._features[self._runtime.image_encoder_of(name)]]
            sets = {digest: _parts(looked, [digest]) for digest in _missing(looked, [space])}
            new = [d for d, parts in sets.items() if all(part in features for part in parts)]
            if new:
                read = [np.concatenate([features[part] for part in sets[d]]) for d in new]
                rows, mask = pad_sets([torch.from_numpy(one) for one in read])  # (B, N, d), (B, N)
                made = self._runtime.image_views(rows, name, mask=mask)
                views = made.embeddings.cpu().numpy()  # (B, V, D)
                fresh[space] = (new, views)
                found[space].update(zip(new, views, strict=True))
        self._catalogue.save(fresh)
        if any(waiting.result().stopped for waiting in underway.reading):
            raise StoppedError
        lacking = set(_missing(looked, spaces.values()))
        readable = [(p, c.digest) for p, c in looked.images if c.digest not in lacking]
        digests = [digest for _, digest in readable]
        views_by_method = {
            name: Views(torch.from_numpy(np.stack([found[space][d] for d in digests])))
            for name, space in spaces.items()
            if readable
        }
        clips = {p.image_id: looked.spread.get(c.digest, ()) for p, c in looked.clips}
        return Encoded([p for p, _ in readable], digests, views_by_method, refused, clips)

    def _gather(
        self, underway: Underway
    ) -> tuple[dict[str, tuple[Sequence[Key], np.ndarray]], list[Refusal]]:
        """Features by space that are new, also added to what is known; and the refused."""
        looked, every = underway.looked, Read()
        for read in (waiting.result() for waiting in underway.reading):
            every.unusable.update(read.unusable)
            every.not_now.update(read.not_now)
            every.clips.update(read.clips)
            for space, rows in read.features.items():
                every.features.setdefault(space, {}).update(rows)
                looked.found[space].update(rows)
        if every.clips:
            note_clips(self._catalogue, every.clips, self._most)
            new = {d: every.clips[d] for d in every.clips.keys() - looked.spread.keys()}
            spread(looked, self._collection, new, self._most)
        self._catalogue.refuse(every.unusable, reader())
        reasons = looked.unusable | every.unusable | every.not_now
        refused = {
            image.file: reasons[contents.digest[:_DIGEST]].of(image.file)
            for image, contents in chain(looked.images, looked.clips)
            if contents.digest[:_DIGEST] in reasons
        }
        fresh: dict[str, tuple[Sequence[Key], np.ndarray]] = {
            space: (list(rows), np.stack(list(rows.values())))
            for space, rows in every.features.items()
        }
        return fresh, [*looked.refused, *refused.values()]


def _features_space(runtime: Runtime, file: str | None) -> str:
    """Where features of an image encoder are kept, whichever pack it is in."""
    about = [asdict(runtime.info.preprocess), runtime.info.files[file].sha256 if file else None]
    return f"features {hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()}"


def _parts(looked: Looked, digests: Iterable[bytes]) -> list[bytes]:
    """The pictures that windows are made of; any other is its own."""
    return list(chain.from_iterable(looked.parts.get(one, (one,)) for one in digests))


def _digests(looked: Looked) -> list[bytes]:
    return list(dict.fromkeys(contents.digest for _, contents in looked.images))


def _missing(looked: Looked, spaces: Iterable[str]) -> list[bytes]:
    """Digests that one of the spaces has no row of."""
    parts = [looked.found[space] for space in spaces]
    return [digest for digest in _digests(looked) if any(digest not in part for part in parts)]
