"""How fast clips are indexed, beside decoding alone and encoding alone.

`python -m benchmarks.clips [--pack PACK] [--clips N] [--seconds S]`

The clips are made first, of the bundled scenes: MP4 with H.264, 1280 x 720 at 30 frames a second,
each scene moved slowly for two seconds. *Decoding* opens all of them as the app does, and gives the
frames that it takes; *encoding* runs the image encoder and a head on frames that are there;
*indexing* is the app's, which does both at once and keeps what it made. All use as many threads as
the app. Rates are of frames looked at: those of the clips, of which the app takes about one in 30.

A machine's speed drifts: the three run one after the other, all is repeated, and the ratios of a
run stand beside each other.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
from PIL import Image

from app.gallery.clips import chosen_frames
from app.gallery.collection import Collection, CollectionImage, from_folder
from app.gallery.encoder import SHARD
from app.search.retriever import Retriever
from app.settings import BUNDLED, PHOTOGRAPHS, SCENES
from export.runtime import Runtime
from export.sessions import processor

RATE, SIZE, SHOWN = 30, (1280, 720), 2  # frames a second; pixels; seconds of a scene


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clips")
    parser.add_argument("--pack", type=Path, default=BUNDLED / PHOTOGRAPHS)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20, help="of each clip")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(argv)
    runtime = Runtime.load(given.pack, "cpu")
    print(f"pack {runtime.info.name}, {given.clips} clips of {given.seconds} s")
    print(f"{processor()}, {os.cpu_count()} cores, {runtime.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.clips):
            write(Path(folder) / f"{number}.mp4", number, given.seconds)
        collection = from_folder(Path(folder))
        looked = given.clips * given.seconds * RATE
        runs = [_measure(runtime, collection) for _ in range(given.repeats)]
    print(f"{'':<10} {'seconds':>8} {'frames looked at/s':>19}")
    for name in runs[0]:
        median = statistics.median(run[name] for run in runs)
        print(f"{name:<10} {median:>8.2f} {looked / median:>19.0f}")
    for name in ("decoding", "encoding"):
        ratios = sorted(run["indexing"] / run[name] for run in runs)
        middle = statistics.median(ratios)
        print(f"indexing / {name}: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    ratios = sorted(run["indexing"] / (run["decoding"] + run["encoding"]) for run in runs)
    middle = statistics.median(ratios)
    print(f"indexing / both in turn: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return 0


def write(path: Path, number: int, seconds: int) -> None:
    """Makes a clip; another one for every number."""
    scenes = sorted((BUNDLED / SCENES / "gallery" / "images").iterdir())
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", RATE, {"preset": "veryfast"})
        stream.width, stream.height = SIZE
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, RATE)
        for at in range(seconds * RATE):
            scene, step = divmod(at, SHOWN * RATE)
            if step == 0:
                place = (number * seconds + scene) % len(scenes)
                drawn = Image.open(scenes[place]).convert("RGB").resize((SIZE[0] + 60, SIZE[1]))
            frame = av.VideoFrame.from_image(drawn.crop((step, 0, step + SIZE[0], SIZE[1])))
            frame.pts, frame.time_base = at, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _measure(runtime: Runtime, collection: Collection) -> dict[str, float]:
    """Seconds of one run, by what was measured."""
    began = time.perf_counter()
    with ThreadPoolExecutor(runtime.threads) as crew:
        frames = [frame for part in crew.map(_decode, collection.images) for frame in part]
        decoded = time.perf_counter()
        squares = [runtime.preprocess.square(frame) for frame in frames]
        ready = time.perf_counter()
        name = next(iter(runtime.methods))

        def encode(start: int) -> None:
            part = squares[start : start + SHARD]
            runtime.image_views(runtime.square_features(part, name, alone=True), name)

        list(crew.map(encode, range(0, len(squares), SHARD)))
        encoded = time.perf_counter()
    with tempfile.TemporaryDirectory() as fresh:
        index = Retriever(runtime, collection, Path(fresh), first=name).index
        start = time.perf_counter()
        index.start()
        index.first_done.wait()
        indexed = time.perf_counter() - start
        index.wait()
    return {"decoding": decoded - began, "encoding": encoded - ready, "indexing": indexed}


def _decode(image: CollectionImage) -> list[Image.Image]:
    with image.open() as file:
        return [frame for _, frame in chosen_frames(file, image.file)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
