"""Lists the images of a pack, a folder, a ZIP archive or an upload."""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import shutil
import stat
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import BufferedReader
from pathlib import Path, PurePath, PurePosixPath
from threading import Event

from filelock import FileLock
from PIL import Image

from polyview.app.gallery.images import (
    SUFFIXES,
    ImageError,
    RefusedFile,
    Stamp,
    decode,
    open_file,
    outside_link_error,
    reason,
    suffix_of,
    to_image_error,
)
from polyview.app.gallery.video import Moment
from polyview.export.pack.gallery import GalleryImage, load_gallery
from polyview.export.pack.schema import FOLDER
from polyview.models.files import replacing, replacing_folder

MAX_ENTRIES = 50_000  # entries of a ZIP archive
THUMBNAIL_SIDE = 320  # pixels of the longer side
THUMBNAILS_BYTES = 2_000_000_000  # above this, the least recently used thumbnails are deleted
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)  # of damaged archives
_MAX_RATIO = 200  # maximum unpacked bytes for each packed byte of the images in an archive
_ANY_RATIO_BYTES = 16 * 2**20  # unpacked bytes up to which any ratio is allowed
_MIN_FREE_BYTES = 2**30  # bytes that must stay free on the disk
_UNUSED_SECONDS = 90 * 24 * 3600.0  # time after which an unpacked archive is deleted
_MAX_NAME = 300  # characters of a folder's name in a message
_TOUCH_INTERVAL = 24 * 3600.0  # seconds between updates of a thumbnail's last use
_SUPPORTED = ", ".join(sorted(SUFFIXES))


class StoppedError(Exception):
    """The operation was stopped on request."""


@dataclass(frozen=True)
class CollectionImage:
    """An image (a file or a frame of a clip) and its metadata."""

    image_id: int  # the index in the collection; for further frames of a clip, see `Clips`
    path: Path  # the path of the file; of a frame, the path of its clip
    file: str  # the path relative to the collection's folder; shown to visitors
    captions: tuple[str, ...] = ()  # sentences that describe the image
    objects: tuple[str, ...] = ()  # names of the objects in the image
    truth: GalleryImage | None = None  # the ground truth of a rendered image
    root: Path | None = None  # the resolved folder that links may not lead out of (None: no limit)
    moment: Moment | None = None  # the position of a frame in its clip; None for a whole file
    # the facts of an image in Qdrant, whose file is opened only within `root`; None elsewhere
    stored_facts: Mapping[str, str] | None = None

    @property
    def facts(self) -> dict[str, str]:
        """The facts by which images can be filtered, such as {"folder": "beach"}."""
        if self.stored_facts is not None:
            return dict(self.stored_facts)
        if self.truth is None:
            folder, _, _ = self.file.rpartition("/")
            return {"folder": folder} if folder else {}
        facts = {name: getattr(self.truth, name) for name in ("setting", "time", "weather")}
        return {name: value for name, value in facts.items() if value}

    def require_file(self) -> CollectionImage:
        """Returns this image; raises ImageError if it is only in Qdrant, without a local file."""
        if self.stored_facts is None or (self.root is not None and self.path.is_file()):
            return self
        raise ImageError(
            f"{self.file} is indexed, but its file cannot be reached from this machine; mount the "
            "folder it was migrated from, and name it with ?pictures=DIR in the gallery's address"
        )

    def open(self) -> BufferedReader:
        """Opens the file; raises ImageError if this fails."""
        self.require_file()
        return open_file(self.path, self.file, self.root)

    def decode(self) -> Image.Image:
        """Decodes the image, or the frame of a clip at `moment` (the first frame for None).

        Raises ImageError if the file cannot be opened or decoded.
        """
        with self.open() as file:
            return decode(file, self.file, self.moment)

    def thumbnail(self, folder: Path, decoded_image: Image.Image | None = None) -> Path:
        """Returns the path of the thumbnail, a WebP file in `folder`; writes a missing thumbnail.

        The thumbnail's name depends on the file's path and `Stamp`, and does not reveal the path.
        If `decoded_image` is given, it is shrunk in place, and its thumbnail replaces an existing
        one. Raises ImageError if the image cannot be opened or the thumbnail cannot be written, and
        OSError if the file does not exist.
        """
        self.require_file()
        frame = f"|{self.moment.frame}" if self.moment else ""
        key = f"{self.path}|{Stamp.of(self.path)}{frame}"
        thumbnail = folder / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:24]}.webp"
        if decoded_image is None:
            with suppress(OSError):
                if time.time() - thumbnail.stat().st_mtime > _TOUCH_INTERVAL:
                    os.utime(thumbnail)
                return thumbnail
            decoded_image = self.decode()
        decoded_image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        try:
            with replacing(thumbnail) as draft:
                decoded_image.save(draft, "WEBP", quality=82, method=2)  # method 4 is half as fast
        except OSError as error:
            raise ImageError(
                f"thumbnails cannot be written ({reason(error)}); make room in the cache folder, "
                "or set POLYVIEW_CACHE to another disk"
            ) from error
        return thumbnail


