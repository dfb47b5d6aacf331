"""How a picture and its views lie in Qdrant: one point for each picture.

    id        the first half of the SHA-256 of the picture's file, as a UUID; where a picture has
              captions, which mean it alone, that of the file's SHA-256 and its name
    vectors   one for each method, named after it: R rows of E dimensions, compared by MaxSim over
              inner products, which adds up, over the rows of the query, the best of the point
    payload   see `payload`

The rows are the V views of D dimensions one after the other, cut anew (`Method.row_dim`), so that
MaxSim is the method's score where it can be: whole views where one pair of views decides, all views
joined where they add up, blocks where blocks are matched.
"""

import hashlib
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from app.gallery.collection import SUFFIXES, CollectionImage
from app.gallery.image_files import ImageError
from app.gallery.qdrant.server import PACK

_LONGEST = 4096  # characters of a file's name
_HALF = re.compile("[\ud800-\udfff]")
_MOST_TEXT = 100_000  # characters of a payload
FILE, ROOT, SHAPES = "file", "root", "shapes"


@dataclass(frozen=True)
class DistantImage(CollectionImage):
    """A picture known from its payload; `known` are its facts."""

    known: Mapping[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, str]:
        """See `CollectionImage.facts`."""
        return dict(self.known)

    def reached(self) -> CollectionImage:
        """See `CollectionImage.reached`; without a root, nobody here named its folder."""
        if self.root is not None and self.path.is_file():
            return self
        raise ImageError(
            f"{self.file} is searched, but its file cannot be reached from this machine; mount the "
            "folder it was migrated from, and name it with ?pictures=DIR in the gallery's address"
        )

    def open(self) -> BinaryIO:
        """See `CollectionImage.open`."""
        self.reached()
        return super().open()

    def key(self) -> str:
        """See `CollectionImage.key`."""
        self.reached()
        return super().key()


def point_id(image: CollectionImage, digest: bytes) -> str:
    """A picture's id; writing the same picture again therefore changes nothing.

    Args:
        image: what it is, by its captions.
        digest: the SHA-256 of its file.
    """
    if image.captions:
        digest = hashlib.sha256(digest + image.file.encode()).digest()
    return str(uuid.UUID(bytes=digest[:16]))


def payload(
    image: CollectionImage,
    root: Path,
    digest: bytes,
    checksum: str,
    shapes: Mapping[str, tuple[int, int]],
) -> dict[str, object]:
    """What is known of a picture, for filters and for whoever shows it.

    Args:
        image: to be written.
        root: the folder that its file's name begins at.
        digest: the SHA-256 of its file.
        checksum: of the pack that made its views.
        shapes: for each method (V, D).
    """
    return {
        **place(image, root),
        "sha256": digest.hex(),
        "captions": list(image.captions),
        "objects": list(image.objects),
        "facts": image.facts,
        PACK: checksum,
        SHAPES: {name: list(shape) for name, shape in shapes.items()},
    }


def place(image: CollectionImage, root: Path) -> dict[str, object]:
    """The part of the payload that says where a picture's file lies."""
    # Not every system's file names are UTF-8; such files are searched and cannot be shown.
    return {FILE: image.file, ROOT: str(root).encode(errors="backslashreplace").decode()}


def image_of(
    image_id: int, known: Mapping[str, object], folder: Path | None, roots: Collection[str] = ()
) -> DistantImage:
    """A picture from its payload.

    Args:
        image_id: its place in the collection.
        known: the payload.
        folder: where the files lie; None for where they lay when they were migrated.
        roots: folders that are known to hold the collection's files; a file that a payload
            places elsewhere is searched and never opened.

    Raises:
        ValueError: the payload is not of `payload`'s making.
    """
    file, root = known.get(FILE), known.get(ROOT)
    facts = known.get("facts")
    if not isinstance(file, str) or not isinstance(root, str) or not isinstance(facts, Mapping):
        raise ValueError(f"payload number {image_id} names no picture")
    parts = PurePosixPath(file)
    odd = len(file) > _LONGEST or "\0" in file or ".." in parts.parts or parts.is_absolute()
    if odd or parts.suffix.lower() not in SUFFIXES:
        raise ValueError(f'payload number {image_id} names no picture, but "{file[:200]}"')
    captions, objects = _words(known.get("captions")), _words(known.get("objects"))
    worded = {name: value for name, value in facts.items() if isinstance(value, str)}
    texts = (file, root, *captions, *objects, *worded, *worded.values())
    if sum(map(len, texts)) + len(texts) > _MOST_TEXT:  # empty ones take memory, too
        raise ValueError(f"payload number {image_id} holds more than {_MOST_TEXT:,} characters")
    if not all(text.isascii() or _HALF.search(text) is None for text in texts):
        raise ValueError(f"payload number {image_id} holds half a character, which no page shows")
    place = folder or Path(root)
    within = place.resolve() if folder is not None or root in roots else None
    return DistantImage(image_id, place / file, file, captions, objects, root=within, known=worded)


def _words(given: object) -> tuple[str, ...]:
    listed = given if isinstance(given, list | tuple) else ()
    return tuple(text for text in listed if isinstance(text, str))
