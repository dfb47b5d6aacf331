"""What the view lens and the collapse meter take of memory: `python -m benchmarks.lens`.

Both look at every view of a gallery, which they read a few hundred images at a time. Beside them,
up to `--copied-up-to` images, the way it was done before: a copy of all views in float32. The two
ways must give the same numbers. Embeddings are random unit vectors, 4 x 512 for an image, scored by
MV-VSE's rule, with a caption for each of the first 100,000. Memory is the highest that the process
held (VmHWM, on Linux) beyond what it held with the gallery filled.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import models
from app.explain import collapse, lens
from app.gallery.vector_index import Gallery
from export.sessions import processor
from models import Views

VIEWS, DIM = 4, 512
CAPTIONS = 10**5  # at most
WEIGHTS = [1.0, 0.5, 0.0, 0.25]
_AT_ONCE = 4096
Run = Callable[[Gallery, Gallery, bool], list[float]]
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(argv: Sequence[str]) -> int:
    """Measures and prints a table; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lens")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**5, 10**6])
    parser.add_argument("--copied-up-to", type=int, default=10**5, help="images")
    parser.add_argument("--what", nargs="+", choices=list(RUNS), default=list(RUNS))
    given = parser.parse_args(argv)
    print(f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{'images':>9} {'gallery MB':>10}  {'what':<10} {'way':<10} {'s':>7} {'MB more':>8}")
    for size in given.sizes:
        images, captions = fill(size)
        for what in given.what:
            found = []
            for way in ("in chunks", *(("copied",) if size <= given.copied_up_to else ())):
                seconds, more, values = measure(RUNS[what], images, captions, way)
                found.append(values)
                print(
                    f"{size:>9,} {images.bytes / 2**20:>10,.0f}  {what:<10} {way:<10} "
                    f"{seconds:>7.1f} {more / 2**20:>8,.0f}",
                    flush=True,
                )
            apart = np.ptp(found, axis=0).max()
            if apart > 1e-6:
                raise SystemExit(f"{what}: the two ways are {apart:.1e} apart")
        del images, captions
    return 0


def fill(size: int) -> tuple[Gallery, Gallery]:
    """Images, and a caption for each of the first of them."""
    method = models.build("mv_vse", 16, 16, {"embed_dim": DIM, "views": VIEWS}).eval()
    images, captions = Gallery("images", method, expected=size), Gallery("texts", method)
    for start in range(0, size, _AT_ONCE):
        ids = range(start, min(start + _AT_ONCE, size))
        images.add(ids, draw(VIEWS, start)[: len(ids)])
        if start < CAPTIONS:
            captions.add(ids, draw(1, start + 1)[: len(ids)])
    return images, captions


def draw(views: int, seed: int) -> Views:
    """Random unit vectors (_AT_ONCE, views, DIM); those of two seeds differ by a permutation."""
    shuffled = torch.randperm(DIM, generator=torch.Generator().manual_seed(seed))
    return Views(_unit(views)[:, :, shuffled])


@cache
def _unit(views: int) -> Tensor:
    made = torch.randn(_AT_ONCE, views, DIM, generator=torch.Generator().manual_seed(views))
    return torch.nn.functional.normalize(made, dim=2)


def measure(
    run: Run, images: Gallery, captions: Gallery, way: str
) -> tuple[float, int, list[float]]:
    """Seconds, bytes beyond what was held before, and what came of it."""
    _CLEAR.write_text("5")  # the highest so far is forgotten
    before, began = _memory("VmRSS"), time.perf_counter()
    values = run(images, captions, way == "copied")
    return time.perf_counter() - began, _memory("VmHWM") - before, values


def _lens(images: Gallery, _captions: Gallery, copied: bool) -> list[float]:
    query = draw(1, 12345)[:1]
    if not copied:
        _, *scores, _ = lens.score(images, query, WEIGHTS)
        return [value for part in scores for value in np.sort(part)[-100:].tolist()]
    weights, method = torch.tensor(WEIGHTS), images.method
    with torch.inference_mode():
        parts = _copy(images).split(_AT_ONCE)
        now = [method.score(method.weighted(Views(part), weights), query)[:, 0] for part in parts]
        before = [method.score(Views(part), query)[:, 0] for part in parts]
    return [float(x) for part in (now, before) for x in torch.cat(part).sort().values[-100:]]


def _wins(images: Gallery, captions: Gallery, copied: bool) -> list[float]:
    owners = captions.ids()
    if not copied:
        return (collapse.count_all_wins(images, captions, owners) / len(owners)).tolist()
    views, texts = Views(_copy(images)), Views(_copy(captions))
    wins, rows = torch.zeros(VIEWS, dtype=torch.float64), torch.arange(16)
    for start in range(0, len(texts), 16):
        own = texts[start : start + 16]
        wins += collapse.count_wins(
            images.method, views[start : start + len(own)], own, rows[: len(own)]
        )
    return (wins / len(owners)).tolist()


def _similarity(images: Gallery, _captions: Gallery, copied: bool) -> list[float]:
    if copied:
        return [collapse.mean_similarity([_copy(images)])]
    return [collapse.mean_similarity(views.embeddings for _, views in images.chunks())]


def _copy(gallery: Gallery) -> Tensor:
    return torch.cat([views.embeddings for _, views in gallery.chunks()])


def _memory(name: str) -> int:
    """Bytes of this process, as Linux counts them."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


RUNS: dict[str, Run] = {"lens": _lens, "wins": _wins, "similarity": _similarity}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
