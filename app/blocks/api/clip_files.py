"""Sends the file of a clip to who plays it, whole or in part (RFC 9110, section 14)."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from app.gallery.image_files import Stamp
from app.search.retriever import Retriever

_KINDS = {".mov": "video/quicktime", ".mkv": "video/x-matroska", ".webm": "video/webm"} | {
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".png": "image/png",
    ".apng": "image/apng",
}
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
_CHUNK = 2**18  # bytes sent at once


def send_clip(retriever: Retriever, image_id: int, asked: str | None) -> Response:
    """The file that an image is a frame of.

    Args:
        retriever: in whose gallery it is.
        image_id: of any of the clip's frames.
        asked: the request's header Range; of several ranges, or one that is none, all is sent.

    Returns:
        200 with all of it, 206 with a part, or 416 where there is no such part.

    Raises:
        ValueError: there is no such image, it is no clip, or its file cannot be opened.
    """
    image = retriever.image(image_id)
    if image.moment is None:
        raise ValueError(f"picture {image_id} is no clip; /image shows it")
    file = image.reached().open()
    size = Stamp.of(file).size
    part = _part(asked or "", size)
    whole = part is None
    part = range(size) if part is None else part
    kind = _KINDS.get(PurePath(image.file).suffix.lower(), "video/mp4")
    headers = {"accept-ranges": "bytes", "content-encoding": "identity"}
    headers["cache-control"] = "private, no-cache"
    if not part:
        file.close()
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{size}"})
    headers["content-length"] = str(len(part))
    if not whole:
        headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return StreamingResponse(_read(file, part), 200 if whole else 206, headers, kind)


def _part(asked: str, size: int) -> range | None:
    """The bytes that a header asks for, of which a file may have none; None for all."""
    found = _RANGE.fullmatch(asked.strip())
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        return range(max(0, size - int(last)), size)
    return range(int(first), min(size, int(last) + 1) if last else size)


def _read(file: BinaryIO, part: range) -> Iterator[bytes]:
    with file:
        file.seek(part.start)
        left = len(part)
        while left > 0 and (content := file.read(min(_CHUNK, left))):
            left -= len(content)
            yield content
