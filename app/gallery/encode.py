"""Computes features and views of a collection's images and captions, and stores them.

Several threads read files in small groups. A thread looks up known files in the store, and decodes
and encodes the others. Meanwhile, the caller computes the views of earlier groups. Each thread
encodes its own images: threads that share an image wait for each other after every operator.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import chain, groupby
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyview.app.gallery.images import (
    ImageError,
    Stamp,
    decoder_versions,
    read_frames,
    suffix_of,
    to_image_error,
)
from polyview.app.gallery.scan import Collection, CollectionImage, StoppedError
from polyview.app.gallery.store import Content, Key, Store, Vectors
from polyview.app.gallery.video import VIDEOS, Moment
from polyview.export.runtime import Runtime
from polyview.models.views import pad_sets

MAX_BATCH = 16  # images of 224 x 224 that one thread encodes at once; fewer if they are larger
MAX_RECENT = 200  # images whose features stay in memory: 80 MB for CLIP ViT-B/16
_GROUPS_AHEAD = 8  # groups read ahead of the group whose views are computed

FileContent = tuple[CollectionImage, Content]  # a file and the result of reading it
Squares = dict[Key, Image.Image]  # input images of the encoder, by key in the store


class Encoder:
    """Encodes a collection with a pack, and stores the results.

    Views are stored under the checksum of the pack. Features are stored under the checksum of the
    image encoder, which packs may share. If a method reads only the sum of an image's features
    (`Method.features_add_up`), the store has only sums, and the latest features stay in memory.
    """

    def __init__(self, runtime: Runtime, collection: Collection, cache: Path) -> None:
        self._runtime, self._checksum = runtime, runtime.info.checksum
        self._frames_per_set = runtime.info.image_encoder.frames
        # one method for each space of features: methods with the same image encoder share a space
        self._method_by_space = {self._space(name): name for name in runtime.methods}
        methods = runtime.methods.items()
        self._sum_spaces = {self._space(name) for name, method in methods if method.features_add_up}
        self._batch_size = max(1, min(MAX_BATCH, MAX_BATCH * 224**2 // runtime.preprocess.size**2))
        # the folder of thumbnails; those of clip frames are written while clips are read
        self.thumbnails = cache / "thumbnails"
        folder_hash = hashlib.sha256(os.fsencode(collection.folder)).hexdigest()
        # identifies the encoders whose features are saved in one transaction with a file
        encoders_hash = hashlib.sha256("".join(sorted(self._method_by_space)).encode()).hexdigest()
        decoders = f"{decoder_versions()}, sets of {self._frames_per_set}"
        self.store = Store(cache / "galleries" / folder_hash[:24], encoders_hash[:24], decoders)
        self._digests: dict[str, bytes] = {}  # SHA-256 of files that were read, by name
        # features (N, d) of images of which only the sum is stored, by space and key, oldest first
        self._recent = dict[tuple[str, Key], np.ndarray]()
        self._lock = threading.Lock()  # guards `_recent`

    def read(
        self, images: Sequence[CollectionImage], stop: threading.Event
    ) -> Generator[list[FileContent]]:
        """Reads files, encodes new ones, and yields the results in order, a few at a time.

        The features of yielded files are stored. Raises StoppedError if `stop` is set before the
        last file is read.
        """
        on_cpu = self._runtime.device.type == "cpu"
        thread_count = self._runtime.threads if on_cpu else min(8, os.cpu_count() or 1)
        pool = ThreadPoolExecutor(thread_count, "encode")
        pending = deque[Future[list[FileContent]]]()
        try:
            for is_video, group in groupby(images, lambda image: suffix_of(image.file) in VIDEOS):
                files, size = list(group), 1 if is_video else self._batch_size
                for start in range(0, len(files), size):
                    pending.append(pool.submit(self._read, files[start : start + size], stop))
                    if len(pending) > _GROUPS_AHEAD:
                        yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def key(self, frames: Sequence[CollectionImage]) -> bytes:
        """Returns the store's key of an image, or of several frames of one clip.

        Raises ImageError if the file cannot be read.
        """
        digest = self._digests.get(frames[0].file)
        if digest is None:
            with frames[0].open() as file:
                digest = hashlib.file_digest(file, "sha256").digest()
        return _key(digest, *(frame.moment for frame in frames))

    def views(self, windows: Sequence[Sequence[CollectionImage]]) -> dict[str, Tensor]:
        """Returns views (n, V, D) of n >= 1 windows by method; computes and stores missing views.

        A window is one image, or several frames of a clip that are read as a set.
        """
        keys = [self.key(window) for window in windows]
        by_key = dict[Key, Sequence[CollectionImage]](zip(keys, windows, strict=True))

        @cache  # loads and pads the features of a space once for all methods that share it
        def padded_features(space: str, *missing_keys: Key) -> tuple[Tensor, Tensor]:
            missing = [by_key[key] for key in missing_keys]
            features = self._stored_features([*chain(*missing)], space)
            arrays = [[features[self.key([frame])] for frame in window] for window in missing]
            return pad_sets([torch.from_numpy(np.concatenate(parts)) for parts in arrays])

        def compute_views(missing_keys: Iterable[Key], method: str) -> np.ndarray:
            padded, mask = padded_features(self._space(method), *missing_keys)
            return self._runtime.image_views(padded, method, mask=mask).embeddings.cpu().numpy()

        views = {}
        for method in self._runtime.methods:
            space = f"views {method} {self._checksum}"
            vectors = self.store.cached(space, keys, partial(compute_views, method=method))
            views[method] = torch.from_numpy(np.stack([vectors[key] for key in keys]))
        return views

    def features(
        self, images: Sequence[CollectionImage], method: str, *, cached_only: bool = False
    ) -> dict[int, Tensor]:
        """Returns the features (N, d) that a method reads, by id of the image or clip frame.

        With `cached_only`, returns only features that are stored or in memory. Raises ImageError if
        an image cannot be read.
        """
        space, keys = self._space(method), {image.image_id: self.key([image]) for image in images}
        if space in self._sum_spaces:
            with self._lock:
                recent = dict(self._recent)
            arrays: Vectors = {k: recent[space, k] for k in keys.values() if (space, k) in recent}
            missing_images = [image for image in images if keys[image.image_id] not in arrays]
            squares = self._squares([] if cached_only else missing_images)
            new_arrays = self._encode(squares, space, allow_sums=False)
            arrays |= new_arrays
            with self._lock:
                self._recent |= {(space, key): array for key, array in new_arrays.items()}
                for oldest in list(self._recent)[:-MAX_RECENT]:
                    del self._recent[oldest]
        elif cached_only:
            arrays = self.store.load(space, keys.values())
        else:
            arrays = self._stored_features(images, space)
        return {i: torch.from_numpy(arrays[key].copy()) for i, key in keys.items() if key in arrays}

    def encode_captions(self, texts: Sequence[str], method: str) -> Tensor:
        """Returns a method's views (n, V, D) of n captions; computes and stores missing views."""

        def compute_views(missing_texts: Iterable[Key]) -> np.ndarray:
            views = self._runtime.text_views([str(text) for text in missing_texts], method)
            return views.embeddings.cpu().numpy()

        vectors = self.store.cached(f"captions {method} {self._checksum}", texts, compute_views)
        return torch.from_numpy(np.stack([vectors[text] for text in texts]))

    def _read(self, images: Sequence[CollectionImage], stop: threading.Event) -> list[FileContent]:
        """Reads a few files, and decodes, encodes and stores those that are new or changed."""
        if stop.is_set():
            raise StoppedError
        stamps = dict[str, Stamp]()
        for image in images:
            with suppress(OSError):  # `image.open` below reports the error
                stamps[image.file] = Stamp.of(image.path)
        known_contents, results = self.store.files(stamps), list[FileContent]()
        new_files, squares = dict[str, tuple[Stamp, int, Content]](), Squares()
        new_contents = dict[bytes, Content]()  # by SHA-256
        for image in images:
            try:
                if (content := known_contents.get(image.file)) is None:
                    with image.open() as file:
                        stamp, read_ns = Stamp.of(file), time.time_ns()
                        digest = hashlib.file_digest(file, "sha256").digest()
                        content = new_contents.get(digest) or self.store.content(digest)
                        file_squares = Squares()
                        if content is None:
                            content, file_squares = self._decode(image, file, digest, stop)
                        if Stamp.of(file) != stamp:
                            raise ImageError(f"{image.file} changed while it was read; start again")
                    new_files[image.file] = stamp, read_ns, content
                    new_contents[digest] = content
                    squares |= file_squares
                self._digests[image.file] = content.digest
            except (ImageError, OSError) as error:
                refusal = str(to_image_error(image.file, error)).removeprefix(image.file)
                content = Content(refusal=refusal)
            results.append((image, content))
        vectors = dict[str, Vectors]()
        for space in self._method_by_space if squares else ():
            stored_keys = self.store.load(space, squares).keys()
            new_squares = {key: square for key, square in squares.items() if key not in stored_keys}
            vectors[space] = self._encode(new_squares, space)
        self.store.save(vectors, new_files)
        return results

    def _decode(
        self, image: CollectionImage, file: BinaryIO, digest: bytes, stop: threading.Event
    ) -> tuple[Content, Squares]:
        """Decodes a file; returns its content, which may be a refusal, and the encoder's input.

        Raises ImageError if memory is short or reading fails: the file may be readable later.
        """
        moments, squares = [], Squares()
        try:
            for moment, frame in read_frames(file, image.file, self._frames_per_set):
                if stop.is_set():
                    raise StoppedError
                key = _key(digest, moment)
                if key not in squares:
                    squares[key] = self._runtime.preprocess.square(frame)
                if moment is not None:
                    moments.append(moment)
                    with suppress(ImageError, OSError):  # now, so that a clip is decoded once
                        replace(image, moment=moment).thumbnail(self.thumbnails, frame)
        except ImageError as error:
            cause = error.__cause__  # for damaged data, Pillow raises OSError without errno
            if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno):
                raise
            return Content(digest, str(error).removeprefix(image.file)), {}
        return Content(digest, moments=tuple(moments)), squares

    def _stored_features(self, images: Sequence[CollectionImage], space: str) -> Vectors:
        """Loads features (N, d) or sums (1, d) of images; computes and stores missing features."""
        by_key: dict[Key, CollectionImage] = {self.key([image]): image for image in images}

        def encode(keys: Iterable[Key]) -> Iterable[np.ndarray]:
            return self._encode(self._squares([by_key[key] for key in keys]), space).values()

        return self.store.cached(space, by_key, encode)

    def _squares(self, images: Sequence[CollectionImage]) -> Squares:
        """Decodes images; returns the encoder's input images by key."""
        preprocess = self._runtime.preprocess
        return {self.key([image]): preprocess.square(image.decode()) for image in images}

    def _encode(
        self, squares: Mapping[Key, Image.Image], space: str, allow_sums: bool = True
    ) -> Vectors:
        """Encodes squares to features (N, d), or to sums (1, d) in a space that stores sums."""
        vectors, keys, method = Vectors(), list(squares), self._method_by_space[space]
        for start in range(0, len(keys), self._batch_size):
            batch_keys = keys[start : start + self._batch_size]
            images = [squares[key] for key in batch_keys]
            rows = self._runtime.square_features(images, method, single_thread=True)  # (B, N, d)
            if allow_sums and space in self._sum_spaces:
                rows = rows.sum(dim=1, keepdim=True)  # (B, 1, d)
            vectors |= zip(batch_keys, rows.cpu().numpy(), strict=True)
        return vectors

    def _space(self, method: str) -> str:
        """Returns the name under which the store has the features of a method's image encoder."""
        info, file = self._runtime.info, self._runtime.image_encoder_of(method)
        fields = [asdict(info.preprocess), info.files[file].sha256 if file else None]
        if self._runtime.methods[method].features_add_up:
            fields.append("sum")
        return f"features {hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}"


def _key(digest: bytes, *moments: Moment | None) -> bytes:
    """Returns a key in the store: the SHA-256 of a file, then the frame numbers of `moments`."""
    return digest + b"".join(m.frame.to_bytes(4, "little") for m in moments if m is not None)
