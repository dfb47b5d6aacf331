"""How long a text query takes, end to end: `python -m benchmarks.query_latency`.

Measures `Retriever.search_text` (tokenize, ONNX text encoder, head, exact top-k over the gallery)
on captions of the pack's own gallery, method by method, one query at a time. The baseline of the
same run is the ONNX text encoder alone: the ratio says what everything around it costs.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np
import onnxruntime
import torch

from app.cache import cache_folder
from app.collection import from_pack
from app.retriever import Retriever
from app.settings import BUNDLED
from export.runtime import Runtime

WARM_UP = 20
HITS = 10
PACKAGES = (torch, onnxruntime, faiss, np)


def main(argv: Sequence[str]) -> int:
    """Measures and prints a table; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.query_latency")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes")
    parser.add_argument("--queries", type=int, default=300, help="for each method")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cpu")
    parser.add_argument("--fresh", action="store_true", help="do not use the gallery's cache")
    given = parser.parse_args(argv)
    if given.queries < 1:
        parser.error(f"--queries must be at least 1, not {given.queries}")
    runtime = Runtime.load(given.pack, given.device)
    with tempfile.TemporaryDirectory() as fresh:
        cache = Path(fresh) if given.fresh else cache_folder()
        retriever = Retriever(runtime, from_pack(given.pack), cache)
        retriever.index.start()
        retriever.index.wait()
    print(_conditions(retriever))
    print(f"{'method':<12} {'p50 ms':>8} {'p95 ms':>8} {'encoder p50':>12} {'ratio':>6}")
    for method in runtime.methods:
        print(_row(retriever, method, given.queries))
    return 0


def _row(retriever: Retriever, method: str, count: int) -> str:
    texts = _queries(retriever, count)
    encoder = _milliseconds(lambda t: retriever.runtime.text_features([t], method), texts)
    query = _milliseconds(lambda t: retriever.search_text(t, method, HITS), texts)
    p50, p95 = np.percentile(query, [50, 95])
    alone = float(np.median(encoder))
    return f"{method:<12} {p50:>8.2f} {p95:>8.2f} {alone:>12.2f} {p50 / alone:>6.2f}"


def _queries(retriever: Retriever, count: int) -> list[str]:
    """Captions from all over the gallery, in a fixed order."""
    captions = [text for text, _ in retriever.collection.captions]
    if not captions:
        raise SystemExit("this pack's gallery has no captions to use as queries")
    places = np.linspace(0, len(captions) - 1, count).round().astype(int)
    return [captions[place] for place in places]


def _milliseconds(ask: Callable[[str], object], texts: Sequence[str]) -> np.ndarray:
    for text in texts[:WARM_UP]:
        ask(text)
    spent = []
    for text in texts:
        start = time.perf_counter()
        ask(text)
        spent.append((time.perf_counter() - start) * 1000)
    return np.array(spent)


def _conditions(retriever: Retriever) -> str:
    runtime = retriever.runtime
    packages = ", ".join(f"{package.__name__} {package.__version__}" for package in PACKAGES)
    pictures = f"{len(retriever.index):,} pictures"
    return (
        f"pack {runtime.info.name} ({runtime.info.checksum[:12]}), {pictures}, top {HITS}, "
        "one query at a time\n"
        f"{_processor()}, {os.cpu_count()} cores, {', '.join(runtime.providers)}\n"
        f"Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    """The processor's name where the system tells it."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
