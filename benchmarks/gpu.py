"""Whether a GPU computes what the CPU does, and how much faster: `python -m benchmarks.gpu`.

Compares both in numbers and in rankings, counts what queries, heatmaps, evidence and indexing copy
to the host, and times them, the image encoder in float32 and float16, and a training step of every
method in bfloat16 at the papers' sizes. Without CUDA it rehearses: the CPU stands in the GPU's
place, so that everything runs but nothing is said of a GPU. `--out` writes a page, which says which
it was. Ends with 1 where the numbers or rankings differ, or tensors come to the host on the way.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.transformers.float16 import convert_float_to_float16
from PIL import Image

from app.settings import BUNDLED
from benchmarks.copies import FLAGS, copied
from benchmarks.devices import LIT, NUMBERS, Difference, Work, compare, open_on, sinkhorn_difference
from benchmarks.kernels import Sizes, training_step
from export.pack.gallery import load_gallery
from export.runtime import IMAGE_BATCH, Runtime
from export.sessions import Sessions, processor
from models import METHODS, argument_defaults
from models.files import write_whole
from training.objectives import OBJECTIVES

CPU = torch.device("cpu")
SMALL = Sizes(batch=8, regions=6, words=4, image_dim=32, embed_dim=32, vocabulary=50)
REHEARSAL = (
    "**A rehearsal: torch finds no CUDA device here, so the CPU stood in the GPU's place and "
    "nothing here says anything about a GPU.** Sizes are small. `make gpu` on a machine with CUDA "
    "writes its numbers here."
)
_WARM_UP = 3


class Report:
    """Lines of Markdown, printed as they come.

    Attributes:
        failed: what was not as it should be.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed: list[str] = []

    def add(self, *lines: str) -> None:
        """Adds lines, and prints them."""
        self.lines += lines
        print("\n".join(lines), flush=True)

    def table(self, title: str, *heads: str) -> None:
        """Begins a section with a table; `row` adds to it."""
        self.add("", f"## {title}", "", f"| {' | '.join(heads)} |")
        self.add(f"|---|{'---:|' * (len(heads) - 1)}")

    def row(self, *cells: str) -> None:
        """Adds a row."""
        self.add(f"| {' | '.join(cells)} |")

    def judge(self, *found: Difference) -> None:
        """Notes those that rounding does not explain."""
        self.failed += [f"{one.what}: {one.largest:.1e} apart" for one in found if not one.close]


