"""Small copies of images without metadata, kept in one folder of bounded size."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from PIL import Image

from polyview.app.gallery.images import ImageError, reason
from polyview.app.gallery.scan import CollectionImage
from polyview.app.gallery.video import open_frame
from polyview.models.files import replacing

SIDE = 320  # pixels of the longer side
FOLDER_BYTES = 2_000_000_000  # above this, the least recently used are deleted
_USED = 24 * 3600.0  # seconds between updates of the time of use


def make_thumbnail(image: CollectionImage, folder: Path) -> Path:
    """Makes a thumbnail, unless it exists.

    Args:
        image: a file or a frame of a clip.
        folder: the folder of all thumbnails.

    Returns:
        The thumbnail's file, a WebP.

    Raises:
        ImageError: the image cannot be opened, or the thumbnail cannot be written.
        OSError: the image's file does not exist.
    """
    thumbnail = folder / f"{image.thumbnail_name()}.webp"
    with suppress(OSError):
        if time.time() - thumbnail.stat().st_mtime > _USED:
            os.utime(thumbnail)
        return thumbnail
    return keep_thumbnail(open_frame(image), thumbnail)


def keep_thumbnail(image: Image.Image, thumbnail: Path) -> Path:
    """Shrinks an open image in place and writes it atomically as a thumbnail."""
    image.thumbnail((SIDE, SIDE))
    try:
        with replacing(thumbnail) as draft:
            image.save(draft, "WEBP", quality=82, method=2)  # 4 takes twice as long
    except OSError as error:
        raise ImageError(
            f"thumbnails cannot be written ({reason(error)}); make room in the cache folder, or "
            "set POLYVIEW_CACHE to another disk"
        ) from error
    return thumbnail


def sweep(folder: Path) -> None:
    """Deletes the least recently used thumbnails if the folder is too large."""
    files, total = [], 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            files.append((status.st_mtime, status.st_size, entry.path))
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > FOLDER_BYTES:
            with suppress(OSError):
                Path(path).unlink()