@dataclass(frozen=True)
class Collection:
    """Images in a fixed order."""

    title: str  # shown to users
    folder: Path  # the folder of the images
    images: tuple[CollectionImage, ...]  # images[i].image_id == i
    left_out: tuple[RefusedFile, ...] = ()  # folders and files that are left out, with reasons

    def file_id(self, image_id: int) -> int:
        """Returns the index in `images` of the file that contains an image or a frame of a clip."""
        return image_id % len(self.images)

    def comes_with(self, pack: Path) -> bool:
        """Returns True if the images are those in a pack's folder."""
        return self.folder == (pack / FOLDER).resolve()

    @cached_property
    def captions(self) -> tuple[tuple[str, int], ...]:
        """The captions of all images, as pairs of a caption and an image id."""
        return tuple((text, image.image_id) for image in self.images for text in image.captions)

    @cached_property
    def facts(self) -> dict[str, dict[str, frozenset[int]]]:
        """The ids of images by fact and value; values are in alphabetical order."""
        ids: dict[str, dict[str, set[int]]] = {}
        for image in self.images:
            for fact, value in image.facts.items():
                ids.setdefault(fact, {}).setdefault(value, set()).add(image.image_id)
        return {
            fact: {value: frozenset(values[value]) for value in sorted(values)}
            for fact, values in ids.items()
        }

    @cached_property
    def relevance(self) -> dict[str, frozenset[int]]:
        """The ids of all images that a caption describes, by caption; only for rendered images."""
        ids: dict[str, frozenset[int]] = {}
        for image in self.images:
            for caption in image.truth.captions if image.truth else ():
                ids[caption.text] = ids.get(caption.text, frozenset()).union(caption.relevant)
        return ids


def from_pack(pack: Path) -> Collection:
    """Lists the images of a pack.

    Raises FileNotFoundError if the pack has no gallery, and ValueError if it is not valid.
    """
    gallery, images = load_gallery(pack), list[CollectionImage]()
    for i, image in enumerate(gallery.images):
        path = (gallery.folder / image.file).resolve()
        captions = tuple(caption.text for caption in image.captions)
        names = tuple(item.name for item in image.objects)
        images.append(CollectionImage(i, path, image.file, captions, names, image, path.parent))
    title = f"{gallery.world or pack.name}, {gallery.split} split"
    return Collection(title, gallery.folder.resolve(), tuple(images))


def open_images(path: Path, cache: Path, stopped: Event | None = None) -> Collection:
    """Lists the images of a folder, see `from_folder`, or of a ZIP archive, unpacked in `cache`.

    Raises:
        FileNotFoundError: the path does not exist, or the folder contains no image.
        ValueError: the archive cannot be used; no extracted file remains.
        StoppedError: the event `stopped` was set while unpacking.
        OSError: the archive cannot be read.
    """
    if not path.is_file():
        return from_folder(path)
    folder = _unpack(path, cache / "archives", stopped or Event())
    return replace(from_folder(folder), title=path.stem)


