"""A pack's runtime that remembers on disk what it has encoded for one collection."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
        keys, refused = _keys(pictures)
        stored = {name: store.load(keys) for name, store in self._images.items()}
        missing = [key for key in keys if any(key not in found for found in stored.values())]
        read, damaged = self._read([keys[key] for key in missing], list(self._readers))
        refused += damaged
        for file, features in read.items():
            if not features:
                continue
            rows = torch.stack(list(features.values()))  # (B, N, d)
            for name, found in stored.items():
                if self._runtime.image_encoder_of(name) == file:
                    views = self._runtime.image_views(rows, name).embeddings.cpu()  # (B, V, D)
                    self._images[name].save(list(features), views)
                    found.update(zip(features, views, strict=True))
        kept = [key for key in keys if all(key in found for found in stored.values())]
        views_by_method = {
            name: Views(stack(found, kept)) for name, found in stored.items() if kept
        }
        return Encoded([keys[key] for key in kept], views_by_method, refused)

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
        read, refused = self._read(pictures, [file])
        return read[file], refused

    def _read(
        self, pictures: Sequence[Picture], encoders: Sequence[str | None]
    ) -> tuple[dict[str | None, dict[str, Tensor]], list[Refusal]]:
        """Features by encoder and picture key; each picture is opened once for all encoders."""
        keys, refused = _keys(pictures)
        found = {file: self._features[file].load(keys) for file in encoders}
        missing = [key for key in keys if any(key not in part for part in found.values())]
        with ThreadPoolExecutor(_DECODERS) as pool:
            opened = list(pool.map(self._open, [keys[key] for key in missing]))
        squares = {}
        for key, result in zip(missing, opened, strict=True):
            if isinstance(result, Refusal):
                refused.append(result)
            else:
                squares[key] = result
        for file, part in found.items():
            new = [key for key in squares if key not in part]
            if new:
                opened_now, name = [squares[key] for key in new], self._readers[file]
                fresh = self._runtime.square_features(opened_now, name).cpu()  # (B, N, d)
                self._features[file].save(new, fresh)
                part.update(zip(new, fresh, strict=True))
        return {
            file: {key: part[key] for key in keys if key in part} for file, part in found.items()
        }, refused

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
