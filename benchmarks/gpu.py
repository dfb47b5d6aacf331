"""Compares results and speed of a GPU with the CPU: `python -m benchmarks.gpu`.

For every method of a pack, both devices encode, score and explain images and captions; results and
rankings must agree. Queries, heatmaps, evidence and the image encoder are timed. Without CUDA, the
CPU is compared with itself, as a rehearsal. `--out` writes a Markdown page. The exit status is 1 if
results or rankings differ.
"""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from timeit import repeat

import numpy as np
import onnxruntime
import torch
from PIL import Image
from torch import Tensor

from polyview.app.settings import BUNDLED
from polyview.export.pack.gallery import load_gallery
from polyview.export.runtime import Runtime
from polyview.export.sessions import processor
from polyview.models.files import atomic_write

Computations = dict[str, Callable[[], Tensor]]
HITS = 10  # number of images in an answer
EXPLAINED_IMAGES = 12  # number of images that are explained together
TOLERANCE = 1e-3  # relative to the largest value; the order of float32 sums changes results less
REHEARSAL = (
    "**A rehearsal: torch finds no CUDA device, so everything runs on the CPU; these results say "
    "nothing about a GPU.** On a machine with CUDA `make gpu` writes docs/results/gpu.md."
)


def computations(
    runtime: Runtime, name: str, images: Sequence[Image.Image], captions: Sequence[str]
) -> Computations:
    """Returns the computations of one method; their results stay on the runtime's device.

    "features" (B, N, d) and "views" (B, V, D) describe the images. "scores" (B_img, B_txt) compares
    the images and captions. "query" returns the best scores of the first caption, at most (HITS,).
    "evidence" (EXPLAINED_IMAGES, N, M) explains the first images by the first caption. "heatmap"
    (V, rows, columns) shows the attention to the first image; methods without attention lack it.
    """
    method, pixels = runtime.methods[name], runtime.preprocess(images)
    features = runtime.pixel_features(pixels, name)
    views, texts = runtime.image_views(features, name), runtime.text_views(list(captions), name)

    @torch.inference_mode()
    def query() -> Tensor:
        scores = method.score(views, runtime.text_views([captions[0]], name))[:, 0]
        return scores.topk(min(HITS, len(scores))).values

    def heatmap() -> Tensor:
        maps = runtime.image_views(features[:1], name, attention=True).attention
        assert maps is not None
        return runtime.to_grid(maps[0])

    @torch.inference_mode()
    def evidence() -> Tensor:
        text_parts = runtime.text_parts([captions[0]], name)
        image_parts = runtime.image_parts(features[:EXPLAINED_IMAGES], name)
        return method.evidence(image_parts, text_parts).cells

    has_maps = runtime.image_views(features[:1], name, attention=True).attention is not None
    return {
        "features": lambda: features,
        "views": lambda: views.embeddings,
        "scores": torch.inference_mode()(lambda: method.score(views, texts)),
        "query": query,
        **({"heatmap": heatmap} if has_maps else {}),
        "evidence": evidence,
    }


def differences(reference: Computations, other: Computations) -> dict[str, float]:
    """Returns the `difference` between two devices in the result of each computation.

    "ranking" compares the sorted reference scores with the reference scores in the other device's
    order, so that images with equal scores may be swapped.
    """
    results = {name: difference(compute(), other[name]()) for name, compute in reference.items()}
    expected, actual = reference["scores"](), other["scores"]()
    order = actual.argsort(dim=0, descending=True)[:HITS].to(expected.device)  # (k, B_txt)
    best = expected.sort(dim=0, descending=True).values[:HITS]
    return results | {"ranking": difference(best, expected.gather(0, order))}


def difference(expected: Tensor, actual: Tensor) -> float:
    """Returns the largest difference divided by the largest expected magnitude; may be NaN.

    >>> difference(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0]))
    0.25
    """
    expected, actual = expected.double().cpu(), actual.double().cpu()
    return float((expected - actual).abs().max() / expected.abs().max().clamp(min=1e-12))


def milliseconds(compute: Callable[[], object], runs: int) -> float:
    """Returns the median time of `runs` calls in milliseconds, after three calls as a warm-up."""

    def compute_and_wait() -> None:
        compute()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return 1000 * float(np.median(repeat(compute_and_wait, repeat=3 + runs, number=1)[3:]))


def main(argv: Sequence[str]) -> int:
    """Compares the devices and prints a page; returns 1 if results differ, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    add, pack = parser.add_argument, BUNDLED / "scenes"
    add("--pack", type=Path, default=pack, help=f"folder of the pack (default: {pack})")
    add("--images", type=int, help="number of images (default: all; 24 without CUDA)")
    add("--runs", type=int, help="number of timed runs (default: 100; 5 without CUDA)")
    add("--out", type=Path, help="Markdown file to write")
    options = parser.parse_args(argv)
    has_gpu = torch.cuda.is_available()
    gallery = load_gallery(options.pack)
    count = options.images or (len(gallery.images) if has_gpu else 24)
    runs = options.runs or (100 if has_gpu else 5)
    if min(count, runs) < 1:
        parser.error("--images and --runs must be at least 1")
    images = [Image.open(gallery.folder / image.file) for image in gallery.images[:count]]
    captions = [caption.text for caption in gallery.captions[: max(4, count // 4)]]
    runtimes = [Runtime.load(options.pack, "cpu")]
    runtimes.append(Runtime.load(options.pack, "cuda" if has_gpu else "cpu"))
    card = torch.cuda.get_device_name() if has_gpu else "no GPU"
    lines = [
        "# A GPU compared with the CPU\n",
        f"`{' '.join(['python -m benchmarks.gpu', *argv])}`\n",
        f"{card}; {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; torch "
        f"{torch.__version__}, onnxruntime {onnxruntime.__version__} "
        f"({', '.join(runtimes[1].providers)}), Python {platform.python_version()}. "
        f"The pack {options.pack.name}, {count:,} images.\n",
        *([] if has_gpu else [f"{REHEARSAL}\n"]),
        f"## Differences, as shares of the largest number, at most {TOLERANCE:g}\n",
    ]
    pixels = runtimes[0].preprocess(images)
    encoders = [partial(runtime.pixel_features, pixels) for runtime in runtimes]
    times = {f"image encoder, {count} images": [milliseconds(encode, runs) for encode in encoders]}
    failures = []
    for name in runtimes[0].methods:
        pair = [computations(runtime, name, images, captions) for runtime in runtimes]
        results = differences(*pair)
        lines.append(f"- {name}: " + ", ".join(f"{key} {v:.0e}" for key, v in results.items()))
        failures += [f"{name}, {key}: {v:.1e}" for key, v in results.items() if not v <= TOLERANCE]
        for key in [key for key in ("query", "heatmap", "evidence") if key in pair[0]]:
            times[f"{name}, {key}"] = [milliseconds(functions[key], runs) for functions in pair]
    lines.append("\n## Milliseconds, medians\n")
    if has_gpu:
        lines += ["| | CPU | device | times faster |", "|---|---:|---:|---:|"]
        lines += [f"| {n} | {a:.2f} | {b:.2f} | {a / b:.1f} |" for n, (a, b) in times.items()]
    else:  # the times of a rehearsal would mislead
        lines.append(f"Computations: {'; '.join(times)}.")
    print("\n".join(lines))
    if options.out is not None:
        atomic_write(options.out, "\n".join(lines) + "\n")
    for failure in failures:
        print(f"failed: {failure}; the maximum is {TOLERANCE:g}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
