"""A process that fills a gallery, without pictures and without torch, so that it starts quickly.

Embeddings are drawn from what they are of, so that anybody can tell whether they are right.
"""

import hashlib
import random
import sys
from pathlib import Path

import numpy as np

from app.gallery.embedding_cache import Catalogue
from app.gallery.image_files import Contents

SPACES = ("views one", "views two")
SHAPE = (3, 40)
_AT_ONCE = 4


def vectors(space: str, digests: list[bytes]) -> np.ndarray:
    """The only right rows (B, 3, 40) of contents in a space."""
    seeds = [hashlib.sha256(space.encode() + digest).digest() for digest in digests]
    drawn = [np.random.default_rng(list(seed)).standard_normal(SHAPE) for seed in seeds]
    return np.array(drawn, np.float32).reshape(-1, *SHAPE)


def contents(path: Path) -> Contents:
    """What is in a file now."""
    with path.open("rb") as file:
        return Contents.of(file)


def fill(photos: Path, gallery: Path, report: Path, seed: int) -> None:
    """Indexes a folder in an order of its own, and appends the SHA-256 of what is indexed."""
    files = sorted(photos.iterdir())
    random.Random(seed).shuffle(files)
    catalogue = Catalogue(gallery)
    with report.open("a", buffering=1) as out:
        for start in range(0, len(files), _AT_ONCE):
            part = files[start : start + _AT_ONCE]
            found = {path.name: contents(path) for path in part}
            catalogue.record(found)
            digests = [known.digest for known in found.values()]
            new = {}
            for space in SPACES:
                known = catalogue.load(space, digests)
                missing = [digest for digest in digests if digest not in known]
                new[space] = (missing, vectors(space, missing))
            catalogue.save(new)
            out.writelines(f"{digest.hex()}\n" for digest in digests)
    catalogue.prune(photos, [path.name for path in files])
    catalogue.close()


if __name__ == "__main__":
    print("ready", flush=True)
    PHOTOS, GALLERY, REPORT = map(Path, sys.argv[1:4])
    fill(PHOTOS, GALLERY, REPORT, seed=int(sys.argv[4]))
