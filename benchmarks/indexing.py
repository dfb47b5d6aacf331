"""How fast a folder of pictures is indexed, beside the bare image encoder.

`python -m benchmarks.indexing --pack PACK --gallery DIR`

The bare encoder runs on pictures that are decoded already, once with all threads on a batch, and
once with a batch for each; the faster of the two is the measure. The app also decodes them, makes
one method's views of them, after that the other methods', and keeps what it made on disk, in a
cache folder of this run alone. Both use as many threads as there are processors.

A machine's speed drifts, sometimes within seconds: the bare encoder runs before the app and after
it, all is repeated, and the table has medians. Beside the ratio is its range.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.gallery.collection import Collection, CollectionImage, from_folder
from app.gallery.encoder import SHARD
from app.gallery.images import ImageError, open_image
from app.gallery.indexing import IMAGES_AT_ONCE
from app.search.retriever import Retriever
from export.runtime import Runtime
from export.sessions import processor

_BARE = (
    "bare encoder, all threads on one batch",
    "bare encoder, a batch for each thread",
    "decoding alone, one thread",
)


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.indexing")
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--gallery", type=Path, required=True, help="folder of pictures")
    parser.add_argument("--pictures", type=int, default=1000, help="how many of them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cpu")
    given = parser.parse_args(argv)
    try:
        runtime = Runtime.load(given.pack, given.device)
        collection = from_folder(given.gallery)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    collection = replace(collection, images=collection.images[: given.pictures])
    count = len(collection.images)
    print(f"pack {runtime.info.name}, {len(runtime.methods)} methods, {count:,} pictures")
    print(f"{processor()}, {os.cpu_count()} cores, {', '.join(runtime.providers)}")
    runs = []
    for number in range(given.repeats):
        runs.append(_measure(runtime, collection))
        ratio = runs[-1]["the app, one method"] / _best(runs[-1])
        print(f"run {number + 1}: {ratio:.2f} of the bare encoder", flush=True)
    print(f"{'medians':<40} {'pictures/s':>10} {'ratio':>6} {'range':>12}")
    for name in runs[0]:
        ratios = [run[name] / _best(run) for run in runs]
        print(
            f"{name:<40} {statistics.median(run[name] for run in runs):>10.1f} "
            f"{statistics.median(ratios):>6.2f} {min(ratios):>6.2f}-{max(ratios):.2f}"
        )
    return 0


def _measure(runtime: Runtime, collection: Collection) -> dict[str, float]:
    """Pictures a second of one run, by what was measured."""
    count = len(collection.images)
    before = _bare(runtime, collection.images[: count // 2])
    first, every = _app(runtime, collection)
    after = _bare(runtime, collection.images[count // 2 :])
    bare = (count / sum(both) for both in zip(before, after, strict=True))
    return dict(zip(_BARE, bare, strict=True)) | {
        "the app, one method": first,
        "the app, all methods": every,
    }


def _best(run: dict[str, float]) -> float:
    """The bare encoder's rate, the faster way."""
    return max(run[name] for name in _BARE[:2])


def _bare(runtime: Runtime, images: Sequence[CollectionImage]) -> tuple[float, float, float]:
    """Seconds that each of `_BARE` takes."""
    together = alone = decoding = 0.0
    with ThreadPoolExecutor(runtime.threads) as crew:
        for start in range(0, len(images), IMAGES_AT_ONCE):
            began = time.perf_counter()
            squares = []
            for image in images[start : start + IMAGES_AT_ONCE]:
                try:
                    squares.append(runtime.preprocess.square(open_image(image.path)))
                except ImageError:
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
