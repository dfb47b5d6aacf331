"""Makes the cached features of images, so that every training can start at once.

`python -m training.extract --data DIR --backbone SOURCE`

DIR holds Karpathy's JSON and images/ (`training/data/karpathy.py`), or rendered scenes; SOURCE is
a run folder, a Hugging Face folder or a Hub id (`export/hub/sources.py`). An extraction that was
interrupted goes on where it was when the command is run again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from training.data.extraction import skipped_rows
from training.data.features import CACHE, Extraction, feature_file, read_features
from training.data.open_split import open_split
from training.loop.command import refusals_end


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and makes what is missing."""
    options = _parser().parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    with refusals_end():
        extraction = Extraction(
            options.cache, options.batch, options.workers, options.device, options.skip_damaged
        )
        for name in options.splits.split(","):
            _extract(options.data, name.strip(), options.backbone, extraction)


def _extract(data: Path, name: str, backbone: str, extraction: Extraction) -> None:
    began = time.perf_counter()
    split = open_split(data, name)
    made = read_features(split, backbone, extraction)
    if len(split.features):
        raise ValueError(f"{data} holds ready-made features; there is nothing to extract")
    path = feature_file(split, backbone, extraction)
    seconds = time.perf_counter() - began
    count, cells, width = made.features.shape
    left_out = len(skipped_rows(path))
    note = f", {left_out} damaged images left out" if left_out else ""
    print(f"{name}: {count} x {cells} x {width} in {path}, {seconds:.0f} s{note}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.extract", description="Cache the features of an image encoder."
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of photographs with captions, or scenes")
    add("--backbone", required=True, help="run folder, Hugging Face folder or Hub id")
    what = f"folder that the features of photographs go into; {CACHE} without it"
    add("--cache", type=Path, default=CACHE, help=what)
    add("--splits", default="train,val", help="which splits, with commas; train,val without it")
    add("--batch", type=int, default=32, help="images in a batch")
    add("--workers", type=int, default=0, help="threads that decode; 0: one for each processor")
    add("--threads", type=int, default=0, help="CPU threads of the encoder; 0 leaves it to torch")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--skip-damaged", action="store_true", help="leave out images that cannot be read")
    return parser


if __name__ == "__main__":
    main()
