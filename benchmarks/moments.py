"""What it adds to an answer to say when: the moments of hits that are sets of frames.

`python -m benchmarks.moments [--pack PACK] [--questions N] [--clips N]`

Captions of the pack's own gallery are asked, each once, and then once more, when its moments are
remembered: the difference is what the moments of 12 hits take. They are asked over the pack's own
gallery, whose features come with it, and over a folder of some of the clips, whose features the app
keeps. One thread.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from app.gallery.collection import from_folder, from_pack
from app.search.query import Term
from app.search.retriever import Retriever
from app.settings import BUNDLED
from export.runtime import Runtime
from export.sessions import processor

HITS = 12


def main(argv: Sequence[str]) -> int:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moments")
    parser.add_argument("--pack", type=Path, default=BUNDLED / "scenes_moving")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--clips", type=int, default=40, help="in the folder")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    runtime, own = Runtime.load(given.pack, "cpu", threads=1), from_pack(given.pack)
    texts = [text for text, _ in own.captions]
    asked = texts[:: max(1, len(texts) // given.questions)][: given.questions]
    print(f"pack {runtime.info.name}, {len(asked)} questions, {HITS} hits; {processor()}")
    print(f"{'':<30} {'answer, ms':>10} {'its moments, ms':>16}")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "clips"
        folder.mkdir()
        for image in own.images[: given.clips]:
            shutil.copy(image.path, folder)
        for name, collection in (("its own gallery", own), ("a folder", from_folder(folder))):
            retriever = Retriever(runtime, collection, Path(work))
            retriever.index.start()
            retriever.index.wait()
            for method in runtime.methods:
                first, again = (
                    [_spent(retriever, text, method) for text in asked] for _ in range(2)
                )
                more = statistics.median(a - b for a, b in zip(first, again, strict=True))
                print(f"{method + ', ' + name:<30} {statistics.median(again):>10.1f} {more:>16.1f}")
    return 0


def _spent(retriever: Retriever, text: str, method: str) -> float:
    """Milliseconds of one answer."""
    start = time.perf_counter()
    retriever.search([Term(text)], method, HITS)
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