def main(argv: Sequence[str]) -> int:
    """Measures, prints and writes; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes")
    parser.add_argument("--images", type=int, help="of the gallery (default: all, or 24)")
    parser.add_argument("--runs", type=int, help="that are timed (default: 100, or 5)")
    parser.add_argument("--out", type=Path, help="the page to write")
    given = parser.parse_args(argv)
    real = torch.cuda.is_available()
    device = torch.device("cuda") if real else CPU
    gallery = load_gallery(given.pack)
    count = given.images or (len(gallery.images) if real else 24)
    runs = given.runs or (100 if real else 5)
    if min(count, runs) < 1:
        parser.error("--images and --runs must be at least 1")
    images = [Image.open(gallery.folder / image.file) for image in gallery.images[:count]]
    captions = [caption.text for caption in gallery.captions[: max(4, count // 4)]]
    report = Report()
    there, note = open_on(given.pack, device)
    report.add("# A GPU beside the CPU", "", *_conditions(given.pack, there, count, argv))
    report.add(*(["", note] if note else []), *([] if real else ["", REHEARSAL]))
    head = list(report.lines)
    here = Runtime.load(given.pack, "cpu")
    works = [
        (Work(here, name, images, captions), Work(there, name, images, captions))
        for name in here.methods
    ]
    _parity(report, works, device, 100_000 if real else 1000)
    _copies(report, [other for _, other in works])
    _speed(report, works, runs)
    _encoder(report, here, there, images)
    _steps(report, device, Sizes() if real else SMALL, max(1, runs // 5))
    if given.out is not None:
        # times of a rehearsal would only mislead
        ran = [f"- {line[3:]}" for line in report.lines if line.startswith("## ")]
        page = report.lines if real else [*head, "", "What ran:", "", *ran]
        write_whole(given.out, "\n".join(page) + "\n")
    for line in report.failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if report.failed else 0


def _conditions(pack: Path, runtime: Runtime, images: int, argv: Sequence[str]) -> Iterator[str]:
    on = torch.cuda.get_device_name() if runtime.device.type == "cuda" else "no GPU"
    yield f"`{' '.join(['python -m benchmarks.gpu', *argv])}`"
    yield ""
    yield (
        f"{on}; {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; torch "
        f"{torch.__version__}, onnxruntime {onnxruntime.__version__} "
        f"({', '.join(runtime.providers)}), Python {platform.python_version()}. "
        f"The pack {pack.name}, its first {images:,} images."
    )


def _parity(
    report: Report, works: Sequence[tuple[Work, Work]], device: torch.device, pairs: int
) -> None:
    report.table("Differences, as shares of the largest number", "", *NUMBERS)
    for here, there in works:
        found = {one.what: one for one in compare(here, there)}
        shown = (f"{found[what].largest:.0e}" if what in found else "none" for what in NUMBERS)
        report.row(here.method.title, *shown)
        report.judge(*(replace(one, what=f"{here.name}, {one.what}") for one in found.values()))
    one = sinkhorn_difference(device, pairs)
    report.add("", f"{one.what} of {pairs:,} pairs: {one.largest:.0e}.")
    report.judge(one)


def _copies(report: Report, works: Sequence[Work]) -> None:
    what = f"Bytes copied to the host on the way, at most {FLAGS:,}"
    report.table(f"{what}: flags, and places of hits", "", *_acts(works[0]))
    for work in works:
        found = {what: copied(act) for what, act in _acts(work).items()}
        report.row(work.method.title, *(f"{one.size:,} in {one.times}" for one in found.values()))
        report.failed += [
            f"{work.name}, {what}: {one.size:,} bytes came to the host"
            for what, one in found.items()
            if not one.small
        ]


def _acts(work: Work) -> dict[str, Callable[[], object]]:
    """What is asked of a method, by name; results stay on the device."""
    caption = work.captions[0]
    return {
        "query": lambda: work.query(caption),
        "heatmap": work.heatmap,
        f"evidence of {LIT}": lambda: work.evidence(caption),
        "indexing": work.index,
    }


def _speed(report: Report, works: Sequence[tuple[Work, Work]], runs: int) -> None:
    asked = [what for what in _acts(works[0][0]) if what != "indexing"]
    report.table("Milliseconds, medians: CPU, device, and how many times faster", "", *asked)
    for here, there in works:
        slow, fast = _acts(here), _acts(there)
        report.row(here.method.title, *(_both(slow[what], fast[what], runs) for what in asked))


def _both(slow: Callable[[], object], fast: Callable[[], object], runs: int) -> str:
    cpu, device = milliseconds(slow, runs), milliseconds(fast, runs)
    return f"{cpu:.2f}, {device:.2f}, {cpu / device:.1f} x"


def milliseconds(act: Callable[[], object], runs: int) -> float:
    """The median of some runs, after a few that do not count."""
    spent = []
    for _ in range(_WARM_UP + runs):
        began = time.perf_counter()
        act()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent.append(1000 * (time.perf_counter() - began))
    return float(np.median(spent[_WARM_UP:]))


def _encoder(report: Report, here: Runtime, there: Runtime, images: Sequence[Image.Image]) -> None:
    """Images a second of the pack's image encoder, decoded already."""
    file = here.image_encoder_of(None)
    if file is None:
        return
    report.table("Images a second, the image encoder alone", "", "images/s")
    pixels = here.preprocess((list(images) * IMAGE_BATCH)[:IMAGE_BATCH])
    on_gpu = there.providers[0] != "CPUExecutionProvider"
    with tempfile.TemporaryDirectory() as folder:
        half = Path(folder) / "half.onnx"
        onnx.save(
            convert_float_to_float16(onnx.load(here.info.path(file)), keep_io_types=True), half
        )
        sessions = Sessions(half.parent.joinpath, "cuda" if on_gpu else "cpu", bound=True)
        ways = {
            "CPU, float32": here.image_encoder(),
            "device, float32": there.image_encoder(),
            "device, float16": sessions.get(half.name, ["pixels"]),
        }
        for title, encoder in ways.items():
            spent = milliseconds(lambda run=encoder.run: run({"pixels": pixels}), 10)  # type: ignore[misc]
            report.row(title, f"{1000 * len(pixels) / spent:,.0f}")


def _steps(report: Report, device: torch.device, sizes: Sizes, runs: int) -> None:
    what = f"A training step in bfloat16, batch {sizes.batch}, milliseconds"
    report.table(f"{what}: CPU, device, and how many times faster", "", "step")
    for name in OBJECTIVES:
        known = argument_defaults(name)
        arguments = {"embed_dim": sizes.embed_dim} if "embed_dim" in known else {}
        steps = []
        for place in (CPU, device):
            with torch.device(place):
                steps.append(training_step(name, arguments, sizes, torch.bfloat16))
        report.row(METHODS[name].title, _both(steps[0], steps[1], runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
