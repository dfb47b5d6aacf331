"""How fast a folder of pictures is indexed, beside the bare image encoder.

`python -m benchmarks.indexing --pack PACK --gallery DIR`

The bare encoder runs on pictures that are decoded already, in batches as large as the app's. The
app also decodes them, makes every method's views of them, and keeps what it made on disk, in a
cache folder of this run alone. Both use as many threads as there are processors.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.collection import Collection, from_folder
from app.index import PICTURES_AT_ONCE, Index
from app.machine import processor
from app.pictures import PictureError, open_picture
from export.runtime import Runtime


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.indexing")
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--gallery", type=Path, required=True, help="folder of pictures")
    parser.add_argument("--pictures", type=int, default=1000, help="how many of them")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cpu")
    given = parser.parse_args(argv)
    try:
        runtime = Runtime.load(given.pack, given.device)
        collection = from_folder(given.gallery)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    collection = replace(collection, pictures=collection.pictures[: given.pictures])
    count = len(collection.pictures)
    print(f"pack {runtime.info.name}, {len(runtime.methods)} methods, {count:,} pictures")
    print(f"{processor()}, {os.cpu_count()} cores, {', '.join(runtime.providers)}")
    bare, decoding = _bare(runtime, collection)
    app = _app(runtime, collection)
    print(f"{'':<24} {'pictures/s':>10} {'ratio':>6}")
    for name, rate in (("bare encoder", bare), ("decoding alone", decoding), ("the app", app)):
        print(f"{name:<24} {rate:>10.1f} {rate / bare:>6.2f}")
    return 0


def _bare(runtime: Runtime, collection: Collection) -> tuple[float, float]:
    """Pictures a second of the encoder alone, and of decoding alone, in one thread."""
    encoding = decoding = 0.0
    seen = 0
    for start in range(0, len(collection.pictures), PICTURES_AT_ONCE):
        began = time.perf_counter()
        squares = []
        for picture in collection.pictures[start : start + PICTURES_AT_ONCE]:
            try:
                squares.append(runtime.preprocess.square(open_picture(picture.path)))
            except PictureError:
                continue  # the app names it; here it only must not stop the measurement
        decoded = time.perf_counter()
        pixels = np.stack([np.asarray(square, np.uint8) for square in squares])
        normal = runtime.preprocess.planes(pixels)
        ready = time.perf_counter()
        runtime.pixel_features(normal)
        encoding += time.perf_counter() - ready
        decoding += decoded - began
        seen += len(squares)
    return seen / encoding, seen / decoding


def _app(runtime: Runtime, collection: Collection) -> float:
    """Pictures a second that become searchable in the app."""
    with tempfile.TemporaryDirectory() as fresh:
        index = Index(runtime, collection, Path(fresh))
        began = time.perf_counter()
        report = index.add(collection.pictures, lambda _done, _total: None, threading.Event())
        return report.added / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
