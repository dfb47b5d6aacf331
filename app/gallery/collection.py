"""What is searched: the pictures of a pack's gallery, or those of somebody's folder."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path, PurePath
from typing import BinaryIO

from app.gallery.image_files import (
    Contents,
    ImageError,
    Refusal,
    Stamp,
    StoppedError,
    open_image_file,
    outside,
    refusal,
)
from app.gallery.sampling import Moment
from export.pack.gallery import GalleryImage, load_gallery

# HEIC is listed so that it is reported as refused instead of silently missed.
_PHOTOS = {".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".heic", ".heif"}
_GRAPHICS = {".png", ".apng", ".gif", ".bmp", ".tif", ".tiff", ".ppm"}
VIDEOS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm"})
_MAY_MOVE = VIDEOS | {".gif", ".webp", ".png", ".apng"}  # which may be stills as well
_LONG = 300  # characters of a folder's name in a sentence
MAX_DEPTH = 100  # folders within one another
SUFFIXES = frozenset(_PHOTOS | _GRAPHICS | VIDEOS)


@dataclass(frozen=True)
class CollectionImage:
    """One picture and what is known about it: a file, or one frame of a clip.

    Attributes:
        image_id: its place in the collection; of a clip's further frames, see `Collection.frame`.
        path: where it lies.
        file: what visitors see of the path: relative to the collection's folder.
        captions: sentences that describe it.
        objects: names of the things in it.
        truth: what a rendered picture is known to show, or None.
        mask: where its mask lies, if it has one; links in it were followed, and are not again.
        root: the folder that links may not lead out of, resolved; None for anywhere.
        moment: where it is in its clip; None for a file that is no clip, or not looked into yet.
    """

    image_id: int
    path: Path
    file: str
    captions: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    truth: GalleryImage | None = None
    mask: Path | None = None
    root: Path | None = None
    moment: Moment | None = None

    @property
    def is_video(self) -> bool:
        """Whether its file is called like a video."""
        return _ending(self.file) in VIDEOS

    @property
    def may_be_clip(self) -> bool:
        """Whether it is a whole file, called like one that may hold several frames."""
        return self.moment is None and _ending(self.file) in _MAY_MOVE

    @property
    def facts(self) -> dict[str, str]:
        """What pictures can be filtered by: name of a fact, and its value for this picture."""
        if self.truth is None:
            place, _, _ = self.file.rpartition("/")
            return {"folder": place} if place else {}
        known = {"setting": self.truth.setting, "time": self.truth.time}
        known["weather"] = self.truth.weather
        return {name: value for name, value in known.items() if value}

    def reached(self) -> CollectionImage:
        """Itself, where its file can be tried.

        Raises:
            ValueError: it lies on another machine; the sentence says where.
        """
        return self

    def open(self) -> BinaryIO:
        """Opens its file.

        Raises:
            ImageError: it may not be opened, or not now.
        """
        return open_image_file(self.path, self.file, self.root)

    def key(self) -> str:
        """Changes whenever the file does; each frame of a clip has its own.

        Raises:
            OSError: the file is not there.
        """
        frame = f"|{self.moment.frame}" if self.moment else ""
        return f"{self.path}|{Stamp.of(self.path)}{frame}"

    def thumbnail_name(self) -> str:
        """A file name that tells nothing about the path."""
        return hashlib.sha256(os.fsencode(self.key())).hexdigest()[:24]


@dataclass(frozen=True)
class Collection:
    """Pictures in a fixed order.

    Attributes:
        title: for people.
        folder: where they lie.
        images: `images[i].image_id == i`.
        left_out: folders and links that were not followed, and why.
    """

    title: str
    folder: Path
    images: tuple[CollectionImage, ...]
    left_out: tuple[Refusal, ...] = ()

    def frame(self, image: CollectionImage, place: int, moment: Moment) -> CollectionImage:
        """A frame of a clip as an image of its own.

        The first has the clip's id; further ones are counted on behind all files, so that
        `file_id` tells whose they are.

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

    @cached_property
    def captions(self) -> tuple[tuple[str, int], ...]:
        """Every caption with the id of its picture, picture by picture."""
        return tuple((text, p.image_id) for p in self.images for text in p.captions)

    @cached_property
    def _first_captions(self) -> tuple[int, ...]:
        return tuple(accumulate((len(p.captions) for p in self.images), initial=0))

    def caption_rows(self, image_id: int) -> range:
        """The places in `captions` of an image's own."""
        return range(self._first_captions[image_id], self._first_captions[image_id + 1])

    @cached_property
    def facts(self) -> dict[str, dict[str, frozenset[int]]]:
        """Each fact with its values, in the alphabet's order, and the pictures that have each."""
        found: dict[str, dict[str, set[int]]] = {}
        for image in self.images:
            for fact, value in image.facts.items():
                found.setdefault(fact, {}).setdefault(value, set()).add(image.image_id)
        return {
            fact: {value: frozenset(values[value]) for value in sorted(values)}
            for fact, values in found.items()
        }

    @cached_property
    def relevant(self) -> dict[str, frozenset[int]]:
        """For each caption, the ids of all pictures that are known to satisfy it."""
        found: dict[str, set[int]] = {}
        for image in self.images:
            for caption in image.truth.captions if image.truth else ():
                found.setdefault(caption.text, set()).update(caption.relevant)
        return {text: frozenset(known) for text, known in found.items()}


