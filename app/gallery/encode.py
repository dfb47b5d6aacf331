"""Computes features and views of a collection's images and captions, and stores them.

A few threads read files in small groups: known files are looked up in the store, others are decoded
and encoded, while the views of earlier groups are computed and saved. Each thread works on its own
images, because threads that share an image wait for each other after every operator.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.gallery.images import (
    ImageError,
    NotNowError,
    Stamp,
    read_frames,
    reader,
    unreadable,
)
from polyview.app.gallery.scan import Collection, CollectionImage, StoppedError
from polyview.app.gallery.store import Key, Note, Store, Vectors
from polyview.app.gallery.thumbnails import keep_thumbnail
from polyview.app.gallery.video import open_frame, read_video, windows
from polyview.app.gallery.video_decoder import Moment
from polyview.export.runtime import Runtime
from polyview.models.views import pad_sets

SHARD = 16  # images of 224 x 224 that one thread encodes at once; fewer larger ones
RECENT = 200  # images whose features stay in memory: 80 MB for CLIP ViT-B/16
_AHEAD = 8  # groups read ahead while the views of another are computed


@dataclass(frozen=True)
class Row:
    """A row of a gallery: a still image, or a window of a clip's frames.

    Attributes:
        digest: the SHA-256 of its file.
        frames: the image, or the frames of the window in time order.
    """

    digest: bytes
    frames: tuple[CollectionImage, ...]

    @property
    def image_id(self) -> int:
        """The id in galleries: that of the first frame."""
        return self.frames[0].image_id

    @property
    def parts(self) -> list[bytes]:
        """The keys of the images whose features it consists of."""
        return [_key(self.digest, image.moment) for image in self.frames]

    @property
    def key(self) -> bytes:
        """The key of its views."""
        return self.digest + b"".join(part[len(self.digest) :] for part in self.parts)


@dataclass(frozen=True)
class Reading:
    """The result of reading a file.

    Attributes:
        image: the file.
        digest: the SHA-256 of its content; empty if it could not be read.
        refusal: why it cannot be used; empty if it can.
        moments: the moments of a clip's frames; empty for a still image.
    """

    image: CollectionImage
    digest: bytes = b""
    refusal: str = ""
    moments: tuple[Moment, ...] = ()


class Encoder:
    """A pack's runtime with a store of its results for one collection.

    Views are stored under the checksum of the pack, features under that of the image encoder, which
    packs may share. If only the sum of the features matters (`Method.features_add_up`), the sum is
    stored, and the features of recently explained images stay in memory. With ready-made features
    nothing is stored: heads take milliseconds.

    Args:
        runtime: the loaded pack.
        collection: the images.
        cache: the user's cache folder.

    Attributes:
        thumbnails: the folder of thumbnails; those of clip frames are made while clips are read.
    """

    def __init__(self, runtime: Runtime, collection: Collection, cache: Path) -> None:
        place = hashlib.sha256(os.fsencode(collection.folder)).hexdigest()
        self.folder = cache / "galleries" / place[:24]
        self.store, self.thumbnails = Store(self.folder), cache / "thumbnails"
        self._runtime, self._collection = runtime, collection
        self._checksum = runtime.info.checksum
        self._together = runtime.info.image_encoder.frames
        # for each image encoder's space, one method that uses the encoder
        self._encoders = {self._space(name): name for name in runtime.methods}
        # a note is stored with the features of all encoders, in one transaction
        encoders = hashlib.sha256("".join(sorted(self._encoders)).encode()).hexdigest()
        self._reader = f"{encoders[:24]} {reader()}, sets of {self._together}"
        self._at_once = max(1, min(SHARD, SHARD * 224**2 // runtime.preprocess.size**2))
        self._digests: dict[str, bytes] = {}  # of files that were read
        # features (N, d) of images of which only the sum is stored, latest last
        self._recent: dict[str, dict[Key, np.ndarray]] = {
            space: {} for space, m in self._encoders.items() if runtime.methods[m].features_add_up
        }
        self._lock = threading.Lock()  # guards `_recent`

    def read(
        self, images: Sequence[CollectionImage], stop: threading.Event
    ) -> Generator[list[Reading]]:
        """Reads files and encodes new ones, a few at a time, in order.

        The features of yielded files are on disk.

        Args:
            images: of the collection.
            stop: ends the reading when set.

        Raises:
            StoppedError: `stop` was set before everything was read.
        """
        on_cpu = self._runtime.device.type == "cpu"
        threads = self._runtime.threads if on_cpu else min(8, os.cpu_count() or 1)
        crew, pending = ThreadPoolExecutor(threads, "encode"), deque[Future[list[Reading]]]()
        try:
            for shard in self._shards(images):
                pending.append(crew.submit(self._read, shard, stop))
                if len(pending) > _AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            crew.shutdown(cancel_futures=True)

    def _shards(self, images: Sequence[CollectionImage]) -> Iterator[Sequence[CollectionImage]]:
        """Groups of files for one thread each; a video is a group of its own."""
        for is_video, run in groupby(images, key=lambda image: image.is_video):
            files, size = list(run), 1 if is_video else self._at_once
            yield from (files[start : start + size] for start in range(0, len(files), size))

    def rows(self, reading: Reading) -> list[Row]:
        """The rows of a file in galleries: one, or for a clip one for each window."""
        if reading.refusal:
            return []
        frame, image, moments = self._collection.frame, reading.image, reading.moments
        if not moments:
            return [Row(reading.digest, (image,))]
        frames = [frame(image, place, moment) for place, moment in enumerate(moments)]
        runs = windows(len(frames), self._together)
        return [Row(reading.digest, tuple(frames[i] for i in run)) for run in runs]

    def views(self, rows: Sequence[Row], methods: Sequence[str]) -> dict[str, Tensor]:
        """The views (n, V, D) of n rows by method, loaded or computed and stored; {} of no rows."""
        features = Vectors()  # (N, d), shared by methods
        return {name: self._views(rows, name, features) for name in methods if rows}

    def _views(self, rows: Sequence[Row], method: str, features: Vectors) -> Tensor:
        space, by_key = self._space(method), dict[Key, Row]((row.key, row) for row in rows)

        def make(keys: Iterable[Key]) -> np.ndarray:
            if space not in features:
                parts = (zip(row.parts, row.frames, strict=True) for row in rows)
                frames = dict[Key, CollectionImage](chain.from_iterable(parts))
                features[space] = self._stored(frames, space)
            sets = [[features[space][part] for part in by_key[key].parts] for key in keys]
            padded, mask = pad_sets([torch.from_numpy(np.concatenate(parts)) for parts in sets])
            return self._runtime.image_views(padded, method, mask=mask).embeddings.cpu().numpy()

        known = self.store.cached(f"views {method} {self._checksum}", by_key, make)
        return torch.from_numpy(np.stack([known[row.key] for row in rows]))

    def features(
        self, images: Sequence[CollectionImage], method: str, *, at_hand: bool = False
    ) -> dict[int, Tensor]:
        """The features (N, d) of images by id, as a method reads them.

        Args:
            images: images or clip frames of the collection.
            method: determines the image encoder.
            at_hand: return only features that need not be computed.

        Raises:
            ImageError: an image cannot be read.
        """
        space, frames, keys = self._space(method), dict[Key, CollectionImage](), dict[int, Key]()
        for image in images:
            digest = self._digests.get(image.file)
            if digest is None:
                with image.open() as file:
                    digest = hashlib.file_digest(file, "sha256").digest()
            keys[image.image_id] = key = _key(digest, image.moment)
            frames[key] = image
        if space not in self._recent:
            known = self.store.load(space, frames) if at_hand else self._stored(frames, space)
        else:
            recent = self._recent[space]
            known = {key: rows for key in frames if (rows := recent.get(key)) is not None}
            missing = [] if at_hand else [key for key in frames if key not in known]
            known |= (fresh := self._encode(self._squares(frames, missing), space, whole=True))
            with self._lock:
                recent |= fresh
                for oldest in list(recent)[:-RECENT]:
                    del recent[oldest]
        return {i: torch.from_numpy(known[key].copy()) for i, key in keys.items() if key in known}

    def encode_captions(self, texts: Sequence[str], method: str) -> Tensor:
        """A method's views (n, V, D) of sentences."""

        def make(missing: Iterable[Key]) -> np.ndarray:
            views = self._runtime.text_views([str(text) for text in missing], method)
            return views.embeddings.cpu().numpy()

        known = self.store.cached(f"captions {method} {self._checksum}", texts, make)
        return torch.from_numpy(np.stack([known[text] for text in texts]))

    def _read(self, images: Sequence[CollectionImage], stop: threading.Event) -> list[Reading]:
        """Reads a few files; decodes, encodes and stores what is not known yet."""
        if stop.is_set():
            raise StoppedError
        stamps, files = dict[str, Stamp](), dict[str, tuple[Stamp, int, bytes]]()
        for image in images:
            with suppress(OSError):  # opening it tells the reason
                stamps[image.file] = Stamp.of(image.path)
        digests, squares = self.store.digests(stamps), dict[Key, Image.Image]()
        notes, readings = self.store.notes(digests.values(), self._reader), list[Reading]()
        for image in images:
            digest, own = digests.get(image.file, b""), dict[Key, Image.Image]()
            try:
                if digest not in notes:
                    with image.open() as file:
                        stamp, now = Stamp.of(file), time.time_ns()
                        digest = hashlib.file_digest(file, "sha256").digest()
                        notes |= self.store.notes([digest], self._reader)
                        note = notes.get(digest) or self._decode(image, file, digest, own, stop)
                        if Stamp.of(file) != stamp:
                            raise NotNowError(
                                f"{image.file} changed while it was read; start again"
                            )
                    files[image.file], notes[digest] = (stamp, now, digest), note
                    squares |= own
            except (ImageError, OSError) as error:
                readings.append(Reading(image, refusal=str(unreadable(image.file, error))))
                continue
            note, self._digests[image.file] = notes[digest], digest
            refusal = note.refusal and image.file + note.refusal
            readings.append(Reading(image, digest, refusal, note.moments))
        vectors = Vectors()
        for space in self._encoders if squares else ():
            known = self.store.known(space, squares)
            new = {key: square for key, square in squares.items() if key not in known}
            vectors[space] = self._encode(new, space)
        fresh = {digest: notes[digest] for _, _, digest in files.values()}
        self.store.save(vectors, files, fresh, self._reader)
        return readings

    def _decode(
        self,
        image: CollectionImage,
        file: BinaryIO,
        digest: bytes,
        squares: dict[Key, Image.Image],
        stop: threading.Event,
    ) -> Note:
        """Decodes a file and adds the encoder's square input images to `squares`.

        Raises:
            NotNowError: the file cannot be decoded now.
        """
        moments = []
        try:
            read = read_video if image.is_video else read_frames
            for moment, frame in read(file, image.file, self._together):
                if stop.is_set():
                    raise StoppedError
                key = _key(digest, moment)
                if key not in squares:
                    squares[key] = self._runtime.preprocess.square(frame)
                if moment is not None:
                    moments.append(moment)
                    with suppress(ImageError, OSError):  # now, to avoid decoding it again
                        name = replace(image, moment=moment).thumbnail_name()
                        keep_thumbnail(frame, self.thumbnails / f"{name}.webp")
        except NotNowError:
            raise
        except ImageError as error:
            squares.clear()
            return Note(str(error).removeprefix(image.file))
        return Note(moments=tuple(moments))

    def _stored(self, frames: Mapping[Key, CollectionImage], space: str) -> dict[Key, np.ndarray]:
        """The features of images, or their sums, loaded or computed and stored."""

        def make(keys: Iterable[Key]) -> Iterable[np.ndarray]:
            return self._encode(self._squares(frames, keys), space).values()

        return self.store.cached(space, frames, make)

    def _squares(
        self, frames: Mapping[Key, CollectionImage], keys: Iterable[Key]
    ) -> dict[Key, Image.Image]:
        return {key: self._runtime.preprocess.square(open_frame(frames[key])) for key in keys}

    def _encode(
        self, squares: Mapping[Key, Image.Image], space: str, whole: bool = False
    ) -> dict[Key, np.ndarray]:
        """Features (N, d) of squares by key; sums (1, d) where they suffice, unless `whole`."""
        features, keys, method = dict[Key, np.ndarray](), list(squares), self._encoders[space]
        for start in range(0, len(keys), self._at_once):
            part = keys[start : start + self._at_once]
            some = [squares[key] for key in part]
            rows = self._runtime.square_features(some, method, alone=True)  # (B, N, d)
            if space in self._recent and not whole:
                rows = rows.sum(dim=1, keepdim=True)
            features |= zip(part, rows.cpu().numpy(), strict=True)
        return features

    def _space(self, method: str) -> str:
        """The store's space for the features of a method's image encoder, shared by packs."""
        info, file = self._runtime.info, self._runtime.image_encoder_of(method)
        parts = [asdict(info.preprocess), info.files[file].sha256 if file else None]
        if self._runtime.methods[method].features_add_up:
            parts.append("sum")
        return f"features {hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}"


def _key(digest: bytes, moment: Moment | None) -> bytes:
    """The key of an image's features: its file's, or that of a frame."""
    return digest if moment is None else digest + moment.frame.to_bytes(4, "little")
