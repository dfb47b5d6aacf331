"""How long scoring takes against ever more images: `python -m benchmarks.candidates`.

AVSE's Fig. 5: one text's views against those of 1,000 to 100,000 images, all of which are scored by
the method itself, and the ten best; what precedes, the text's encoder, is the same for all.

Methods are those of the recipes for scenes, at their sizes, with random weights, over random
features of 49 cells and of a sentence of 12 words: neither changes the time. Images are copies of a
thousand, each with memory of its own. SCAN, whose views are the cells, takes 2.5 GB for 100,000
images. With `--record` the medians are kept beside the bundled pack, where the app's Benchmark tab
draws them.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

import models
from app.packs.candidates import Candidates, record
from app.settings import BUNDLED
from export.sessions import hardware, processor
from models import Method, Views
from training.loop.config import TrainConfig, load_recipe

WHICH = ("vsepp", "vse_infty", "base_attn", "mv_vse", "pvse", "mvam", "avse", "scan")
CELLS, WORDS, IMAGE_DIM = 49, 12, 256  # of the scenes' encoder, and of a long caption
DRAWN = 1000  # images, of which all others are copies
BEST = 10
_AT_ONCE = 4096  # images scored together
_LEAST, _SECONDS = 3, 5.0  # queries that are timed at least, and until when others follow


def main(argv: Sequence[str]) -> int:
    """Measures and prints a table; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.candidates")
    sizes = [1000, 3000, 10_000, 30_000, 100_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="images")
    parser.add_argument("--methods", nargs="+", choices=WHICH, default=list(WHICH))
    parser.add_argument("--queries", type=int, default=30, help="at most, for each number")
    parser.add_argument(
        "--pack", type=Path, default=BUNDLED / "scenes", help="beside which to keep"
    )
    parser.add_argument("--record", action="store_true", help="keep the medians beside the pack")
    given = parser.parse_args(argv)
    if min(*given.sizes, given.queries) < 1:
        parser.error("--sizes and --queries must be at least 1")
    sizes = sorted(set(given.sizes))
    print(f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, seed 0; median ms")
    print(f"{'method':<12}" + "".join(f"{size:>12,}" for size in sizes))
    median = {}
    for name in given.methods:
        median[name] = tuple(measure(name, size, given.queries) for size in sizes)
        print(f"{name:<12}" + "".join(f"{ms:>12.2f}" for ms in median[name]), flush=True)
    if given.record:
        command = shlex.join(["python", "-m", "benchmarks.candidates", *argv])
        on = f"{hardware()}, threads: {torch.get_num_threads()}"
        found = Candidates(tuple(sizes), median, given.queries, on, command)
        record(given.pack).write_text(json.dumps(asdict(found), indent=1) + "\n", "utf-8")
    return 0


def measure(name: str, images: int, queries: int) -> float:
    """Median milliseconds in which a text is scored against so many images."""
    torch.manual_seed(0)
    method, text_dim = _build(name)
    with torch.inference_mode():
        spent = _times(method, text_dim, images, queries)
    return round(float(np.median(spent)), 3)


def _times(method: Method, text_dim: int, images: int, queries: int) -> list[float]:
    """Milliseconds of each query, fewer of them where they take long."""
    drawn = _encoded(method.encode_image, min(DRAWN, images), CELLS, IMAGE_DIM)
    rows = torch.arange(images) % len(drawn)
    parts = [drawn[rows[start : start + _AT_ONCE]] for start in range(0, images, _AT_ONCE)]
    asked = _encoded(method.encode_text, queries, WORDS, text_dim)
    spent: list[float] = []
    _search(method, parts, asked[[0]])  # does not count
    for query in range(queries):
        began = time.perf_counter()
        _search(method, parts, asked[[query]])
        spent.append(1000 * (time.perf_counter() - began))
        if len(spent) >= _LEAST and sum(spent) > 1000 * _SECONDS:
            break
    return spent


def _build(name: str) -> tuple[Method, int]:
    """A method as its recipe for scenes has it, and the width of the text features it reads."""
    config = load_recipe(TrainConfig, f"scenes/{name}")
    texts = config.text.hidden_dim if config.text.directions else config.text.word_dim
    return models.build(name, IMAGE_DIM, texts, config.arguments).eval(), texts


def _encoded(encode: Callable[..., Views], count: int, elements: int, dim: int) -> Views:
    """Views of random sets (count, elements, dim)."""
    return encode(torch.randn(count, elements, dim), torch.ones(count, elements, dtype=torch.bool))


def _search(method: Method, images: Sequence[Views], text: Views) -> list[int]:
    """The best images, by scores of all."""
    scores = torch.cat([method.score(part, text)[:, 0] for part in images])
    found: list[int] = scores.topk(min(BEST, len(scores))).indices.tolist()
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
