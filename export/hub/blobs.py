"""Files in the Hub client's cache against what the Hub stated of them.

The client looks at the size of what it fetched, never at its bytes. The cache names each file by
the checksum that the Hub stated: a SHA-256 for large files, git's SHA-1 for others.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub import constants

_CHUNK = 1 << 20


def forget_damaged(folder: Path, names: Iterable[str]) -> list[str]:
    """Removes files whose bytes are not those that the Hub stated, so that they are fetched again.

    Args:
        folder: of a commit, in the cache.
        names: files in it. Where the system knows no links, or the server states no checksum,
            nothing is known of a file, and it stays.

    Returns:
        The names of those that were removed.
    """
    removed = []
    for name in names:
        link = folder / name
        if not link.is_symlink() or not link.exists():
            continue
        blob = link.parent / link.readlink()  # a link itself where caches share their files
        if not _is_own(blob, folder) or blob.name in _checksums(link, blob.name):
            continue
        if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
            for path in (blob.resolve(), blob, link):
                path.unlink(missing_ok=True)
            removed.append(name)
    return removed


def forget(folder: Path, names: Iterable[str]) -> None:
    """Removes files of a commit and their bytes, but for those that another commit has as well.

    Where nothing is left of the commit, the branches and tags that mean it are forgotten, too.

    Args:
        folder: of the commit, in the cache.
        names: files in it; those that are not there are left out.
    """
    blobs = set()
    for link in (folder / name for name in names):
        if link.is_symlink():
            blobs.add(Path(os.path.normpath(link.parent / link.readlink())))
        link.unlink(missing_ok=True)
    rest = (link for link in folder.parent.rglob("*") if link.is_symlink())
    used = {Path(os.path.normpath(link.parent / link.readlink())) for link in rest}
    for blob in blobs - used:
        if _is_own(blob, folder):
            blob.unlink(missing_ok=True)
    places = [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]
    for place in [*sorted(places, reverse=True), folder]:
        with suppress(OSError):  # something is left in it
            place.rmdir()
    if not folder.exists():
        for ref in (folder.parents[1] / "refs").rglob("*"):
            if ref.is_file() and ref.read_bytes() == folder.name.encode():
                ref.unlink()


def forget_partial(repo_id: str, cache_dir: Path | None = None) -> None:
    """Removes what downloads that were killed left of a repository; those under way stay.

    The client downloads to a file of a new name each time, and holds a lock meanwhile.
    """
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    name = f"models--{repo_id.replace('/', '--')}"
    for path in (cache / name / "blobs").glob("*.incomplete"):
        checksum = path.name.partition(".")[0]
        with suppress(OSError, Timeout):
            (cache / ".locks" / name).mkdir(parents=True, exist_ok=True)
            with FileLock(cache / ".locks" / name / f"{checksum}.lock", timeout=0):
                path.unlink(missing_ok=True)


def _is_own(blob: Path, folder: Path) -> bool:
    """Whether a file lies where the cache keeps the bytes of a commit's repository."""
    return (
        Path(os.path.normpath(blob)).parent == Path(os.path.normpath(folder.parents[1])) / "blobs"
    )


def _checksums(path: Path, like: str) -> set[str]:
    """What a file may be called, by a checksum as long as `like`."""
    if len(like) == 64:
        digests = [hashlib.sha256()]
    else:  # mirrors of the Hub leave out git's header
        header = f"blob {path.stat().st_size}\0".encode()
        digests = [hashlib.sha1(header), hashlib.sha1()]
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            for digest in digests:
                digest.update(chunk)
    return {digest.hexdigest() for digest in digests}
