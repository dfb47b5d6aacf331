"""What the evidence of an answer costs: `python -m benchmarks.evidence`.

Times the evidence of 12 hits for a sentence, from features (which the app keeps) to the table of
cells and words of each: parts of both sides, and their products. The baseline of the same run is
the common way to a map: gradient times input, by autograd, from the same features through the same
head; it gives no words and adds up to no score. Milliseconds are medians, with the quickest.
Without a pack, methods are built with random weights in the papers' sizes over a grid of ResNet's.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import models
from app.settings import BUNDLED
from export.pack.gallery import load_gallery
from export.runtime import Runtime
from export.sessions import processor
from models import Method
from models.evidence import Evidence

HITS = 12
# in the papers' sizes: 2,048 numbers for each of 7 x 7 cells, 1,024 for each of 12 words
CELLS, IMAGE_DIM, WORDS, TEXT_DIM = 49, 2048, 12, 1024
_WARM_UP = 3
Set = tuple[Tensor, Tensor]  # features (B, N, d) and their mask (B, N)


def main(argv: Sequence[str]) -> int:
    """Measures and prints a table; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes")
    parser.add_argument("--papers", action="store_true", help="the papers' sizes, in place of it")
    parser.add_argument("--runs", type=int, default=30, help="timed for each method")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args(argv)
    if given.runs < 1 or given.threads < 1:
        parser.error(f"--runs and --threads must be at least 1, not {given.runs}, {given.threads}")
    torch.set_num_threads(given.threads)
    on = torch.cuda.get_device_name() if given.device == "cuda" else processor()
    print(f"{on}, {os.cpu_count()} cores, {given.threads} threads, torch {torch.__version__}")
    print(f"{'method':<12} {'ms':>7} {'least':>7} {'gradient x input ms':>20} {'off by':>8}")
    for name, method, images, text in _papers() if given.papers else _pack(given.pack):
        asked = method.to(given.device), _on(images, given.device), _on(text, given.device)
        ours, theirs = (
            milliseconds(partial(way, *asked), given.runs)
            for way in (evidence, gradient_times_input)
        )
        print(
            f"{name:<12} {np.median(ours):>7.2f} {min(ours):>7.2f} {np.median(theirs):>20.2f} "
            f"{off_by(*asked):>8.0e}",
            flush=True,
        )
    return 0


@torch.inference_mode()
def evidence(method: Method, images: Set, text: Set) -> Evidence:
    """The evidence of each image for one text."""
    return method.evidence(method.image_parts(*images), method.text_parts(*text))


def gradient_times_input(method: Method, images: Set, text: Set) -> Tensor:
    """The baseline's maps, (B, N)."""
    features = images[0].clone().requires_grad_()
    score = method.score(method.encode_image(features, images[1]), method.encode_text(*text))
    (gradient,) = torch.autograd.grad(score.sum(), features)
    return (gradient * features.detach()).sum(dim=2)


@torch.inference_mode()
def off_by(method: Method, images: Set, text: Set) -> float:
    """The largest difference of evidence and score, as a share of the score."""
    scores = method.score(method.encode_image(*images), method.encode_text(*text))[:, 0]
    return float(((evidence(method, images, text).score - scores) / scores).abs().max())


def milliseconds(run: Callable[[], object], runs: int) -> list[float]:
    """How long each of some runs takes, after a few that do not count."""
    times = []
    for _ in range(_WARM_UP + runs):
        start = time.perf_counter()
        run()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1000)
    return times[_WARM_UP:]


def _pack(folder: Path) -> list[tuple[str, Method, Set, Set]]:
    """The methods of a pack, the first images of its gallery and a caption of the first."""
    runtime, gallery = Runtime.load(folder, "cpu"), load_gallery(folder)
    shown = [Image.open(gallery.folder / image.file) for image in gallery.images[:HITS]]
    caption, found = gallery.captions[0].text, []
    for name, method in runtime.methods.items():
        features = runtime.image_features(shown, name)
        images = features, torch.ones(features.shape[:2], dtype=torch.bool)
        found.append((name, method, images, runtime.text_features([caption], name)))
    return found


def _papers() -> list[tuple[str, Method, Set, Set]]:
    """Every method with its default arguments, random weights and random features."""
    torch.manual_seed(0)

    def drawn(count: int, size: int, dim: int) -> Set:
        return torch.randn(count, size, dim), torch.ones(count, size, dtype=torch.bool)

    images, text = drawn(HITS, CELLS, IMAGE_DIM), drawn(1, WORDS, TEXT_DIM)
    return [
        (name, models.build(name, IMAGE_DIM, TEXT_DIM, {}).eval(), images, text)
        for name in models.METHODS
    ]


def _on(side: Set, device: str) -> Set:
    return side[0].to(device), side[1].to(device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
