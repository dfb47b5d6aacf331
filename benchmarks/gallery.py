"""Measures the speed of searches: `python -m benchmarks.gallery latency|index|mistakes`.

`latency` measures text queries, one at a time, and the text encoder alone. A query includes the
tokenizer, the ONNX text encoder, the head and the exact search. The texts are captions of the
pack's gallery. `--record` stores the medians next to the pack, where the app reads them.

`index` compares galleries of random clustered images with a brute-force search in float32. That
search multiplies matrices in NumPy or, for Sinkhorn matching, scores all images in torch. Recall is
the share of its ten best images that the gallery finds. A million images of 4 x 512 take 15 GB.

`mistakes` measures the time and peak memory of ranking random images for captions, as on the screen
Mistakes: `mistakes --rules max --sizes 100000 --queries 5000`.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from polyview import models
from polyview.app.api.mistakes import file_scores
from polyview.app.gallery.index import Gallery
from polyview.app.gallery.scan import from_pack
from polyview.app.search.retriever import Retriever, Term
from polyview.app.settings import BUNDLED
from polyview.export.mistakes import Caption, rank_captions
from polyview.export.runtime import Runtime
from polyview.export.sessions import hardware, processor
from polyview.models import Method, Views

CLIENTS, HITS = 16, 10  # numbers of concurrent clients, and of hits of a query
WARM_UP = 20  # number of queries before the timed ones
PROBES = 64  # number of queries with which the gallery measures its recall
CHUNK = 4096  # number of images that are drawn or scored together
SMALL_CHUNK = 512  # the same while peak memory is measured
# scoring rule -> method, arguments, views V of an image, their width D, views W of a query
RULES: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "cosine": ("vse_infty", {"embed_dim": 1024}, 1, 1024, 1),
    "max": ("mv_vse", {"embed_dim": 512, "views": 4}, 4, 512, 1),
    "pairs": ("pvse", {"embed_dim": 512, "views": 4}, 4, 512, 4),
    "joined": ("mvam", {"embed_dim": 512, "views": 4}, 4, 512, 4),
    "sinkhorn": ("avse", {"embed_dim": 512, "views": 2}, 2, 512, 1),
}


def main(argv: Sequence[str]) -> int:
    """Runs a measurement and prints its results; returns the exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery")
    add, pack, rules = parser.add_argument, BUNDLED / "scenes", list(RULES)
    sizes = [10**4, 10**5, 10**6]
    add("measurement", choices=["latency", "index", "mistakes"])
    add("--pack", type=Path, default=pack, help=f"pack of `latency` (default: {pack})")
    add("--queries", type=int, default=40, help="number of timed queries (default: 40)")
    add("--sizes", type=int, nargs="+", default=sizes, help="image counts (default: %(default)s)")
    add("--rules", nargs="+", choices=rules, default=rules, help="scoring rules (default: all)")
    add("--record", action="store_true", help="store the medians of `latency` next to the pack")
    options = parser.parse_args(argv)
    if min([options.queries, *options.sizes]) < 1:
        parser.error("--sizes and --queries must be at least 1")
    print(f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, seed 0, milliseconds")
    if options.measurement == "latency":
        results = measure_latency(options.pack, options.queries)
        if options.record:
            command = shlex.join(["python", "-m", "benchmarks.gallery", *argv])
            path = options.pack.parent / f"{options.pack.name}.speed.json"
            path.write_text(json.dumps(results | {"command": command}, indent=1) + "\n", "utf-8")
        return 0
    measure = measure_mistakes
    if options.measurement == "index":
        measure = measure_index
        print(f"{'rule':<9} {'images':>9} {'store':<42} {'MB':>7} {'build s':>8} recall", end="")
        print(f" {'p50':>9} {'p95':>9} {f'/s, {CLIENTS} users':>12}")
    for rule in options.rules:
        for size in options.sizes:
            measure(rule, size, options.queries)
    return 0


def measure_latency(pack: Path, query_count: int) -> dict[str, Any]:
    """Measures text queries for every method of a pack; returns medians, counts and hardware."""
    runtime = Runtime.load(pack, "cpu")
    with tempfile.TemporaryDirectory() as cache:
        retriever = Retriever(runtime, from_pack(pack), Path(cache))
        retriever.index.start()
        retriever.index.wait()
        captions = [text for text, _ in retriever.collection.captions]
        rows = np.linspace(0, len(captions) - 1, query_count).round().astype(int)
        texts = [captions[row] for row in rows]
        image_count, medians = len(retriever.index), {}
        terms = [[Term(text)] for text in texts]
        print(f"{pack.name}, {image_count:,} images, one query at a time")
        print(f"{'method':<12} {'p50':>8} {'p95':>8} {'encoder p50':>12} {'ratio':>6}")
        for name in runtime.methods:
            encode = partial(runtime.text_features, method=name)
            search = partial(retriever.search, spec=name, k=HITS)
            encoder = np.median(milliseconds(encode, [[text] for text in texts], WARM_UP))
            p50, p95 = np.percentile(milliseconds(search, terms, WARM_UP), [50, 95]).round(3)
            print(f"{name:<12} {p50:>8.2f} {p95:>8.2f} {encoder:>12.2f} {p50 / encoder:>6.2f}")
            medians[name] = float(p50)
    counts = {"queries": query_count, "pictures": image_count}
    return {"median": medians, **counts, "hardware": hardware(runtime.device)}


def milliseconds(
    function: Callable[[Any], object], queries: Sequence[Any], warm_up: int = 0
) -> np.ndarray:
    """Returns the milliseconds (Q,) of each query, after running `warm_up` queries untimed."""
    for query in queries[:warm_up]:
        function(query)
    return np.array([1000 * timeit(partial(function, query), number=1) for query in queries])


def measure_index(rule: str, size: int, query_count: int) -> None:
    """Measures brute force and the app's gallery over the same images and queries."""
    name, arguments, view_count, dim, query_view_count = RULES[rule]
    torch.manual_seed(0)
    method = models.build(name, 16, 16, arguments).eval().requires_grad_(False)
    images, rng = draw_images(size, view_count, dim), np.random.default_rng(1)  # (N, V, D)
    count = query_count + PROBES  # Q
    centres = images[rng.integers(size, size=count), rng.integers(view_count, size=count)]  # (Q, D)
    shape = (count, query_view_count, dim)  # (Q, W, D)
    texts = to_unit(centres[:, None] + draw_noise(rng, shape, 0.8))
    all_queries = [Views(torch.from_numpy(text[None])) for text in texts]
    timed_queries, probes = all_queries[:query_count], all_queries[query_count:]
    search = brute_force(images, method)
    expected_hits = [*map(search, timed_queries)]
    start_time, gallery = time.perf_counter(), Gallery("images", method, expected_count=size)
    for start in range(0, size, CHUNK):
        batch = torch.from_numpy(images[start : start + CHUNK])
        gallery.add(range(start, start + len(batch)), batch)
    gallery.build_search_index(probes)
    build_seconds = time.perf_counter() - start_time

    def search_gallery(query: Views) -> list[int]:
        return [hit.id for hit in gallery.search(query, HITS)]

    pairs = zip(map(search_gallery, timed_queries), expected_hits, strict=True)
    recall = np.mean([len({*hits} & {*expected}) / len(expected) for hits, expected in pairs])
    for title, find, memory, seconds, recall_share in (
        ("brute force", search, images.nbytes, 0.0, 1.0),
        (f"polyview ({gallery.storage})", search_gallery, gallery.bytes, build_seconds, recall),
    ):
        speed = " ".join(f"{value:>9.1f}" for value in measure_speed(find, timed_queries))
        print(
            f"{rule:<9} {size:>9,} {title:<42} {memory / 2**20:>7,.0f} {seconds:>8.1f} "
            f"{recall_share:>6.3f} {speed}",
            flush=True,
        )


def measure_mistakes(rule: str, size: int, query_count: int) -> None:
    """Measures the time and peak memory of ranking `size` images for `query_count` captions."""
    import resource  # POSIX only

    name, arguments, view_count, dim, query_view_count = RULES[rule]
    torch.manual_seed(0)
    method = models.build(name, 16, 16, arguments).eval().requires_grad_(False)
    start_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # peak memory in KB
    gallery = Gallery("images", method, expected_count=size)
    for start in range(0, size, SMALL_CHUNK):
        ids = range(start, min(start + SMALL_CHUNK, size))
        gallery.add(ids, normalize(torch.randn(len(ids), view_count, dim), dim=2))
    texts = Views(normalize(torch.randn(query_count, query_view_count, dim), dim=2))
    captions = [Caption("", [query % size]) for query in range(query_count)]
    start_time = time.perf_counter()
    rank_captions(captions, [name], size, lambda _, rows: file_scores(gallery, texts[rows], size))
    seconds, memory = time.perf_counter() - start_time, gallery.bytes
    ratio = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_peak) / memory
    print(f"{rule}: {query_count:,} captions over {size:,} images in {seconds:.1f} s;", end=" ")
    print(f"views {memory / 2**20:,.0f} MB ({gallery.storage}), peak {ratio:.2f} times as much")


