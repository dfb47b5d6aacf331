"""Which files a gallery has: those of a pack, a folder, a ZIP archive, or of a visitor's upload."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from threading import Event
from typing import BinaryIO

from filelock import FileLock

from polyview.app.gallery.images import (
    MAX_BYTES,
    ImageError,
    Refusal,
    Stamp,
    open_file,
    outside,
    reason,
    unreadable,
)
from polyview.app.gallery.video_decoder import Moment
from polyview.export.pack.gallery import GalleryImage, load_gallery
from polyview.export.pack.schema import FOLDER
from polyview.models.files import replacing_folder

# HEIC is listed so that it is refused with a reason where it cannot be read, not silently missed.
_PHOTOS = {".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".heic", ".heif"}
_GRAPHICS = {".png", ".apng", ".gif", ".bmp", ".tif", ".tiff", ".ppm"}
VIDEOS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm"})
SUFFIXES = frozenset(_PHOTOS | _GRAPHICS | VIDEOS)
MAX_DEPTH = 100  # folders within one another
MAX_ENTRIES = 50_000  # of a ZIP archive
MAX_UNPACKED = 64 * 2**30  # bytes of all images of an archive
_MAX_RATIO, _SMALL = 200, 16 * 2**20  # packed to unpacked size, of entries of more bytes than these
_SPARE = 2**30  # bytes of the disk that stay free
_LONGEST = 300  # characters of a folder's name in a sentence


class StoppedError(Exception):
    """Somebody stopped what was being done."""


class ArchiveError(ValueError):
    """An archive cannot be used; the message is a sentence that says why."""


@dataclass(frozen=True)
class CollectionImage:
    """One image and what is known about it: a file, or one frame of a clip.

    Attributes:
        image_id: its place in the collection; of a clip's further frames, see `Collection.frame`.
        path: the file.
        file: what visitors see of the path: relative to the collection's folder.
        captions: sentences that describe it.
        objects: names of the objects it shows.
        truth: what a rendered image is known to show, or None.
        root: the folder that links may not lead out of, resolved; None for anywhere.
        moment: where the frame is in its clip; None for a whole file.
        known: facts of an image that is known from a database alone; None for others. It is opened
            only within a root.
    """

    image_id: int
    path: Path
    file: str
    captions: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    truth: GalleryImage | None = None
    root: Path | None = None
    moment: Moment | None = None
    known: Mapping[str, str] | None = None

    @property
    def is_video(self) -> bool:
        """Whether its file has the name of a video."""
        return _suffix(self.file) in VIDEOS

    @property
    def facts(self) -> dict[str, str]:
        """What images can be filtered by: name of a fact, and its value for this image."""
        if self.known is not None:
            return dict(self.known)
        if self.truth is None:
            folder, _, _ = self.file.rpartition("/")
            return {"folder": folder} if folder else {}
        known = {name: getattr(self.truth, name) for name in ("setting", "time", "weather")}
        return {name: value for name, value in known.items() if value}

    def reached(self) -> CollectionImage:
        """Itself.

        Raises:
            ImageError: the file lies on another machine.
        """
        if self.known is None or (self.root is not None and self.path.is_file()):
            return self
        raise ImageError(
            f"{self.file} is searched, but its file cannot be reached from this machine; mount the "
            "folder it was migrated from, and name it with ?pictures=DIR in the gallery's address"
        )

    def open(self) -> BinaryIO:
        """Opens its file.

        Raises:
            ImageError: it may not be opened, or not now.
        """
        self.reached()
        return open_file(self.path, self.file, self.root)

    def thumbnail_name(self) -> str:
        """A file name that changes whenever the file does, and tells nothing about the path.

        Raises:
            OSError: the file does not exist.
        """
        frame = f"|{self.moment.frame}" if self.moment else ""
        key = f"{self.path}|{Stamp.of(self.path)}{frame}"
        return hashlib.sha256(os.fsencode(key)).hexdigest()[:24]


@dataclass(frozen=True)
class Collection:
    """Images in a fixed order.

    Attributes:
        title: for people.
        folder: where they lie.
        images: `images[i].image_id == i`.
        left_out: folders and files that are not among them, and why.
    """

    title: str
    folder: Path
    images: tuple[CollectionImage, ...]
    left_out: tuple[Refusal, ...] = ()

    def frame(self, image: CollectionImage, place: int, moment: Moment) -> CollectionImage:
        """A frame of a clip as an image of its own.

        The first has the clip's id; the ids of further ones follow those of all files, so that
        `file_id` gives the clip.

        Args:
            image: the clip.
            place: of the frame among those that were chosen, from 0.
            moment: where it is in the clip.
        """
        image_id = self.file_id(image.image_id) + place * len(self.images)
        return replace(image, image_id=image_id, moment=moment)

    def file_id(self, image_id: int) -> int:
        """The place in `images` of an image's file."""
        return image_id % len(self.images)

    def comes_with(self, pack: Path) -> bool:
        """Whether these are the images in a pack's folder."""
        return self.folder == (pack / FOLDER).resolve()

    @cached_property
    def captions(self) -> tuple[tuple[str, int], ...]:
        """Every caption with the id of its image, image by image."""
        return tuple((text, p.image_id) for p in self.images for text in p.captions)

    @cached_property
    def facts(self) -> dict[str, dict[str, frozenset[int]]]:
        """Each fact with its values, in alphabetical order, and the ids of the images with each."""
        ids: dict[str, dict[str, set[int]]] = {}
        for image in self.images:
            for fact, value in image.facts.items():
                ids.setdefault(fact, {}).setdefault(value, set()).add(image.image_id)
        return {
            fact: {value: frozenset(values[value]) for value in sorted(values)}
            for fact, values in ids.items()
        }

    @cached_property
    def relevant(self) -> dict[str, frozenset[int]]:
        """For each caption, the ids of all images that are known to satisfy it."""
        ids: dict[str, set[int]] = {}
        for image in self.images:
            for caption in image.truth.captions if image.truth else ():
                ids.setdefault(caption.text, set()).update(caption.relevant)
        return {text: frozenset(known) for text, known in ids.items()}


