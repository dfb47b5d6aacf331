"""What a process does that fills a gallery's store without encoding images.

Vectors are drawn from what they are of, so that anybody can tell whether they are right.
"""

import hashlib
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from polyview.app.gallery.images import Stamp
from polyview.app.gallery.store import Content, Store, Vectors

SPACES = ("views one", "views two")
SHAPE = (3, 40)
_AT_ONCE = 4


def vector(space: str, digest: bytes) -> np.ndarray:
    """The only right rows (3, 40) of a content in a space."""
    seed = hashlib.sha256(space.encode() + digest).digest()
    return np.random.default_rng(list(seed)).standard_normal(SHAPE).astype(np.float32)


def digest_of(path: Path) -> bytes:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).digest()


def fill(begins: Connection, photos: Path, gallery: Path, report: Path, seed: int) -> None:
    """Indexes a folder in an order of its own, and appends the SHA-256 of what is indexed."""
    begins.send(None)
    files = sorted(photos.iterdir())
    random.Random(seed).shuffle(files)
    store, new = Store(gallery), dict[str, Vectors]()
    with report.open("a", buffering=1) as out:
        for start in range(0, len(files), _AT_ONCE):
            part = {path.name: digest_of(path) for path in files[start : start + _AT_ONCE]}
            for space in SPACES:
                known = store.load(space, part.values())
                new[space] = {d: vector(space, d) for d in part.values() if d not in known}
            contents = {
                name: (Stamp.of(photos / name), time.time_ns(), Content(digest))
                for name, digest in part.items()
            }
            store.save(new, contents)
            out.writelines(f"{digest.hex()}\n" for digest in part.values())
    store.prune(photos, [path.name for path in files])
    store.close()
