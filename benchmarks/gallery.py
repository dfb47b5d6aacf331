"""How long a query takes over galleries of up to a million images, and what it finds.

`python benchmarks/gallery.py [--sizes 10000 100000 1000000] [--rules max ...] [--out FILE.json]`

Embeddings are drawn around random centres, a few hundred images to each, so that they lie in
clusters as pictures do; a query is drawn around a view of an image. Beside Polyview's gallery, in
the same run: numpy's brute force over float32 (for Sinkhorn matching, the method's own score of
everything), whose ten best are the truth that recall is measured against, and Qdrant
(`qdrant-edge-py`) where it is installed, up to `--qdrant-up-to` images. A million images of 4 x 512
take 15 GB.
"""

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file
import models
from app.gallery.clusters import SavedClusters
from app.gallery.vector_index import Gallery
from export.sessions import processor
from models import Method, Views

IMAGES_OF_CENTRE = 200
SPREAD_OF_IMAGES, SPREAD_OF_VIEWS, SPREAD_OF_QUERIES = 0.9, 0.6, 0.8  # noise beside a unit vector
PROBES = 64
CLIENTS = 16
BEST = 10
_AT_ONCE = 5000


@dataclass(frozen=True)
class Rule:
    """A way to score: a method, and the views of an image and of a text."""

    method: str
    views: int
    dim: int
    query_views: int
    arguments: dict[str, Any]


RULES = {
    "cosine": Rule("vse_infty", 1, 1024, 1, {"embed_dim": 1024}),
    "max": Rule("mv_vse", 4, 512, 1, {"embed_dim": 512, "views": 4}),
    "pairs": Rule("pvse", 4, 512, 4, {"embed_dim": 512, "views": 4}),
    "joined": Rule("mvam", 4, 512, 4, {"embed_dim": 512, "views": 4}),
    "sinkhorn": Rule("avse", 2, 512, 1, {"embed_dim": 512, "views": 2}),
}
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
# rule, images, milliseconds, recall@10
TARGETS = (("max", 10**5, 60.0, 1.0), ("max", 10**6, 40.0, 0.95), ("sinkhorn", 10**5, 150.0, 1.0))