def from_pack(pack: Path) -> Collection:
    """The gallery that comes with a pack.

    Raises:
        FileNotFoundError: it has none.
        ValueError: its gallery is not valid.
    """
    gallery, images = load_gallery(pack), list[CollectionImage]()
    for i, image in enumerate(gallery.images):
        path = (gallery.folder / image.file).resolve()
        captions = tuple(caption.text for caption in image.captions)
        objects = tuple(item.name for item in image.objects)
        images.append(
            CollectionImage(i, path, image.file, captions, objects, image, root=path.parent)
        )
    title = f"{gallery.world or pack.name}, {gallery.split} split"
    return Collection(title, gallery.folder.resolve(), tuple(images))


def open_images(
    place: Path, cache: Path, follow_links: bool = False, stopped: Event | None = None
) -> Collection:
    """The images of a folder, or of a ZIP archive.

    Args:
        place: the folder or the archive.
        cache: the user's cache folder; archives are unpacked there.
        follow_links: see `from_folder`.
        stopped: once it is set, an archive is read no further.

    Raises:
        FileNotFoundError: the place does not exist, or holds no image.
        ArchiveError: the archive cannot be used; nothing of it is kept.
        StoppedError: `stopped` was set.
        OSError: the archive cannot be read.
    """
    if not place.is_file():
        return from_folder(place, follow_links)
    folder = unpack(place, cache / "archives", stopped or Event())
    return replace(from_folder(folder), title=place.stem)


def from_folder(folder: Path, follow_links: bool = False) -> Collection:
    """Every image file under a folder, however deep, in the order of their paths.

    Hidden files and folders are left out. Nothing is opened: what cannot be, or may not be, is
    found out when it is read.

    Args:
        folder: any folder.
        follow_links: links may lead out of it, and those to folders are followed.

    Raises:
        FileNotFoundError: the folder is missing or holds no image.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    root = folder.resolve()
    left_out: list[Refusal] = []
    files = sorted(_files(root, follow_links, left_out))
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no images; looked for {', '.join(sorted(SUFFIXES))}"
        )
    within = None if follow_links else root
    images = (CollectionImage(i, path, name, root=within) for i, (name, path) in enumerate(files))
    return Collection(root.name, root, tuple(images), tuple(left_out))


def from_uploads(folder: Path, files: Sequence[tuple[Path, str]]) -> Collection:
    """Images that a visitor sent.

    Args:
        folder: where all of them lie.
        files: each with the name that it had; a name that comes again gets a number.

    Raises:
        ValueError: none of them has the name of an image.
    """
    images: list[CollectionImage] = []
    left_out, taken = [], Counter[str]()
    for path, name in files:
        if _suffix(name) not in SUFFIXES:
            left_out.append(Refusal(name, f"{name} is not an image that can be read"))
            continue
        taken[name] += 1
        stem, suffix = PurePath(name).stem, PurePath(name).suffix
        unique = name if taken[name] == 1 else f"{stem} ({taken[name]}){suffix}"
        images.append(CollectionImage(len(images), path, unique, root=folder))
    if not images:
        raise ValueError(f"none of these files is an image; {', '.join(sorted(SUFFIXES))} are")
    return Collection("your files", folder, tuple(images), tuple(left_out))


def _files(root: Path, follow_links: bool, left_out: list[Refusal]) -> Iterator[tuple[str, Path]]:
    """The image files below a folder, each with its name for people."""
    walked = set()

    def leave_out(error: OSError) -> None:
        name = _printable(Path(error.filename).relative_to(root).as_posix())[:_LONGEST]
        left_out.append(Refusal(name, str(unreadable(name, error))))

    for place, folders, names in os.walk(root, onerror=leave_out, followlinks=follow_links):
        folder = Path(place)
        below = _printable(folder.relative_to(root).as_posix())
        if folders and len(folder.parts) - len(root.parts) >= MAX_DEPTH:
            message = f"are more than {MAX_DEPTH} deep; move them up"
            name = below[:_LONGEST]
            left_out.append(Refusal(name, f"the folders in {name} {message}"))
            folders.clear()
        real = os.path.realpath(place)
        if real in walked:  # a link to a folder above, or to one that was seen before
            folders.clear()
            continue
        walked.add(real)
        visible = [name for name in folders if not name.startswith(".")]
        links = {name for name in visible if os.path.islink(folder / name)}  # noqa: PTH114
        for name in links if not follow_links else ():
            if not Path(os.path.realpath(folder / name)).is_relative_to(root):
                link = _printable((folder / name).relative_to(root).as_posix())
                left_out.append(Refusal(link, str(outside(link))))
        folders[:] = sorted(visible, key=links.__contains__)  # a folder itself before a link to it
        for name in names:
            if not name.startswith(".") and _suffix(name) in SUFFIXES:
                readable = _printable(name)
                yield readable if below == "." else f"{below}/{readable}", folder / name


def _suffix(file: str) -> str:
    """The end of a file's name, such as ".jpg"; ten times as fast as `PurePath`."""
    return os.path.splitext(file)[1].lower()  # noqa: PTH122


