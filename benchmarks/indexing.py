"""How fast a folder of pictures is indexed, beside the bare image encoder.

`python -m benchmarks.indexing --pack PACK --gallery DIR`

The bare encoder runs on pictures that are decoded already, in batches as large as the app's, once
with all threads on a batch, and once with a batch for each; the faster of the two is the measure.
The app also decodes them, makes one method's views of them, after that the other methods', and
keeps what it made on disk, in a cache folder of this run alone. Both use as many threads as there
are processors.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.collection import Collection, Picture, from_folder
from app.encoder import SHARD
from app.index import PICTURES_AT_ONCE
from app.machine import processor
from app.pictures import PictureError, open_picture
from app.retriever import Retriever
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
    half = count // 2  # a machine's speed drifts: the encoder runs before the app and after it
    before = _bare(runtime, collection.pictures[:half])
    first, every = _app(runtime, collection)
    after = _bare(runtime, collection.pictures[half:])
    together, alone, decoding = (count / sum(both) for both in zip(before, after, strict=True))
    rates = {
        "bare encoder, all threads on one batch": together,
        "bare encoder, a batch for each thread": alone,
        "decoding alone, one thread": decoding,
        "the app, one method": first,
        "the app, all methods": every,
    }
    print(f"{'':<40} {'pictures/s':>10} {'ratio':>6}")
    for name, rate in rates.items():
        print(f"{name:<40} {rate:>10.1f} {rate / max(together, alone):>6.2f}")
    return 0


def _bare(runtime: Runtime, pictures: Sequence[Picture]) -> tuple[float, float, float]:
    """Seconds that the encoder takes, twice: as in the table; and seconds of decoding."""
    together = alone = decoding = 0.0
    with ThreadPoolExecutor(runtime.threads) as crew:
        for start in range(0, len(pictures), PICTURES_AT_ONCE):
            began = time.perf_counter()
            squares = []
            for picture in pictures[start : start + PICTURES_AT_ONCE]:
                try:
                    squares.append(runtime.preprocess.square(open_picture(picture.path)))
                except PictureError:
                    continue  # the app names it; here it only must not stop the measurement
            decoded = time.perf_counter()
            normal = runtime.preprocess(squares)
            ready = time.perf_counter()
            runtime.pixel_features(normal)
            encoded = time.perf_counter()
            parts = np.array_split(normal, max(1, len(normal) // SHARD))
            list(crew.map(lambda part: runtime.pixel_features(part, alone=True), parts))
            alone += time.perf_counter() - encoded
            together += encoded - ready
            decoding += decoded - began
    return together, alone, decoding


def _app(runtime: Runtime, collection: Collection) -> tuple[float, float]:
    """Pictures a second that the app's first method can find, and that all methods can."""
    with tempfile.TemporaryDirectory() as fresh:
        index = Retriever(runtime, collection, Path(fresh)).index
        began = time.perf_counter()
        index.start()
        index.first_done.wait()
        first = len(index.images[index.first]) / (time.perf_counter() - began)
        index.images_done.wait()
        every = len(index) / (time.perf_counter() - began)
        index.wait()
        return first, every


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