@dataclass(frozen=True)
class Row:
    """What was measured of one store: times in milliseconds, memory in bytes.

    `again_s`: seconds in which clusters are taken from the disk at the next start.
    """

    rule: str
    images: int
    store: str
    kept_as: str
    memory: int
    build_s: float
    recall: float
    p50: float
    p95: float
    clients_p50: float
    clients_per_s: float
    again_s: float = 0.0


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python benchmarks/gallery.py")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--qdrant-up-to", type=int, default=10**4, help="images; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the rows as JSON, too")
    parser.add_argument("--plot", type=Path, help="draw milliseconds against images, as SVG")
    parser.add_argument(
        "--rows", type=Path, nargs="*", default=[], help="rows of earlier runs, for the plot"
    )
    given = parser.parse_args(argv)
    print(f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, seed {given.seed}")
    print(f"Python {platform.python_version()}, times in ms, {given.queries} queries")
    head = ("rule", "images", "store", "MB", "build s", "again s", "recall", "p50", "p95")
    print(_line(*head, "p50 x16", "/s"))
    rows: list[Row] = []
    for name in given.rules:
        for size in given.sizes:
            for row in measure(name, size, given.queries, given.seed, given.qdrant_up_to):
                rows.append(row)
                print(_print_row(row), flush=True)
    for rule, images, most, recall in TARGETS:
        for row in rows:
            if (row.rule, row.images, row.store) == (rule, images, "polyview"):
                reached = row.p50 < most and row.recall >= recall - 1e-9
                print(
                    f"{'reached' if reached else 'MISSED'}: {rule}, {images:,} images under "
                    f"{most:.0f} ms at recall {recall}: {row.p50:.1f} ms at {row.recall:.3f}"
                )
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if given.plot:
        earlier = [Row(**row) for file in given.rows for row in json.loads(file.read_text())]
        plot([*earlier, *rows], given.plot)
    return 0


def plot(rows: Sequence[Row], path: Path) -> None:
    """Cost of a query against the number of images, for each rule and store."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for color, rule in zip(COLORS, RULES, strict=True):
        for store, style in (("polyview", "-o"), ("numpy", ":"), ("score all", ":")):
            line = sorted((r.images, r.p50) for r in rows if (r.rule, r.store) == (rule, store))
            if line:
                label = rule if store == "polyview" else None
                axes.plot(*zip(*line, strict=True), style, color=color, label=label, markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="images", ylabel="ms for a query, p50")
    axes.plot([], [], ":", color="grey", label="brute force in float32")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)


def measure(name: str, size: int, queries: int, seed: int, qdrant_up_to: int) -> list[Row]:
    """All stores over the same images and queries."""
    rule = RULES[name]
    torch.manual_seed(seed)
    method = models.build(rule.method, 16, 16, rule.arguments).eval().requires_grad_(False)
    images = draw(size, rule.views, rule.dim, seed)  # (N, V, D)
    asked = [ask(images, rule, np.random.default_rng([seed, i])) for i in range(queries + PROBES)]
    wanted, probes = asked[:queries], asked[queries:]
    rows = [_brute_force(name, images, method, wanted)]
    truth = rows[0][1]
    rows.append(_polyview(name, images, method, wanted, probes, truth))
    if size <= qdrant_up_to and method.row_search and importlib.util.find_spec("qdrant_edge"):
        rows.append(_qdrant(name, images, method, wanted, truth))
    return [row for row, _ in rows]


def draw(size: int, views: int, dim: int, seed: int) -> np.ndarray:
    """Unit vectors (size, views, dim) float32 in clusters."""
    rng = np.random.default_rng(seed)
    centres = _unit(rng.standard_normal((max(1, size // IMAGES_OF_CENTRE), dim), np.float32))
    images = np.empty((size, views, dim), np.float32)
    for start in range(0, size, _AT_ONCE):
        part = images[start : start + _AT_ONCE]
        centre = centres[rng.integers(0, len(centres), len(part))]
        image = _unit(centre + _noise(rng, centre.shape, SPREAD_OF_IMAGES))
        part[:] = _unit(image[:, None] + _noise(rng, part.shape, SPREAD_OF_VIEWS))
    return images


def ask(images: np.ndarray, rule: Rule, rng: np.random.Generator) -> Views:
    """A query (1, W, D) near views of one image."""
    near = images[rng.integers(len(images))][rng.integers(rule.views)]
    views = _unit(near + _noise(rng, (rule.query_views, rule.dim), SPREAD_OF_QUERIES))
    return Views(torch.from_numpy(views[None]))


def _noise(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> np.ndarray:
    """Of an expected length of `spread`."""
    return rng.standard_normal(shape, np.float32) * np.float32(spread / np.sqrt(shape[-1]))


def _unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def _brute_force(
    name: str, images: np.ndarray, method: Method, queries: Sequence[Views]
) -> tuple[Row, list[list[int]]]:
    """Scores of everything, then the ten best."""
    flat = images.reshape(-1, method.row_dim(*images.shape[1:]))

    def products(query: Views) -> list[int]:
        rows = query.embeddings.numpy().reshape(-1, flat.shape[1])  # (W, row_dim)
        scores = (flat @ rows.T).max(axis=1).reshape(len(images), -1).max(axis=1)
        best = np.argpartition(-scores, BEST)[:BEST]
        return best[np.argsort(-scores[best], kind="stable")].tolist()

    @torch.inference_mode()
    def scored(query: Views) -> list[int]:
        parts = torch.from_numpy(images).split(4096)
        scores = torch.cat([method.score(Views(part), query)[:, 0] for part in parts])
        return scores.topk(BEST).indices.tolist()

    search = products if method.row_search else scored
    found = [search(query) for query in queries]
    store = "numpy" if method.row_search else "score all"
    times = _times(search, queries)
    return Row(
        name, len(images), store, "float32", images.nbytes, 0.0, recall(found, found), *times
    ), found


def _polyview(
    name: str,
    images: np.ndarray,
    method: Method,
    queries: Sequence[Views],
    probes: Sequence[Views],
    truth: Sequence[Sequence[int]],
) -> tuple[Row, list[list[int]]]:
    began = time.perf_counter()
    gallery = Gallery("images", method, expected=len(images))
    for start in range(0, len(images), _AT_ONCE):
        part = torch.from_numpy(images[start : start + _AT_ONCE])
        gallery.add(range(start, start + len(part)), Views(part))
    with tempfile.TemporaryDirectory() as folder:
        saved = SavedClusters(Path(folder), name, str(len(images)))
        gallery.settle(probes, saved)
        build, again = time.perf_counter() - began, 0.0
        if gallery.recall is not None:
            began = time.perf_counter()
            gallery.settle(probes, saved)
            again = time.perf_counter() - began

    def search(query: Views) -> list[int]:
        return [hit.id for hit in gallery.search(query, BEST)]

    found = [search(query) for query in queries]
    return Row(
        name,
        len(images),
        "polyview",
        gallery.kept_as,
        gallery.bytes,
        build,
        recall(found, truth),
        *_times(search, queries),
        again,
    ), found


def _qdrant(
    name: str,
    images: np.ndarray,
    method: Method,
    queries: Sequence[Views],
    truth: Sequence[Sequence[int]],
) -> tuple[Row, list[list[int]]]:
    """Qdrant as it is by default: multivectors, largest inner product, HNSW."""
    import qdrant_edge

    dim = method.row_dim(*images.shape[1:])
    flat = images.reshape(len(images), -1, dim)
    several = qdrant_edge.MultiVectorConfig(qdrant_edge.MultiVectorComparator.MaxSim)
    vectors = qdrant_edge.EdgeVectorParams(
        dim, qdrant_edge.Distance.Dot, multivector_config=several
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        shard = qdrant_edge.EdgeShard.create(folder, qdrant_edge.EdgeConfig(vectors=vectors))
        for start in range(0, len(flat), 500):
            points = [
                qdrant_edge.Point(start + i, rows.tolist())
                for i, rows in enumerate(flat[start : start + 500])
            ]
            shard.update(qdrant_edge.UpdateOperation.upsert_points(points))
        shard.optimize()
        build = time.perf_counter() - began

        def search(query: Views) -> list[int]:
            best: dict[int, float] = {}
            for row in query.embeddings.reshape(-1, dim).tolist():  # the best pair, not the sum
                nearest = qdrant_edge.Query.Nearest([row])
                for hit in shard.query(qdrant_edge.QueryRequest(BEST, query=nearest)):
                    number = int(hit.id)
                    best[number] = max(hit.score, best.get(number, -np.inf))
            return sorted(best, key=lambda i: -best[i])[:BEST]

        found = [search(query) for query in queries]
        times = _times(search, queries)
        on_disk = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
        shard.close()
    row = Row(name, len(images), "qdrant", "HNSW", on_disk, build, recall(found, truth), *times)
    return row, found


def recall(found: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> float:
    """The share of the truth that was found, averaged."""
    shares = [len(set(a) & set(b)) / len(b) for a, b in zip(found, truth, strict=True)]
    return float(np.mean(shares))


def _times(
    search: Callable[[Views], list[int]], queries: Sequence[Views]
) -> tuple[float, float, float, float]:
    """Milliseconds p50 and p95 of one client, p50 of `CLIENTS` at once, and their queries/s."""

    def timed(query: Views) -> float:
        began = time.perf_counter()
        search(query)
        return (time.perf_counter() - began) * 1000

    alone = [timed(query) for query in queries]
    asked = queries if np.median(alone) < 200 else queries[:CLIENTS]  # where each takes seconds
    with ThreadPoolExecutor(CLIENTS) as clients:
        began = time.perf_counter()
        together = list(clients.map(timed, asked))
        rate = len(together) / (time.perf_counter() - began)
    p50, p95 = np.percentile(alone, [50, 95])
    return float(p50), float(p95), float(np.median(together)), rate


def _print_row(row: Row) -> str:
    return _line(
        row.rule,
        f"{row.images:,}",
        f"{row.store} ({row.kept_as})",
        f"{row.memory / 2**20:,.0f}",
        f"{row.build_s:,.1f}",
        f"{row.again_s:,.1f}" if row.again_s else "",
        f"{row.recall:.3f}",
        f"{row.p50:.1f}",
        f"{row.p95:.1f}",
        f"{row.clients_p50:.0f}",
        f"{row.clients_per_s:.0f}",
    )


def _line(*cells: str) -> str:
    wide = (9, 10, 52, 8, 8, 8, 7, 8, 8, 8, 7)
    return "".join(
        cell.ljust(size) if place in (0, 2) else cell.rjust(size - 1) + " "
        for place, (cell, size) in enumerate(zip(cells, wide, strict=True))
    ).rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