def _printable(path: str) -> str:
    """A path for people; bytes that are no UTF-8, which some systems allow, as numbers."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def unpack(archive: Path, folder: Path, stopped: Event) -> Path:
    """Unpacks the images of a ZIP archive, unless that was done before.

    Args:
        archive: known by its name, size and time of writing; files that are no images stay in it.
        folder: of all unpacked archives.
        stopped: once it is set, the archive is read no further.

    Returns:
        The folder of its images.

    Raises:
        ArchiveError: it is damaged or too large; nothing of it is kept.
        StoppedError: `stopped` was set.
        OSError: the archive cannot be read.
    """
    name, stamp = archive.name, Stamp.of(archive)
    key = hashlib.sha256(f"{name} {stamp.size} {stamp.mtime_ns}".encode(errors="replace"))
    target = folder / key.hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{target.name}.lock"):
        if target.is_dir():
            return target
        for draft in folder.glob(f".{target.name}.*"):  # of a process that was killed
            shutil.rmtree(draft, ignore_errors=True)
        try:
            with zipfile.ZipFile(archive) as opened, replacing_folder(target) as draft:
                images = _checked(opened.infolist(), name, shutil.disk_usage(folder).free)
                for info in images:
                    if stopped.is_set():
                        raise StoppedError
                    opened.extract(info, draft)  # never outside of the folder, and never a link
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as e:
            raise ArchiveError(
                f"{name} is damaged, locked or not a ZIP archive; make it again ({reason(e)})"
            ) from e
        except OSError as error:
            raise ArchiveError(
                f"{name} cannot be unpacked ({reason(error)}); make room in the cache folder, or "
                "set POLYVIEW_CACHE to another disk"
            ) from error
    return target


def _checked(entries: Sequence[zipfile.ZipInfo], name: str, free: int) -> list[zipfile.ZipInfo]:
    """The images among the entries of an archive, whose sizes fit; else an ArchiveError."""
    if len(entries) > MAX_ENTRIES:
        raise ArchiveError(
            f"{name} has {len(entries):,} entries, more than {MAX_ENTRIES:,}; make several archives"
        )
    images = []
    for info in entries:
        parts = PurePosixPath(info.filename).parts
        hidden = any(part.startswith(".") for part in parts)
        linked = stat.S_ISLNK(info.external_attr >> 16)
        if info.is_dir() or hidden or linked or _suffix(info.filename) not in SUFFIXES:
            continue
        bomb = info.file_size > max(_SMALL, _MAX_RATIO * info.compress_size)
        if bomb or info.file_size > MAX_BYTES or len(parts) > MAX_DEPTH:
            entry = ascii(info.filename)[1:-1][:80]
            raise ArchiveError(
                f"{name} holds {entry}, which unpacks to {info.file_size / 2**20:,.0f} MB, more "
                f"than {MAX_BYTES // 2**20} MB or {_MAX_RATIO} times its size, or lies more than "
                f"{MAX_DEPTH} folders deep; take it out"
            )
        images.append(info)
    if not images:
        raise ArchiveError(f"{name} holds no images; looked for {', '.join(sorted(SUFFIXES))}")
    total = sum(info.file_size for info in images)
    if total > MAX_UNPACKED or total + _SPARE > free:
        raise ArchiveError(
            f"{name} unpacks to {total / 2**30:,.1f} GB; at most {MAX_UNPACKED // 2**30} GB "
            f"are unpacked, and {free / 2**30:,.1f} GB are free; unpack it, name the folder"
        )
    return images
