"""Files in the Hub client's cache against what the Hub stated of them.

The client looks at the size of what it fetched, never at its bytes. The cache names each file by
the checksum that the Hub stated: a SHA-256 for large files, git's SHA-1 for others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

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
        if blob.name in _checksums(link, blob.name):
            continue
        if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
            for path in (blob.resolve(), blob, link):
                path.unlink(missing_ok=True)
            removed.append(name)
    return removed


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
