"""Renders a split of the scenes world: ``python -m training.scenes --out DIR --split train``."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from training.scenes.generate import generate
from training.scenes.glyphs import FontMissingError
from training.scenes.store import SceneDataError
from training.scenes.world import SPLITS

DEFAULT_COUNTS = {"train": 24_000, "val": 1_000, "test": 1_000}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.scenes", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of all splits")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, help="number of scenes (24000 train, 1000 val, test)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the world (0)")
    parser.add_argument("--workers", type=int, help="processes (one per core)")
    parser.add_argument("--force", action="store_true", help="replace what is there")
    options = parser.parse_args(arguments)
    count = DEFAULT_COUNTS[options.split] if options.count is None else options.count
    folder = options.out / options.split
    started = time.perf_counter()
    try:
        made = generate(
            options.out,
            options.split,
            count,
            seed=options.seed,
            workers=options.workers,
            force=options.force,
        )
    except (FontMissingError, SceneDataError) as error:
        print(error, file=sys.stderr)
        return 2
    if made:
        print(f"{folder}: {count} scenes in {time.perf_counter() - started:.1f} s.")
    else:
        print(f"{folder}: {count} scenes were already there, nothing to do.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