def from_pack(pack: Path) -> Collection:
    """The gallery that comes with a pack.

    Raises:
        FileNotFoundError: it has none.
        ValueError: its gallery is not what it must be.
    """
    gallery = load_gallery(pack)
    paths = [(gallery.folder / image.file).resolve() for image in gallery.images]
    images = tuple(
        CollectionImage(
            image_id=i,
            path=path,
            file=image.file,
            captions=tuple(caption.text for caption in image.captions),
            objects=tuple(thing.name for thing in image.objects),
            truth=image,
            mask=(gallery.folder / image.mask).resolve() if image.mask else None,
            root=path.parent,
        )
        for i, (image, path) in enumerate(zip(gallery.images, paths, strict=True))
    )
    world = gallery.world or pack.name
    return Collection(f"{world}, {gallery.split} split", gallery.folder.resolve(), images)


def from_folder(folder: Path, follow_links: bool = False) -> Collection:
    """Every picture file under a folder, however deep, in the order of their paths.

    Hidden files and folders are left out. Nothing is opened: what cannot be, or may not be, is
    found out when it is read.

    Args:
        folder: any folder.
        follow_links: links may lead out of it, and those to folders are followed.

    Raises:
        FileNotFoundError: the folder is missing or holds no picture.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    root = folder.resolve()
    left_out: list[Refusal] = []
    files = sorted(_files(root, follow_links, left_out))
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no pictures; looked for {', '.join(sorted(SUFFIXES))}"
        )
    within = None if follow_links else root
    images = tuple(
        CollectionImage(i, path, name, root=within) for i, (name, path) in enumerate(files)
    )
    return Collection(root.name, root, images, left_out=tuple(left_out))


def from_uploads(folder: Path, files: Sequence[tuple[Path, str]]) -> Collection:
    """Images that a visitor sent.

    Args:
        folder: where all of them lie, somewhere.
        files: each with the name that it had; a name that comes again gets a number.

    Raises:
        ValueError: none of them is called like an image.
    """
    images: list[CollectionImage] = []
    left_out, taken = [], Counter[str]()
    for path, name in files:
        if _ending(name) not in SUFFIXES:
            left_out.append(Refusal(name, f"{name} is not a picture that can be read"))
            continue
        taken[name] += 1
        stem, suffix = PurePath(name).stem, PurePath(name).suffix
        shown = name if taken[name] == 1 else f"{stem} ({taken[name]}){suffix}"
        images.append(CollectionImage(len(images), path, shown, root=folder))
    if not images:
        raise ValueError(f"none of these files is a picture; {', '.join(sorted(SUFFIXES))} are")
    return Collection("your files", folder, tuple(images), tuple(left_out))


def read_contents(
    images: Sequence[CollectionImage],
    recall: Callable[[Mapping[str, Stamp]], Mapping[str, bytes]],
    stop: threading.Event,
) -> tuple[dict[str, Contents], dict[str, Contents], list[Refusal]]:
    """What is in the files of images.

    Args:
        images: of a collection.
        recall: gives the SHA-256 of files that were read before and have not changed.
        stop: when set, ends the reading, even in the middle of a file.

    Returns:
        By file what is known, and what was read now; and the files that cannot be.

    Raises:
        StoppedError: `stop` was set.
    """
    stamps, read, refused = dict[str, Stamp](), dict[str, Contents](), dict[str, Refusal]()
    files = {image.file: image for image in images}.values()  # frames of a clip are of one
    for image in files:
        try:
            stamps[image.file] = Stamp.of(image.path)
        except OSError as error:
            refused[image.file] = refusal(image.file, error)
    known = {f: Contents(digest, stamps[f], 0) for f, digest in recall(stamps).items()}
    for image in files:
        if image.file in known or image.file in refused:
            continue
        if stop.is_set():
            raise StoppedError
        try:
            with image.open() as file:
                read[image.file] = Contents.of(file, stop)
        except (OSError, ImageError) as error:
            refused[image.file] = refusal(image.file, error)
    return known, read, list(refused.values())


def _files(root: Path, follow_links: bool, left_out: list[Refusal]) -> Iterator[tuple[str, Path]]:
    """The picture files below a folder, each with its name for people."""
    walked = set()

    def leave_out(error: OSError) -> None:
        left_out.append(refusal(_brief(Path(error.filename).relative_to(root)), error))

    for place, folders, names in os.walk(root, onerror=leave_out, followlinks=follow_links):
        here = Path(place)
        if folders and len(here.parts) - len(root.parts) >= MAX_DEPTH:
            name = _brief(here.relative_to(root))
            reason = f"the folders in {name} are more than {MAX_DEPTH} deep; move them up"
            left_out.append(Refusal(name, reason))
            folders.clear()
        if follow_links:
            real = os.path.realpath(place)
            if real in walked:  # a link to a folder above, or to one that was seen before
                folders.clear()
                continue
            walked.add(real)
        visible = [name for name in folders if not name.startswith(".")]
        linked = [name for name in visible if os.path.islink(here / name)]  # noqa: PTH114
        for name in linked if not follow_links else ():
            if not Path(os.path.realpath(here / name)).is_relative_to(root):
                shown = _shown((here / name).relative_to(root))
                left_out.append(refusal(shown, outside(shown)))
        # a folder itself before a link to it
        folders[:] = sorted(visible, key=set(linked).__contains__)
        begin = _shown(here.relative_to(root))
        for name in names:
            if not name.startswith(".") and _ending(name) in SUFFIXES:
                yield _shown(name) if begin == "." else f"{begin}/{_shown(name)}", here / name


def _ending(file: str) -> str:
    """What a file's name ends in, as ".jpg"; ten times as fast as `PurePath`."""
    return os.path.splitext(file)[1].lower()  # noqa: PTH122


def _brief(folder: Path) -> str:
    """A folder for people, short enough for a sentence."""
    name = _shown(folder)
    return name if len(name) <= _LONG else f"{name[:_LONG]}…"


def _shown(path: Path | str) -> str:
    """A path for people; what is no UTF-8, which some systems allow, as numbers."""
    plain = path if isinstance(path, str) else path.as_posix()
    return os.fsencode(plain).decode("utf-8", "backslashreplace")


def hidden(name: str) -> bool:
    """Whether a file, or a folder it is in, begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))
