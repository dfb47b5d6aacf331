"""Renders a split of the scenes world: ``python -m training.scenes --out DIR --split train``.

With ``--moving`` it draws clips of 16 frames (`training/scenes/motion.py`) instead of scenes.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from models.files import DiskFullError
from training.scenes.glyphs import FontMissingError
from training.scenes.store import SceneDataError, write_clips, write_scenes
from training.scenes.world import SPLITS

_SCENE_COUNTS = {"train": 24_000, "val": 1_000, "test": 1_000}
_CLIP_COUNTS = {"train": 6_000, "val": 500, "test": 500}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.scenes", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of all splits")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--moving", action="store_true", help="clips in the place of scenes")
    count = "number of scenes (24000 train, 1000 val, test) or clips (6000 train, 500 val, test)"
    parser.add_argument("--count", type=int, help=count)
    parser.add_argument("--seed", type=int, default=0, help="seed of the world (0)")
    parser.add_argument("--workers", type=int, help="processes that render scenes (one per core)")
    parser.add_argument("--force", action="store_true", help="replace an existing folder")
    options = parser.parse_args(arguments)
    split, seed, force = options.split, options.seed, options.force
    counts, unit = (_CLIP_COUNTS, "clips") if options.moving else (_SCENE_COUNTS, "scenes")
    number = counts[split] if options.count is None else options.count
    folder, started = options.out / split, time.perf_counter()
    try:
        if options.moving:
            written = write_clips(options.out, split, number, seed, force=force)
        else:
            written = write_scenes(
                options.out, split, number, seed=seed, workers=options.workers, force=force
            )
    except (FontMissingError, SceneDataError, DiskFullError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"{folder} cannot be written ({error.strerror}): choose another --out", file=sys.stderr
        )
        return 2
    if written:
        print(f"{folder}: {number} {unit} in {time.perf_counter() - started:.1f} s.")
    else:
        print(f"{folder}: {number} {unit} were already there, nothing to do.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