def from_folder(folder: Path) -> Collection:
    """Lists the image files below a folder, in the order of their paths.

    Skips hidden files, hidden folders and links to folders. `left_out` reports ZIP archives,
    unreadable folders and links to folders outside `folder`. Files are not opened here: unreadable
    files are refused later. Raises FileNotFoundError if there is no folder or no image.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; check the path")
    root, images, left_out = folder.resolve(), list[CollectionImage](), list[RefusedFile]()
    for name, path in sorted(_files(root, left_out)):
        if suffix_of(name) == ".zip":
            message = f"{name} is an archive in a folder; unpack it, or open it by itself"
            left_out.append(RefusedFile(name, message))
        else:
            images.append(CollectionImage(len(images), path, name, root=root))
    if not images:
        raise FileNotFoundError(f"{folder} holds no images; supported are {_SUPPORTED}")
    return Collection(root.name, root, tuple(images), tuple(left_out))


def from_uploads(folder: Path, files: Sequence[tuple[Path, str]]) -> Collection:
    """Lists the images of an upload; `files` are pairs of a path in `folder` and an original name.

    A number is added to a repeated name. Raises ValueError if no file has the suffix of an image.
    """
    images, left_out, names = list[CollectionImage](), list[RefusedFile](), set[str]()
    numbers = Counter[str]()  # by name: one less than the last number that was added
    for path, name in files:
        if suffix_of(name) not in SUFFIXES:
            left_out.append(RefusedFile(name, f"{name} is not an image that can be read"))
            continue
        unique_name, original = name, PurePath(name)
        while unique_name in names:
            numbers[name] += 1
            unique_name = f"{original.stem} ({numbers[name] + 1}){original.suffix}"
        names.add(unique_name)
        images.append(CollectionImage(len(images), path, unique_name, root=folder))
    if not images:
        raise ValueError(f"none of these files is an image; supported are {_SUPPORTED}")
    return Collection("your files", folder, tuple(images), tuple(left_out))


def delete_old_thumbnails(thumbnails: Path) -> None:
    """Deletes the least recently used thumbnails until at most `THUMBNAILS_BYTES` remain."""
    files, total = [], 0
    with suppress(OSError), os.scandir(thumbnails) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            files.append((status.st_mtime, status.st_size, entry.path))
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > THUMBNAILS_BYTES:
            with suppress(OSError):
                Path(path).unlink()


def _files(root: Path, left_out: list[RefusedFile]) -> Iterator[tuple[str, Path]]:
    """Yields name and path of images and archives; adds refused folders to `left_out`."""
    stack = [str(root)]

    def name_of(path: str) -> str:  # relative to `root`; escapes bytes that are not UTF-8
        relative = path[len(str(root)) :].lstrip(os.sep).replace(os.sep, "/")
        return os.fsencode(relative).decode("utf-8", "backslashreplace")

    def report(error: OSError) -> None:
        name = name_of(error.filename)[:_MAX_NAME]
        left_out.append(RefusedFile(name, str(to_image_error(name, error))))

    while stack:
        # one folder at a time: before Python 3.12, `os.walk` calls itself for each level
        folder, subfolders, files = next(os.walk(stack.pop(), onerror=report), ("", [], []))
        for name in (name for name in subfolders if not name.startswith(".")):
            path = os.path.join(folder, name)  # noqa: PTH118
            real_path = os.path.realpath(path)
            if real_path == path:  # neither a link nor a junction of Windows
                stack.append(path)
            elif not Path(real_path).is_relative_to(root):
                left_out.append(RefusedFile(name_of(path), str(outside_link_error(name_of(path)))))
        for name in files:
            if not name.startswith(".") and suffix_of(name) in SUFFIXES | {".zip"}:
                path = os.path.join(folder, name)  # noqa: PTH118
                yield name_of(path), Path(path)


def _unpack(archive: Path, folder: Path, stopped: Event) -> Path:
    """Unpacks the images of an archive, unless they are unpacked already; returns their folder."""
    name, stamp = archive.name, Stamp.of(archive)
    key = hashlib.sha256(f"{name} {stamp.size} {stamp.mtime_ns}".encode(errors="replace"))
    target = folder / key.hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{target.name}.lock"):
        if target.is_dir():
            os.utime(target)
            return target
        _delete_old_archives(folder)
        for draft in folder.glob(f".{target.name}.*"):  # left by a killed process
            shutil.rmtree(draft, ignore_errors=True)
        try:
            free_bytes = shutil.disk_usage(folder).free
            with zipfile.ZipFile(archive) as source, replacing_folder(target) as draft:
                for entry in _image_entries(source.infolist(), name, stamp.size, free_bytes):
                    if stopped.is_set():
                        raise StoppedError
                    source.extract(entry, draft)  # writes no links, and nothing outside `draft`
        except (*_ARCHIVE_ERRORS, EOFError, RuntimeError, NotImplementedError) as e:
            raise ValueError(
                f"{name} is damaged, encrypted or not a ZIP archive ({reason(e)}); make it again"
            ) from e
        except OSError as error:
            advice = "make room in the cache folder, or set POLYVIEW_CACHE to another disk"
            if error.errno == errno.ENAMETOOLONG:
                advice = "shorten the names of the files in it"
            raise ValueError(f"{name} cannot be unpacked ({reason(error)}); {advice}") from error
    return target


def _delete_old_archives(folder: Path) -> None:
    """Deletes unpacked archives that were not used in the last `_UNUSED_SECONDS`."""
    for path in folder.iterdir():
        with suppress(OSError):
            if path.is_dir() and time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
                # renamed first: if the process is killed, no partial archive keeps the name
                shutil.rmtree(path.rename(folder / f".{path.name}.old"))


def _image_entries(
    entries: Sequence[zipfile.ZipInfo], name: str, archive_bytes: int, free_bytes: int
) -> list[zipfile.ZipInfo]:
    """Returns the images among an archive's entries; raises ValueError beyond the limits."""
    if len(entries) > MAX_ENTRIES:
        message = f"{name} has {len(entries):,} entries, more than {MAX_ENTRIES:,}"
        raise ValueError(f"{message}; make several archives")
    images = []
    for entry in entries:
        is_hidden = any(part.startswith(".") for part in PurePosixPath(entry.filename).parts)
        is_link = stat.S_ISLNK(entry.external_attr >> 16)
        if not (is_hidden or is_link or entry.is_dir()) and suffix_of(entry.filename) in SUFFIXES:
            images.append(entry)
    if not images:
        raise ValueError(f"{name} holds no images; supported are {_SUPPORTED}")
    size = sum(entry.file_size for entry in images)
    # entries may share bytes of the archive
    packed_size = min(archive_bytes, sum(entry.compress_size for entry in images))
    if size > max(_ANY_RATIO_BYTES, _MAX_RATIO * packed_size):
        raise ValueError(
            f"{name} unpacks to {size / 2**20:,.0f} MB, more than {_MAX_RATIO} times the packed "
            "size of its images; unpack it, and name the folder"
        )
    if size + _MIN_FREE_BYTES > free_bytes:
        raise ValueError(
            f"{name} unpacks to {size / 2**30:,.1f} GB, and {free_bytes / 2**30:,.1f} GB are "
            "free; unpack it elsewhere, and name the folder"
        )
    return images
