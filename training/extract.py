"""Makes the cached features of photographs, so that every training can start at once.

`python -m training.extract --data DIR --backbone SOURCE`

DIR holds Karpathy's JSON and images/ (`training/karpathy.py`), or rendered scenes; SOURCE is a run
folder, a Hugging Face folder or a Hub id (`models/sources.py`). An extraction that was interrupted
goes on where it was when the command is run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from training.features import CACHE, Extraction, cached_features, photograph_features
from training.karpathy import karpathy_file, load_karpathy


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and makes what is missing."""
    options = _parser().parse_args(argv)
    try:
        if options.threads:
            torch.set_num_threads(options.threads)
        extraction = Extraction(
            options.cache, options.batch, options.workers, options.device, options.skip_damaged
        )
        for split in options.splits.split(","):
            _extract(options.data, split.strip(), options.backbone, extraction)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


def _extract(data: Path, split: str, backbone: str, extraction: Extraction) -> None:
    began = time.perf_counter()
    if karpathy_file(data) is None:
        if not (data / split).is_dir():
            raise FileNotFoundError(
                f"{data} holds neither photographs (dataset_flickr8k.json and images/) nor a "
                f'rendered split "{split}"'
            )
        features = cached_features(data / split, backbone, extraction)
        where, left_out = str(data / split), 0
    else:
        photographs = load_karpathy(data, split)
        name = f"{data.resolve().name}/{split}"
        features, kept, path = photograph_features(photographs, name, backbone, extraction)
        where, left_out = str(path), len(photographs) - len(kept)
    seconds = time.perf_counter() - began
    count, cells, width = features.shape
    said = f", {left_out} damaged pictures left out" if left_out else ""
    print(f"{split}: {count} x {cells} x {width} in {where}, {seconds:.0f} s{said}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.extract", description="Cache the features of an image encoder."
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of photographs with captions, or scenes")
    add("--backbone", required=True, help="run folder, Hugging Face folder or Hub id")
    said = f"folder that the features of photographs go into; {CACHE} without it"
    add("--cache", type=Path, default=CACHE, help=said)
    add("--splits", default="train,val", help="which splits, with commas; train,val without it")
    add("--batch", type=int, default=32, help="pictures in a batch")
    add("--workers", type=int, default=0, help="threads that decode; 0: one for each processor")
    add("--threads", type=int, default=0, help="CPU threads of the encoder; 0 leaves it to torch")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--skip-damaged", action="store_true", help="leave out pictures that cannot be read")
    return parser


if __name__ == "__main__":
    main()
