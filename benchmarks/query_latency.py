"""How long a text query takes, end to end: `python -m benchmarks.query_latency`.

Measures `Retriever.search_text` (tokenize, ONNX text encoder, head, exact top-k over the gallery)
on captions of the pack's own gallery, method by method, one query at a time. The baseline of the
same run is the ONNX text encoder alone: the ratio says what everything around it costs. With
`--record` the medians are kept beside the pack, where the app's Benchmark tab finds them.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import faiss
import numpy as np
import onnxruntime
import torch

from app.gallery.cache import cache_folder
from app.gallery.collection import from_pack
from app.packs.speed import HITS, Speed, milliseconds, query_times, record, sample_captions
from app.search.retriever import Retriever
from app.settings import BUNDLED
from export.runtime import Runtime
from export.sessions import hardware, processor

PACKAGES = (torch, onnxruntime, faiss, np)


def main(argv: Sequence[str]) -> int:
    """Measures and prints a table; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.query_latency")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes")
    parser.add_argument("--queries", type=int, default=300, help="for each method")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cpu")
    parser.add_argument("--fresh", action="store_true", help="do not use the gallery's cache")
    parser.add_argument("--record", action="store_true", help="keep the medians beside the pack")
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
    try:
        texts = sample_captions(retriever, given.queries)
    except ValueError as error:
        raise SystemExit(f"{error}") from error
    median = {method: _measure(retriever, method, texts) for method in runtime.methods}
    if given.record:
        command = f"python -m benchmarks.query_latency {shlex.join(argv)}"
        on = hardware(runtime.device)
        speed = Speed(median, given.queries, len(retriever.index), on, command)
        record(runtime.info).write_text(json.dumps(asdict(speed), indent=2) + "\n", "utf-8")
    return 0


def _measure(retriever: Retriever, method: str, texts: Sequence[str]) -> float:
    """Prints a method's row; the median of its queries in milliseconds."""
    encoder = milliseconds(lambda text: retriever.runtime.text_features([text], method), texts)
    p50, p95 = np.percentile(query_times(retriever, method, texts), [50, 95]).round(3)
    alone = float(np.median(encoder))
    print(f"{method:<12} {p50:>8.2f} {p95:>8.2f} {alone:>12.2f} {p50 / alone:>6.2f}")
    return float(p50)


def _conditions(retriever: Retriever) -> str:
    runtime = retriever.runtime
    packages = ", ".join(f"{package.__name__} {package.__version__}" for package in PACKAGES)
    images = f"{len(retriever.index):,} pictures"
    return (
        f"pack {runtime.info.name} ({runtime.info.checksum[:12]}), {images}, top {HITS}, "
        "one query at a time\n"
        f"{processor()}, {os.cpu_count()} cores, {', '.join(runtime.providers)}\n"
        f"Python {platform.python_version()}, {packages}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
