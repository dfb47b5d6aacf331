"""Small copies of images without metadata, kept in one folder of bounded size."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from PIL import Image

from app.gallery.clips import open_picture
from app.gallery.collection import CollectionImage
from app.gallery.image_files import ImageError, Stamp, open_image_file, reason
from app.gallery.images import open_header
from app.gallery.sampling import Moment

SIDE = 320  # pixels of the longer side
FOLDER_BYTES = 2_000_000_000  # beyond, those that were used longest ago go
LOOK_AFTER = 100_000_000  # bytes written between two looks at all of them
_DRAWING = 4  # thumbnails made at a time for one answer
_USED = 24 * 3600.0  # seconds after which it is noted that one is used
_KNOWN = 50_000  # thumbnails known to be whole

_written = LOOK_AFTER  # since the last look, so that the first one follows the first thumbnail
_counting = threading.Lock()


class DiskError(ImageError):
    """Thumbnails cannot be kept; the message is a sentence about the disk."""


def thumbnail_folder(cache: Path) -> Path:
    """Where thumbnails lie in a cache folder, and nothing else."""
    return cache / "thumbnails"


def make_thumbnails(images: Sequence[CollectionImage], folder: Path) -> tuple[dict[int, Path], str]:
    """Small copies of several images by id, without those that cannot be had.

    Returns:
        Also a sentence about the disk, where that is why one is missing; else an empty one.
    """
    made: dict[int, Path] = {}
    trouble = ""

    def make(image: CollectionImage) -> Path | Exception:
        try:
            return make_thumbnail(
                image.path, folder, image.thumbnail_name(), image.root, image.moment
            )
        except (ImageError, OSError) as error:
            return error

    with ThreadPoolExecutor(_DRAWING, "thumbnail") as pool:
        for image, found in zip(images, pool.map(make, images), strict=True):
            if isinstance(found, Path):
                made[image.image_id] = found
            elif isinstance(found, DiskError):
                trouble = f"Pictures are missing: {found}."
    return made, trouble


def make_thumbnail(
    path: Path, folder: Path, name: str, root: Path | None = None, moment: Moment | None = None
) -> Path:
    """A small copy of a picture without metadata, made once; what is damaged is made anew.

    Args:
        path: the picture.
        folder: where thumbnails are kept.
        name: the thumbnail's file name without suffix.
        root: see `open_image`.
        moment: of a clip's frame.

    Returns:
        The thumbnail's file, a WebP.

    Raises:
        ImageError: the picture cannot be opened.
        DiskError: the folder cannot be written.
    """
    thumbnail = folder / f"{name}.webp"
    if _is_thumbnail(thumbnail, folder):
        with suppress(OSError):
            if time.time() - thumbnail.stat().st_mtime > _USED:
                os.utime(thumbnail)
        return thumbnail
    image = open_picture(CollectionImage(0, path, path.name, root=root, moment=moment))
    return keep_thumbnail(image, folder, name)


def keep_thumbnail(image: Image.Image, folder: Path, name: str) -> Path:
    """As `make_thumbnail`, of a picture that is open; it is made smaller itself."""
    thumbnail = folder / f"{name}.webp"
    image.thumbnail((SIDE, SIDE))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=folder, suffix=".partial")
        try:
            with os.fdopen(handle, "wb") as file:
                image.save(file, "WEBP", quality=82, method=2)  # 4 takes twice as long
                size = file.tell()
            Path(partial).replace(thumbnail)
        finally:
            Path(partial).unlink(missing_ok=True)
    except OSError as error:
        raise DiskError(
            f"thumbnails cannot be kept on the disk ({reason(error)}); make room in the cache "
            "folder, or set POLYVIEW_CACHE to another disk"
        ) from error
    _look_after(folder, size)
    return thumbnail


def _is_thumbnail(path: Path, folder: Path) -> bool:
    try:
        return _is_whole(path, folder.resolve(), Stamp.of(path))
    except OSError:
        return False


@lru_cache(_KNOWN)
def _is_whole(path: Path, folder: Path, _stamp: Stamp) -> bool:
    """Whether a file is what `make_thumbnail` writes; looked at again where it has changed."""
    try:
        with open_image_file(path, path.name, folder) as file:
            image, _ = open_header(file, path.name)
            whole = max(image.size) <= SIDE and image.format == "WEBP"
            if whole:
                image.load()
            return whole and not {"exif", "xmp"} & image.info.keys()
    except Exception:  # decoders raise nearly anything on damaged files
        return False


def sweep(folder: Path) -> None:
    """Deletes the thumbnails that were used longest ago, where all together are too large."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            about = entry.stat(follow_symlinks=False)
            found.append((about.st_mtime, about.st_size, entry.path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > FOLDER_BYTES:
            with suppress(OSError):
                Path(path).unlink()


def _look_after(folder: Path, size: int) -> None:
    """Counts what was written; after much of it, all is looked at beside the answer."""
    global _written
    with _counting:
        _written += size
        if _written < LOOK_AFTER:
            return
        _written = 0
    threading.Thread(target=sweep, args=(folder,), daemon=True, name="thumbnails").start()
