"""What is searched: the pictures of a pack's gallery, or those of somebody's folder."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from export.gallery import GalleryImage
from export.pack import load_gallery

if TYPE_CHECKING:
    from app.searchable import Store

# HEIC is listed so that it is reported as refused instead of silently missed.
_PHOTOS = {".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".heic", ".heif"}
_GRAPHICS = {".png", ".gif", ".bmp", ".tif", ".tiff", ".ppm"}
SUFFIXES = frozenset(_PHOTOS | _GRAPHICS)


@dataclass(frozen=True)
class Picture:
    """One picture and what is known about it.

    Attributes:
        image_id: its place in the collection.
        path: where it lies.
        file: what visitors see of the path: relative to the collection's folder.
        captions: sentences that describe it.
        objects: names of the things in it.
        truth: what a rendered picture is known to show, or None.
    """

    image_id: int
    path: Path
    file: str
    captions: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    truth: GalleryImage | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What pictures can be filtered by: name of a fact, and its value for this picture."""
        if self.truth is None:
            place, _, _ = self.file.rpartition("/")
            return {"folder": place} if place else {}
        known = {"setting": self.truth.setting, "time": self.truth.time}
        known["weather"] = self.truth.weather
        return {name: value for name, value in known.items() if value}

    def reached(self) -> Picture:
        """Itself, where its file can be tried.

        Raises:
            ValueError: it lies on another machine; the sentence says where.
        """
        return self

    def key(self) -> str:
        """Changes whenever the file does.

        Raises:
            OSError: the file is not there.
        """
        stat = self.path.stat()
        return f"{self.path}|{stat.st_mtime_ns}|{stat.st_size}"

    def thumbnail_name(self) -> str:
        """A file name that tells nothing about the path."""
        return hashlib.sha256(self.key().encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Collection:
    """Pictures in a fixed order.

    Attributes:
        title: for people.
        folder: where they lie.
        pictures: `pictures[i].image_id == i`.
        store: where their views lie ready, or None where they are made on this machine.
    """

    title: str
    folder: Path
    pictures: tuple[Picture, ...]
    store: Store | None = None

    @cached_property
    def captions(self) -> tuple[tuple[str, int], ...]:
        """Every caption with the id of its picture, picture by picture."""
        return tuple((text, p.image_id) for p in self.pictures for text in p.captions)

    @cached_property
    def facts(self) -> dict[str, dict[str, frozenset[int]]]:
        """Each fact with its values, in the alphabet's order, and the pictures that have each."""
        found: dict[str, dict[str, set[int]]] = {}
        for picture in self.pictures:
            for fact, value in picture.facts.items():
                found.setdefault(fact, {}).setdefault(value, set()).add(picture.image_id)
        return {
            fact: {value: frozenset(values[value]) for value in sorted(values)}
            for fact, values in found.items()
        }

    @cached_property
    def relevant(self) -> dict[str, frozenset[int]]:
        """For each caption, the ids of all pictures that are known to satisfy it."""
        found: dict[str, frozenset[int]] = {}
        for picture in self.pictures:
            for caption in picture.truth.captions if picture.truth else ():
                known = found.get(caption.text, frozenset())
                found[caption.text] = known | frozenset(caption.relevant)
        return found


def from_pack(pack: Path) -> Collection:
    """The gallery that comes with a pack.

    Raises:
        FileNotFoundError: it has none.
        ValueError: its gallery is not what it must be.
    """
    gallery = load_gallery(pack)
    pictures = tuple(
        Picture(
            image_id=i,
            path=(gallery.folder / image.file).resolve(),
            file=image.file,
            captions=tuple(caption.text for caption in image.captions),
            objects=tuple(thing.name for thing in image.objects),
            truth=image,
        )
        for i, image in enumerate(gallery.images)
    )
    world = gallery.world or pack.name
    return Collection(f"{world}, {gallery.split} split", gallery.folder.resolve(), pictures)


def from_folder(folder: Path) -> Collection:
    """Every picture file under a folder, however deep, in the order of their paths.

    Hidden files and folders are left out.

    Raises:
        FileNotFoundError: the folder is missing or holds no picture.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    root = folder.resolve()
    files = [
        (_shown(path.relative_to(root)), path)
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    visible = sorted((name, path) for name, path in files if not hidden(name))
    if not visible:
        raise FileNotFoundError(
            f"{folder} holds no pictures; looked for {', '.join(sorted(SUFFIXES))}"
        )
    pictures = tuple(Picture(i, path, name) for i, (name, path) in enumerate(visible))
    return Collection(root.name, root, pictures)


def _shown(path: Path) -> str:
    """A path for people; what is no UTF-8, which some systems allow, as numbers."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def hidden(name: str) -> bool:
    """Whether a file, or a folder it is in, begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))
