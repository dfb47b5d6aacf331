"""Which folders on this machine a collection in Qdrant was filled from.

What a server says of a picture's file may be anything, so a file is opened only within a folder
that somebody on this machine named: by migrating it, which is noted in the cache, or in the
gallery's address (`?pictures=DIR`).
"""

import hashlib
import json
import os
from pathlib import Path

from app.gallery.qdrant.address import Address
from models.files import write_whole

_MOST = 100  # folders of one collection


def note_root(cache: Path, address: Address, root: Path) -> None:
    """Remembers that a collection was filled from a folder.

    Args:
        cache: the user's cache folder.
        address: of the collection.
        root: the folder, resolved.

    Raises:
        OSError: the cache cannot be written.
    """
    roots = list(dict.fromkeys([str(root), *known_roots(cache, address)]))[:_MOST]
    write_whole(_place(cache, address), json.dumps(roots))


def known_roots(cache: Path, address: Address) -> tuple[str, ...]:
    """The folders noted for a collection; none where nothing was, or not by this machine."""
    try:
        found = json.loads(_place(cache, address).read_text())
    except (OSError, ValueError):
        return ()
    return tuple(root for root in found if isinstance(root, str)) if isinstance(found, list) else ()


def _place(cache: Path, address: Address) -> Path:
    name = hashlib.sha256(os.fsencode(str(address))).hexdigest()[:24]
    return cache / "qdrant" / f"{name}.json"
