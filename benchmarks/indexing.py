"""Measures indexing: `python -m benchmarks.indexing --pack PACK --gallery DIR`.

The table compares the images per second of the app and of the image encoder alone. The encoder runs
on decoded images, each batch in one thread. The app also decodes images, computes the views of all
methods, and writes them to an empty cache.

The speed of a machine drifts. Each run therefore measures one half of the encoder's images before
the app and the other half after it. The table has medians, and ranges relative to the encoder.
"""

import argparse
import contextlib
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

from polyview.app.gallery.encode import MAX_BATCH
from polyview.app.gallery.images import ImageError, open_image
from polyview.app.gallery.scan import Collection, CollectionImage, from_folder
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED, PHOTOGRAPHS
from polyview.export.runtime import Runtime
from polyview.export.sessions import processor


def main(argv: Sequence[str]) -> int:
    """Measures the app and the encoder and prints a table; returns the exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.indexing")
    parser.add_argument("--pack", type=Path, default=BUNDLED / PHOTOGRAPHS, help="a pack's folder")
    parser.add_argument("--gallery", type=Path, required=True, help="folder of images")
    parser.add_argument("--images", type=int, default=1000, help="number of images (default: 1000)")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs (default: 3)")
    options = parser.parse_args(argv)
    try:
        runtime = Runtime.load(options.pack, "cpu")
        collection = from_folder(options.gallery)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    collection = replace(collection, images=collection.images[: options.images])
    count = len(collection.images)
    print(
        f"pack {runtime.info.name}, {len(runtime.methods)} methods, {processor()}, "
        f"{os.cpu_count()} cores, {runtime.threads} threads, {count:,} images"
    )
    images, middle = collection.images, count // 2
    runs = []  # seconds of the encoder and of the app
    for _ in range(options.repeats):
        encoder_time = encoder_seconds(runtime, images[:middle])
        app_time = app_seconds(runtime, collection)
        encoder_time += encoder_seconds(runtime, images[middle:])
        runs.append((encoder_time, app_time))
    print(f"{'median of the runs':<40} {'images/s':>9} {'encoder = 1.00':>17} {'range':>12}")
    for i, name in enumerate(("encoder alone", "the app")):
        ratios = [run[0] / run[i] for run in runs]
        rate = count / statistics.median(run[i] for run in runs)
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"{name:<40} {rate:>9.1f} {statistics.median(ratios):>17.2f} {spread:>12}")
    return 0


def encoder_seconds(runtime: Runtime, images: Sequence[CollectionImage]) -> float:
    """Returns the seconds that the encoder alone takes; each batch runs in one thread."""
    seconds = 0.0
    with ThreadPoolExecutor(runtime.threads) as pool:
        for start in range(0, len(images), 4 * MAX_BATCH):
            squares = []
            for image in images[start : start + 4 * MAX_BATCH]:
                with contextlib.suppress(ImageError):  # the app reports such files
                    squares.append(runtime.preprocess.square(open_image(image.path)))
            pixels = runtime.preprocess(squares)
            chunks = np.array_split(pixels, max(1, len(pixels) // MAX_BATCH))
            start_time = time.perf_counter()
            list(pool.map(lambda chunk: runtime.pixel_features(chunk, single_thread=True), chunks))
            seconds += time.perf_counter() - start_time
    return seconds


def app_seconds(runtime: Runtime, collection: Collection) -> float:
    """Returns the seconds until the app has indexed all images."""
    with tempfile.TemporaryDirectory() as cache:
        index = Retriever(runtime, collection, Path(cache)).index
        start = time.perf_counter()
        index.start()
        index.images_done.wait()
        seconds = time.perf_counter() - start
        index.wait()  # the encoding of captions also needs the folder
        return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
