"""Computes features and views of a collection's images and captions, and stores them.

Files are processed in chunks: known ones are looked up in the store; others are read, decoded and
encoded by a few threads while the views of earlier chunks are computed and saved. Each thread works
on its own images, because threads that share an image wait for each other after every operator.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.gallery.images import (
    ImageError,
    NotNowError,
    Refusal,
    Stamp,
    read_frames,
    reader,
    unreadable,
)
from polyview.app.gallery.scan import Collection, CollectionImage, StoppedError
from polyview.app.gallery.store import Key, Note, Recent, Store, Vectors
from polyview.app.gallery.thumbnails import keep_thumbnail
from polyview.app.gallery.video import open_frame, read_video, windows
from polyview.app.gallery.video_decoder import Moment
from polyview.export.runtime import Runtime
from polyview.models.views import pad_sets

CHUNK = 64  # files
SHARD = 16  # images of 224 x 224 that one thread encodes at once; fewer larger ones
_AHEAD = 2  # chunks read ahead while the views of another are computed
_PIECE = 2**20  # bytes of a file read at once


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


@dataclass
class Chunk:
    """A chunk of a collection's files and their content.

    Attributes:
        images: the files.
        digests: the SHA-256 of each readable file, by its name.
        notes: the notes about files, by SHA-256.
        reasons: why files cannot be used, by name.
        rows: rows of the galleries, in the order of the files.
        clips: the moments of each clip's frames, by the clip's id.
    """

    images: Sequence[CollectionImage]
    digests: dict[str, bytes] = field(default_factory=dict)
    notes: dict[bytes, Note] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    clips: dict[int, tuple[Moment, ...]] = field(default_factory=dict)

    @property
    def refused(self) -> list[Refusal]:
        """The files that cannot be used, in order."""
        files = [image.file for image in self.images]
        return [Refusal(file, self.reasons[file]) for file in files if file in self.reasons]


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
        thumbnails: a folder for thumbnails of clip frames, made while clips are read; or None.
    """

    def __init__(
        self, runtime: Runtime, collection: Collection, cache: Path, thumbnails: Path | None = None
    ) -> None:
        place = hashlib.sha256(os.fsencode(collection.folder)).hexdigest()
        self.folder = cache / "galleries" / place[:24]
        self.store, self._recent = Store(self.folder), Recent()
        self._runtime, self._collection, self._thumbnails = runtime, collection, thumbnails
        self._checksum = runtime.info.checksum
        self._together = runtime.info.image_encoder.frames
        self._reader = f"{reader()}, sets of {self._together}"
        # for each image encoder's space, one method that uses the encoder
        self._encoders = {self._space(name): name for name in runtime.methods}
        self._at_once = max(1, min(SHARD, SHARD * 224**2 // runtime.preprocess.size**2))

    def read(self, images: Sequence[CollectionImage], stop: threading.Event) -> Generator[Chunk]:
        """Reads files and encodes new ones, a chunk at a time, in order.

        The features of a yielded chunk are on disk.

        Args:
            images: of the collection.
            stop: ends the reading when set.

        Raises:
            StoppedError: `stop` was set before everything was read.
        """
        on_cpu = self._runtime.device.type == "cpu"
        threads = self._runtime.threads if on_cpu else min(8, os.cpu_count() or 1)
        pending: deque[tuple[Chunk, list[Future[None]]]] = deque()
        crew = ThreadPoolExecutor(threads, "encode")
        try:
            for start in range(0, len(images), CHUNK):
                if stop.is_set():
                    raise StoppedError
                chunk = Chunk(images[start : start + CHUNK])
                shards = self._shards(self._look_up(chunk))
                reading = [crew.submit(self._read, chunk, shard, stop) for shard in shards]
                pending.append((chunk, reading))
                while len(pending) > _AHEAD or (pending and not pending[0][1]):
                    yield self._collect(*pending.popleft())
            while pending:
                yield self._collect(*pending.popleft())
        finally:
            crew.shutdown(cancel_futures=True)

    def views(
        self, rows: Sequence[Row], methods: Sequence[str]
    ) -> dict[str, tuple[list[int], Tensor]]:
        """Ids and views (n, V, D) of rows by method, loaded or computed and stored.

        Rows whose features are no longer stored are left out.
        """
        views, features = dict[str, tuple[list[int], Tensor]](), Vectors()
        for name in methods if rows else ():
            space, source = f"views {name} {self._checksum}", self._space(name)
            known = self.store.load(space, [row.key for row in rows])
            new = {row.key: row for row in rows if row.key not in known}
            if new and source not in features:
                parts = [part for row in rows for part in row.parts]
                features[source] = self.store.load(source, parts)
            sets = {
                key: torch.from_numpy(np.concatenate([features[source][one] for one in row.parts]))
                for key, row in new.items()
                if features[source].keys() >= set(row.parts)
            }
            if sets:
                padded, mask = pad_sets(list(sets.values()))  # (B, N, d), (B, N)
                made = self._runtime.image_views(padded, name, mask=mask).embeddings.cpu().numpy()
                known |= self._keep(space, sets, made)
            ids = [row.image_id for row in rows if row.key in known]
            if ids:
                stacked = np.stack([known[row.key] for row in rows if row.key in known])
                views[name] = ids, torch.from_numpy(stacked)
        return views

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
        stamps = dict[str, Stamp]()
        for image in images:
            with suppress(OSError):  # opening it reports the reason
                stamps[image.file] = Stamp.of(image.path)
        digests = self.store.digests(stamps)
        for image in images:
            if image.file not in digests:
                with image.open() as file:
                    digests[image.file] = _digest(file, threading.Event())
        keys = {image.image_id: _key(digests[image.file], image.moment) for image in images}
        space = self._space(method)
        store = self._recent if self._runtime.methods[method].features_add_up else self.store
        known = store.load(space, keys.values())
        missing = [] if at_hand else [one for one in images if keys[one.image_id] not in known]
        for start in range(0, len(missing), self._at_once):
            part = missing[start : start + self._at_once]
            square = self._runtime.preprocess.square
            squares: dict[Key, Image.Image] = {
                keys[image.image_id]: square(open_frame(image)) for image in part
            }
            fresh = self._encode(squares, space)
            store.save({space: fresh})
            known |= fresh
        return {i: torch.from_numpy(known[key].copy()) for i, key in keys.items() if key in known}

    def encode_captions(self, texts: Sequence[str], method: str) -> Tensor:
        """A method's views (n, V, D) of sentences."""
        space = f"captions {method} {self._checksum}"
        known = self.store.load(space, texts)
        missing = list(dict.fromkeys(text for text in texts if text not in known))
        if missing:
            views = self._runtime.text_views(missing, method).embeddings  # (B, V, D)
            known |= self._keep(space, missing, views.cpu().numpy())
        return torch.from_numpy(np.stack([known[text] for text in texts]))

    def _keep(self, space: str, keys: Iterable[Key], rows: np.ndarray) -> dict[Key, np.ndarray]:
        """Stores an array for each key and returns them by key."""
        fresh = dict(zip(keys, rows, strict=True))
        self.store.save({space: fresh})
        return fresh

    def _look_up(self, chunk: Chunk) -> list[CollectionImage]:
        """Adds the stored notes about files; returns the files that must be read."""
        stamps = dict[str, Stamp]()
        for image in chunk.images:
            try:
                stamps[image.file] = Stamp.of(image.path)
            except OSError as error:
                chunk.reasons[image.file] = str(unreadable(image.file, error))
        chunk.digests |= self.store.digests(stamps)
        chunk.notes |= self._known(chunk.digests.values())
        known = {file for file, digest in chunk.digests.items() if digest in chunk.notes}
        return [one for one in chunk.images if one.file in stamps.keys() - known]

    def _known(self, digests: Iterable[bytes]) -> dict[bytes, Note]:
        """Notes about files that need not be decoded: refused, or with all features stored."""
        notes = self.store.notes(digests, self._reader)
        parts = {digest: _parts(digest, note) for digest, note in notes.items()}
        for space in self._encoders:
            known = self.store.known(space, [key for keys in parts.values() for key in keys])
            for digest, note in list(notes.items()):
                if not note.refusal and not known.issuperset(parts[digest]):
                    del notes[digest]
        return notes

    def _shards(self, images: Sequence[CollectionImage]) -> list[list[CollectionImage]]:
        """Groups of files for one thread each; a video is a group of its own."""
        stills = [image for image in images if not image.is_video]
        starts = range(0, len(stills), self._at_once)
        shards = [stills[start : start + self._at_once] for start in starts]
        return shards + [[image] for image in images if image.is_video]

    def _read(self, chunk: Chunk, images: Sequence[CollectionImage], stop: threading.Event) -> None:
        """Reads, decodes, encodes and stores a few files of a chunk."""
        squares = dict[Key, Image.Image]()
        files, notes = dict[str, tuple[Stamp, int, bytes]](), dict[bytes, Note]()
        for image in images:
            try:
                with image.open() as file:
                    stamp, now = Stamp.of(file), time.time_ns()
                    digest = _digest(file, stop)
                    note = notes.get(digest) or self._known([digest]).get(digest)
                    own: dict[Key, Image.Image] = {}
                    if note is None:
                        note = self._decode(image, file, digest, own, stop)
                    if Stamp.of(file) != stamp:
                        raise NotNowError(f"{image.file} changed while it was read; start again")
            except (ImageError, OSError) as error:
                sentence = error if isinstance(error, ImageError) else unreadable(image.file, error)
                chunk.reasons[image.file] = str(sentence)
                continue
            files[image.file], notes[digest] = (stamp, now, digest), note
            squares |= own
        vectors = Vectors()
        for space in self._encoders:
            known = self.store.known(space, squares)
            new = {key: square for key, square in squares.items() if key not in known}
            vectors[space] = self._encode(new, space)
            if self._runtime.methods[self._encoders[space]].features_add_up:
                sums = {key: rows.sum(0, keepdims=True) for key, rows in vectors[space].items()}
                vectors[space] = sums  # (1, d)
        self.store.save(vectors, files, notes, self._reader)
        chunk.digests |= {file: digest for file, (_, _, digest) in files.items()}
        chunk.notes |= notes

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
                    if self._thumbnails is not None:  # now, to avoid decoding it again
                        with suppress(ImageError, OSError):
                            name = replace(image, moment=moment).thumbnail_name()
                            keep_thumbnail(frame, self._thumbnails / f"{name}.webp")
        except NotNowError:
            raise
        except ImageError as error:
            squares.clear()
            return Note(str(error).removeprefix(image.file))
        return Note(moments=tuple(moments))

    def _encode(self, squares: dict[Key, Image.Image], space: str) -> dict[Key, np.ndarray]:
        """Features (N, d) of squares by key."""
        features, keys = dict[Key, np.ndarray](), list(squares)
        for start in range(0, len(keys), self._at_once):
            part = keys[start : start + self._at_once]
            seen, method = [squares[key] for key in part], self._encoders[space]
            rows = self._runtime.square_features(seen, method, alone=True).cpu().numpy()
            features |= zip(part, rows, strict=True)  # (N, d)
        return features

    def _collect(self, chunk: Chunk, reading: Iterable[Future[None]]) -> Chunk:
        """Waits until a chunk is read, and sets its rows."""
        for future in reading:
            future.result()
        for image in chunk.images:
            digest = chunk.digests.get(image.file)
            if digest is None or image.file in chunk.reasons:
                continue
            note = chunk.notes[digest]
            if note.refusal:
                chunk.reasons[image.file] = image.file + note.refusal
            elif not note.moments:
                chunk.rows.append(Row(digest, (image,)))
            else:
                chunk.clips[image.image_id] = note.moments
                frames = [self._collection.frame(image, *one) for one in enumerate(note.moments)]
                for window in windows(len(frames), self._together):
                    chunk.rows.append(Row(digest, tuple(frames[i] for i in window)))
        return chunk

    def _space(self, method: str) -> str:
        """The store's space for the features of a method's image encoder, shared by packs."""
        info, file = self._runtime.info, self._runtime.image_encoder_of(method)
        about = [asdict(info.preprocess), info.files[file].sha256 if file else None]
        if self._runtime.methods[method].features_add_up:
            about.append("sum")
        return f"features {hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()}"


def _key(digest: bytes, moment: Moment | None) -> bytes:
    return digest if moment is None else digest + moment.frame.to_bytes(4, "little")


def _parts(digest: bytes, note: Note) -> list[bytes]:
    """The keys of the images in a file."""
    return [_key(digest, moment) for moment in note.moments] or [digest]


def _digest(file: BinaryIO, stop: threading.Event) -> bytes:
    """The SHA-256 of an open file."""
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        if stop.is_set():
            raise StoppedError
        digest.update(piece)
    return digest.digest()
