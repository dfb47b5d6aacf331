"""Files that visitors upload; each upload has a secret key, and the total size is limited."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from secrets import token_hex

from polyview.app.gallery.scan import Collection
from polyview.app.refusal import Refusal

MAX_FILES = 1000  # files of an upload
MAX_ALL_BYTES, MAX_ALL_FILES = 2_000_000_000, 5_000  # limits on all uploads together
MIN_FREE_BYTES = 500_000_000  # bytes that must stay free on the disk
MAX_UPLOADS = 16
UPLOAD_SECONDS = 2 * 3600.0  # time after which an unused upload is deleted
FULL_UPLOAD_SECONDS = 600.0  # the shorter time if a new upload would exceed `MAX_UPLOADS`


@dataclass
class Upload:
    """The files of one upload."""

    folder: Path
    files: list[tuple[Path, str]] = field(default_factory=list)  # paths and original names
    size: int = 0  # total bytes
    last_used: float = field(default_factory=time.monotonic)  # time of the last request
    images: Collection | None = None  # the images of the files; None until reading starts


class Uploads(dict[str, Upload]):
    """Open uploads by key; safe to use from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()

    def create(self) -> str:
        """Creates an upload and returns its key; raises `Refusal` if there are too many."""
        with self._lock:
            if len(self) >= MAX_UPLOADS:
                raise Refusal(503, "there are too many uploads; try again in ten minutes", 60)
            key = f"upload-{token_hex(16)}"
            self[key] = Upload(Path(tempfile.mkdtemp(prefix="polyview-upload-")).resolve())
        return key

    def renew(self, key: str) -> Upload:
        """Returns an upload and extends its lifetime; raises `Refusal` if it no longer exists."""
        if (upload := self.get(key)) is None:
            raise Refusal(410, "this upload no longer exists; upload the files again")
        upload.last_used = time.monotonic()
        return upload

    def add(self, key: str, name: str, content: bytes) -> None:
        """Adds a file to an upload; raises `Refusal` or ValueError if the file is not accepted."""
        name = "".join(c for c in PurePosixPath(name.replace("\\", "/")).name if c.isprintable())
        if not name:
            raise ValueError("name is empty; name the file, such as beach.jpg")
        with self._lock:
            upload = self.renew(key)
            if len(upload.files) >= MAX_FILES:
                raise ValueError(f"there are {MAX_FILES:,} files already; begin a new collection")
            size = sum(other.size for other in self.values()) + len(content)
            file_count = sum(len(other.files) for other in self.values())
            free_bytes = shutil.disk_usage(upload.folder).free - len(content)
            if size > MAX_ALL_BYTES or file_count >= MAX_ALL_FILES or free_bytes < MIN_FREE_BYTES:
                raise Refusal(503, "there is no room for more files; try again later", 60)
            path = upload.folder / f"{len(upload.files):04}"
            path.write_bytes(content)
            upload.size += len(content)
            upload.files.append((path, name[-200:]))

    def delete(self, key: str) -> None:
        """Deletes an upload with its files."""
        if upload := self.pop(key, None):
            shutil.rmtree(upload.folder, ignore_errors=True)

    def expired_keys(self, making_room: bool = False) -> list[str]:
        """Returns the keys of expired uploads: those that were not used for `UPLOAD_SECONDS`.

        With `making_room`, if there are `MAX_UPLOADS` and none has expired, the least recently used
        one expires after `FULL_UPLOAD_SECONDS`. Without `making_room`, the largest upload expires,
        too, if the disk is nearly full or all uploads together exceed `MAX_ALL_BYTES`.
        """
        now = time.monotonic()
        with self._lock:
            ages = {key: now - upload.last_used for key, upload in self.items()}
            keys = [key for key, age in ages.items() if age > UPLOAD_SECONDS]
            if making_room:
                if keys or len(self) < MAX_UPLOADS:
                    return keys
                oldest = max(ages, key=lambda key: ages[key])
                return [oldest] if ages[oldest] > FULL_UPLOAD_SECONDS else []
            sizes = {key: _disk_bytes(self[key].folder) for key in self if key not in keys}
        if sizes:
            free_bytes = shutil.disk_usage(tempfile.gettempdir()).free
            if sum(sizes.values()) > MAX_ALL_BYTES or free_bytes < MIN_FREE_BYTES:
                keys.append(max(sizes, key=lambda key: sizes[key]))
        return keys


def _disk_bytes(folder: Path) -> int:
    """Returns the total size of the files in a folder."""
    sizes = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # the file was deleted in the meantime
            sizes.append(path.stat().st_size)
    return sum(sizes)
