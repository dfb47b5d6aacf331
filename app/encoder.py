"""A pack's runtime that remembers on disk what it has encoded for one collection.

A picture's way: its file is read and known by its SHA-256 (`_look`), decoded where something of it
is missing (`_open`), encoded (`_read`), and its views are made and kept (`_finish`). The four
overlap, a chunk of pictures behind the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from app.catalogue import Catalogue, Contents, Key, Stamp
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
    """Pictures, the SHA-256 of each one's file, their views by method, and the refused files."""

    pictures: list[Picture]
    digests: list[bytes]
    views: dict[str, Views]
    refused: list[Refusal]


@dataclass(frozen=True)
class _Looked:
    """Pictures with what is in their files, the refused, and the known rows by space."""

    pictures: list[tuple[Picture, Contents]]
    refused: list[Refusal]
    found: dict[str, dict[Key, np.ndarray]]


@dataclass(frozen=True)
class _Opened:
    """The same, and pictures that are being opened, by digest."""

    looked: _Looked
    opening: dict[bytes, Future[Image.Image | Refusal]]


class Encoder:
    """Features and views of a collection's pictures and captions, each computed once.

    What was computed is kept in a `Catalogue` of the collection's folder: views under the pack's
    checksum, features under that of the image encoder, which packs may share.

    Args:
        runtime: the loaded pack.
        collection: whose pictures are encoded.
        cache: the user's cache folder.
    """

    def __init__(self, runtime: Runtime, collection: Collection, cache: Path) -> None:
        place = hashlib.sha256(os.fsencode(collection.folder)).hexdigest()
        self._catalogue = Catalogue(cache / "galleries" / place[:24])
        self._runtime = runtime
        self._root = collection.folder
        self._readers = {runtime.image_encoder_of(name): name for name in runtime.methods}
        self._features = {file: _features_space(runtime, file) for file in self._readers}
        checksum = runtime.info.checksum
        self._views = {name: f"views {name} {checksum}" for name in runtime.methods}
        self._captions = {name: f"captions {name} {checksum}" for name in runtime.methods}

    def encode_pictures(self, pictures: Sequence[Picture]) -> Encoded:
        """Every method's views of pictures; files that cannot be used are left out and named."""
        (encoded,) = self.encode_each([pictures])
        return encoded

    def encode_each(self, chunks: Iterable[Sequence[Picture]]) -> Generator[Encoded]:
        """As `encode_pictures` of each chunk, reading later ones while one is encoded.

        What is yielded is on the disk.
        """
        pool, disk, heads = (ThreadPoolExecutor(count) for count in (_DECODERS, 1, 1))
        looking: Future[_Looked] | None = None
        opened: _Opened | None = None
        writing: Future[Encoded] | None = None
        try:
            for pictures in chain(chunks, [None] * 3):  # three steps behind, the last one is done
                ahead = None if looking is None else self._opening(looking.result(), pool)
                looking = None if pictures is None else disk.submit(self._look, pictures)
                done = None if opened is None else self._encode(opened, heads)
                if writing is not None:
                    yield writing.result()
                opened, writing = ahead, done
        finally:
            pool.shutdown(cancel_futures=True)
            disk.shutdown()
            heads.shutdown()

    def features(
        self, pictures: Sequence[Picture], method: str
    ) -> tuple[dict[int, Tensor], list[Refusal]]:
        """What a method reads of pictures, and which were refused.

        Args:
            pictures: of the collection.
            method: its image encoder gives the features.

        Returns:
            Features (N, d) by a picture's id, in the order given; and the refused.
        """
        file = self._runtime.image_encoder_of(method)
        space = self._features[file]
        with ThreadPoolExecutor(_DECODERS) as pool:
            looked = self._identify(pictures)
            looked.found[space] = self._catalogue.load(space, _digests(looked))
            opening = self._open_missing(looked, _missing(looked, [space]), pool)
            read, refused = self._read(_Opened(looked, opening), [file])
        self._catalogue.save(read)
        found = looked.found[space]
        return {
            picture.image_id: torch.from_numpy(found[contents.digest])
            for picture, contents in looked.pictures
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

    def prune(self, pictures: Sequence[Picture]) -> None:
        """Forgets what is kept of pictures whose files are gone or have changed.

        Args:
            pictures: the whole collection.
        """
        self._catalogue.prune(self._root, [picture.file for picture in pictures])

    def close(self) -> None:
        """Lets go of the files on disk until something is asked again."""
        self._catalogue.close()

    def _identify(self, pictures: Sequence[Picture]) -> _Looked:
        """Finds out what is in files; those that have not changed are not read again."""
        stamps: dict[str, Stamp] = {}
        read: dict[str, Contents] = {}
        refused: dict[str, Refusal] = {}
        for picture in pictures:
            try:
                stamps[picture.file] = Stamp.of(picture.path)
            except OSError as error:
                refused[picture.file] = _unreadable(picture, error)
        known = self._catalogue.digests(stamps)
        for picture in pictures:
            if picture.file in known or picture.file in refused:
                continue
            try:
                read[picture.file] = Contents.of(picture.path)
            except OSError as error:
                refused[picture.file] = _unreadable(picture, error)
        self._catalogue.record(read)
        read |= {file: Contents(digest, stamps[file], 0) for file, digest in known.items()}
        there = [(picture, read[picture.file]) for picture in pictures if picture.file in read]
        return _Looked(there, list(refused.values()), {})

    def _look(self, pictures: Sequence[Picture]) -> _Looked:
        """What is in the files, and what is known of it: all views, or features to make them of."""
        looked = self._identify(pictures)
        digests = _digests(looked)
        for space in self._views.values():
            looked.found[space] = self._catalogue.load(space, digests)
        missing = _missing(looked, self._views.values())
        for space in self._features.values():
            looked.found[space] = self._catalogue.load(space, missing)
        return looked

    def _opening(self, looked: _Looked, pool: ThreadPoolExecutor) -> _Opened:
        """Begins to open what views are made of; each picture is opened once for all encoders."""
        wanted = set(_missing(looked, self._views.values()))
        lacking = [d for d in _missing(looked, self._features.values()) if d in wanted]
        return _Opened(looked, self._open_missing(looked, lacking, pool))

    def _open_missing(
        self, looked: _Looked, digests: Sequence[bytes], pool: ThreadPoolExecutor
    ) -> dict[bytes, Future[Image.Image | Refusal]]:
        first = {
            contents.digest: (picture, contents) for picture, contents in looked.pictures[::-1]
        }
        return {d: pool.submit(self._open, first[d][0], first[d][1].stamp) for d in digests}

    def _open(self, picture: Picture, stamp: Stamp) -> Image.Image | Refusal:
        """The square that the encoder sees, which is small enough to hold many of."""
        try:
            square = self._runtime.preprocess.square(open_picture(picture.path, picture.file))
            if Stamp.of(picture.path) == stamp:
                return square
            return Refusal(picture.file, f"{picture.file} changed while it was read; start again")
        except PictureError as error:
            return Refusal(picture.file, str(error))
        except OSError as error:
            return _unreadable(picture, error)

    def _read(
        self, opened: _Opened, files: Iterable[str | None]
    ) -> tuple[dict[str, tuple[Sequence[Key], np.ndarray]], list[Refusal]]:
        """Features by space that are new, also added to what is known; and the refused."""
        squares: dict[bytes, Image.Image] = {}
        reasons: dict[bytes, Refusal] = {}
        for digest, waiting in opened.opening.items():
            result = waiting.result()
            if isinstance(result, Refusal):
                reasons[digest] = result
            else:
                squares[digest] = result
        fresh: dict[str, tuple[Sequence[Key], np.ndarray]] = {}
        for file in files:
            space = self._features[file]
            found = opened.looked.found[space]
            new = [digest for digest in squares if digest not in found]
            if new:
                seen = [squares[digest] for digest in new]
                rows = self._runtime.square_features(seen, self._readers[file]).cpu().numpy()
                fresh[space] = (new, rows)  # (B, N, d)
                found.update(zip(new, rows, strict=True))
        copies = [
            Refusal(p.file, reasons[c.digest].reason.replace(reasons[c.digest].file, p.file))
            for p, c in opened.looked.pictures
            if c.digest in reasons
        ]
        return fresh, opened.looked.refused + copies

    def _encode(self, opened: _Opened, heads: ThreadPoolExecutor) -> Future[Encoded]:
        """Encodes what is missing, and begins to make views of it and to write them."""
        fresh, refused = self._read(opened, self._features)
        return heads.submit(self._finish, opened.looked, fresh, refused)

    def _finish(
        self,
        looked: _Looked,
        fresh: dict[str, tuple[Sequence[Key], np.ndarray]],
        refused: list[Refusal],
    ) -> Encoded:
        """Makes the views that are missing, and writes them with the features they came of."""
        found = looked.found
        for name, space in self._views.items():
            features = found[self._features[self._runtime.image_encoder_of(name)]]
            new = [d for d in _missing(looked, [space]) if d in features]
            if new:
                rows = torch.from_numpy(np.stack([features[digest] for digest in new]))  # (B, N, d)
                views = self._runtime.image_views(rows, name).embeddings.cpu().numpy()  # (B, V, D)
                fresh[space] = (new, views)
                found[space].update(zip(new, views, strict=True))
        self._catalogue.save(fresh)
        lacking = set(_missing(looked, self._views.values()))
        kept = [(p, c.digest) for p, c in looked.pictures if c.digest not in lacking]
        digests = [digest for _, digest in kept]
        views_by_method = {
            name: Views(torch.from_numpy(np.stack([found[space][d] for d in digests])))
            for name, space in self._views.items()
            if kept
        }
        return Encoded([p for p, _ in kept], digests, views_by_method, refused)


def _features_space(runtime: Runtime, file: str | None) -> str:
    """Where features of an image encoder are kept, whichever pack it is in."""
    about = [asdict(runtime.info.preprocess), runtime.info.files[file].sha256 if file else None]
    return f"features {hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()}"


def _digests(looked: _Looked) -> list[bytes]:
    return list(dict.fromkeys(contents.digest for _, contents in looked.pictures))


def _missing(looked: _Looked, spaces: Iterable[str]) -> list[bytes]:
    """Digests that one of the spaces has no row of."""
    parts = [looked.found[space] for space in spaces]
    return [digest for digest in _digests(looked) if any(digest not in part for part in parts)]


def _unreadable(picture: Picture, error: OSError) -> Refusal:
    if isinstance(error, FileNotFoundError):
        return Refusal(picture.file, f"{picture.file} is not there any more")
    return Refusal(picture.file, f"{picture.file} cannot be read ({error.strerror})")
