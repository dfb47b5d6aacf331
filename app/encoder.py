"""A pack's runtime that remembers on disk what it has encoded for one collection."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from app.cache import Store, stack
from app.collection import Collection, Picture
from app.pictures import PictureError, open_picture
from export.runtime import Runtime
from models import Views

_DECODERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Refusal:
    """A file that was skipped, and why, in a sentence."""

    file: str
    reason: str


@dataclass(frozen=True)
class Encoded:
    """Pictures, their views by method (one row each), and the files that were refused."""

    pictures: list[Picture]
    views: dict[str, Views]
    refused: list[Refusal]


@dataclass(frozen=True)
class _Reading:
    """Features that are known, by encoder and picture key, and pictures that are being opened."""

    found: dict[str | None, dict[str, Tensor]]
    opening: dict[str, Future[Image.Image | Refusal]]


@dataclass(frozen=True)
class _Chunk:
    """Pictures by key, the refused, the views that are known by method, and what is missing."""

    keys: dict[str, Picture]
    refused: list[Refusal]
    views: dict[str, dict[str, Tensor]]
    reading: _Reading


class Encoder:
    """Features and views of a collection's pictures and captions, each computed once.

    The caches are keyed by the pack's checksum and, for pictures, by path, time of change and size.

    Args:
        runtime: the loaded pack.
        collection: whose pictures are encoded.
        cache: the user's cache folder.
    """

    def __init__(self, runtime: Runtime, collection: Collection, cache: Path) -> None:
        place = hashlib.sha256(str(collection.folder).encode()).hexdigest()
        root = cache / "encoded" / f"{runtime.info.checksum[:16]}-{place[:16]}"
        self._runtime = runtime
        self._readers = {runtime.image_encoder_of(name): name for name in runtime.methods}
        self._features = {
            file: Store(
                root / ("features" if file == runtime.info.image_encoder.file else str(file))
            )
            for file in self._readers
        }
        self._images = {name: Store(root / f"images-{name}") for name in runtime.methods}
        self._captions = {name: Store(root / f"captions-{name}") for name in runtime.methods}

    def encode_pictures(self, pictures: Sequence[Picture]) -> Encoded:
        """Every method's views of pictures; files that cannot be used are left out and named."""
        (encoded,) = self.encode_each([pictures])
        return encoded

    def encode_each(self, chunks: Iterable[Sequence[Picture]]) -> Generator[Encoded]:
        """As `encode_pictures` of each chunk, opening the next one while one is encoded."""
        pool = ThreadPoolExecutor(_DECODERS)
        before: _Chunk | None = None
        try:
            for pictures in chunks:
                chunk = self._begin(pictures, pool)
                if before is not None:
                    yield self._finish(before)
                before = chunk
            if before is not None:
                yield self._finish(before)
        finally:
            pool.shutdown(cancel_futures=True)

    def _begin(self, pictures: Sequence[Picture], pool: ThreadPoolExecutor) -> _Chunk:
        keys, refused = _keys(pictures)
        views = {name: store.load(keys) for name, store in self._images.items()}
        missing = [key for key in keys if any(key not in found for found in views.values())]
        wanted = {key: keys[key] for key in missing}
        return _Chunk(keys, refused, views, self._opening(wanted, list(self._readers), pool))

    def _finish(self, chunk: _Chunk) -> Encoded:
        read, damaged = self._read(chunk.reading)
        for file, features in read.items():
            if not features:
                continue
            rows = torch.stack(list(features.values()))  # (B, N, d)
            for name, found in chunk.views.items():
                if self._runtime.image_encoder_of(name) == file:
                    views = self._runtime.image_views(rows, name).embeddings.cpu()  # (B, V, D)
                    self._images[name].save(list(features), views)
                    found.update(zip(features, views, strict=True))
        kept = [key for key in chunk.keys if all(key in found for found in chunk.views.values())]
        views_by_method = {
            name: Views(stack(found, kept)) for name, found in chunk.views.items() if kept
        }
        return Encoded([chunk.keys[key] for key in kept], views_by_method, chunk.refused + damaged)

    def features(
        self, pictures: Sequence[Picture], method: str
    ) -> tuple[dict[str, Tensor], list[Refusal]]:
        """What a method reads of pictures, and which were refused.

        Args:
            pictures: of the collection.
            method: its image encoder gives the features.

        Returns:
            Features (N, d) by picture key, from the cache or the files; and the refused.
        """
        file = self._runtime.image_encoder_of(method)
        keys, refused = _keys(pictures)
        with ThreadPoolExecutor(_DECODERS) as pool:
            read, damaged = self._read(self._opening(keys, [file], pool))
        return read[file], refused + damaged

    def _opening(
        self,
        keys: dict[str, Picture],
        encoders: Sequence[str | None],
        pool: ThreadPoolExecutor,
    ) -> _Reading:
        """Begins to open what is not cached; each picture is opened once for all encoders."""
        found = {file: self._features[file].load(keys) for file in encoders}
        missing = [key for key in keys if any(key not in part for part in found.values())]
        return _Reading(found, {key: pool.submit(self._open, keys[key]) for key in missing})

    def _read(self, reading: _Reading) -> tuple[dict[str | None, dict[str, Tensor]], list[Refusal]]:
        """Features by encoder and picture key, and the refused."""
        squares: dict[str, Image.Image] = {}
        refused = []
        for key, waiting in reading.opening.items():
            result = waiting.result()
            if isinstance(result, Refusal):
                refused.append(result)
            else:
                squares[key] = result
        for file, part in reading.found.items():
            new = [key for key in squares if key not in part]
            if new:
                opened, name = [squares[key] for key in new], self._readers[file]
                fresh = self._runtime.square_features(opened, name).cpu()  # (B, N, d)
                self._features[file].save(new, fresh)
                part.update(zip(new, fresh, strict=True))
        return reading.found, refused

    def encode_captions(self, texts: Sequence[str], method: str) -> Views:
        """A method's views of sentences."""
        store = self._captions[method]
        found = store.load(texts)
        missing = list(dict.fromkeys(text for text in texts if text not in found))
        if missing:
            views = self._runtime.text_views(missing, method).embeddings.cpu()  # (B, V, D)
            store.save(missing, views)
            found.update(zip(missing, views, strict=True))
        return Views(stack(found, texts))

    def prune(self, pictures: Sequence[Picture]) -> None:
        """Forgets what is kept of files that have changed or are gone."""
        keys, _ = _keys(pictures)
        for store in (*self._features.values(), *self._images.values()):
            store.prune(keys)

    def _open(self, picture: Picture) -> Image.Image | Refusal:
        """The square that the encoder sees, which is small enough to hold many of."""
        try:
            opened = open_picture(picture.path, picture.file)
            return self._runtime.preprocess.square(opened)
        except (PictureError, OSError) as error:
            return Refusal(picture.file, str(error))


def _keys(pictures: Sequence[Picture]) -> tuple[dict[str, Picture], list[Refusal]]:
    """Pictures by key, and those whose file is gone."""
    keys: dict[str, Picture] = {}
    gone = []
    for picture in pictures:
        try:
            keys[picture.key()] = picture
        except OSError:
            gone.append(Refusal(picture.file, f"{picture.file} is not there any more"))
    return keys, gone