def draw_images(size: int, view_count: int, dim: int) -> np.ndarray:
    """Draws float32 unit vectors (size, view_count, dim); about 200 images share a centre."""
    rng = np.random.default_rng(0)
    centres = to_unit(rng.standard_normal((max(1, size // 200), dim), np.float32))
    images = np.empty((size, view_count, dim), np.float32)
    for start in range(0, size, CHUNK):
        batch = images[start : start + CHUNK]
        centre = centres[rng.integers(0, len(centres), len(batch))]
        image = to_unit(centre + draw_noise(rng, centre.shape, 0.9))
        batch[:] = to_unit(image[:, None] + draw_noise(rng, batch.shape, 0.6))
    return images


def draw_noise(rng: np.random.Generator, shape: tuple[int, ...], length: float) -> np.ndarray:
    """Draws Gaussian vectors along the last axis; `length` is their root-mean-square length."""
    return rng.standard_normal(shape, np.float32) * np.float32(length / np.sqrt(shape[-1]))


def to_unit(vectors: np.ndarray) -> np.ndarray:
    """Scales vectors to unit length along the last axis."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def brute_force(images: np.ndarray, method: Method) -> Callable[[Views], list[int]]:
    """Returns a function that searches images (N, V, D), if possible with one matrix product."""
    width = method.row_dim(*images.shape[1:])
    flat, chunks = images.reshape(-1, width), torch.from_numpy(images).split(CHUNK)

    @torch.inference_mode()
    def search(query: Views) -> list[int]:
        if method.row_search:
            products = flat @ query.embeddings.numpy().reshape(-1, width).T  # (rows, query rows)
            scores = torch.from_numpy(products.reshape(len(images), -1).max(axis=1))
        else:
            scores = torch.cat([method.score(Views(chunk), query)[:, 0] for chunk in chunks])
        return scores.topk(min(HITS, len(images))).indices.tolist()

    return search


def measure_speed(search: Callable[[Views], list[int]], queries: Sequence[Views]) -> list[float]:
    """Returns p50 and p95 of a single client in ms, and queries/s of `CLIENTS` clients together."""
    elapsed = milliseconds(search, queries)
    with ThreadPoolExecutor(CLIENTS) as clients:
        seconds = timeit(lambda: list(clients.map(search, queries)), number=1)
    return [*np.percentile(elapsed, [50, 95]).tolist(), len(queries) / seconds]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
