"""Renders a split of the scenes world: ``python -m polyview scenes --out DIR --split train``.

With ``--moving`` it draws clips of 16 frames (`training/scenes/motion.py`) instead of scenes.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from polyview.models.files import DiskFullError
from polyview.training.scenes.glyphs import FontMissingError
from polyview.training.scenes.store import SceneDataError, write_split
from polyview.training.scenes.world import SPLITS

_COUNTS = {
    "scenes": {"train": 24_000, "val": 1_000, "test": 1_000},
    "clips": {"train": 6_000, "val": 500, "test": 500},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m polyview scenes", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of all splits")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--moving", action="store_true", help="clips instead of scenes")
    count = "number of scenes (24000 train, 1000 val, test) or clips (6000 train, 500 val, test)"
    parser.add_argument("--count", type=int, help=count)
    parser.add_argument("--seed", type=int, default=0, help="seed of the world (0)")
    parser.add_argument("--workers", type=int, help="processes that render scenes (one per core)")
    parser.add_argument("--force", action="store_true", help="replace an existing folder")
    settings = vars(parser.parse_args(arguments))
    unit, folder = "clips" if settings["moving"] else "scenes", settings["out"] / settings["split"]
    if settings["count"] is None:
        settings["count"] = _COUNTS[unit][settings["split"]]
    started = time.perf_counter()
    try:
        written = write_split(**settings)
    except (FontMissingError, SceneDataError, DiskFullError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"{folder} cannot be written: {error.strerror}; choose another --out", file=sys.stderr
        )
        return 2
    end = f"in {time.perf_counter() - started:.1f} s" if written else "were already there"
    print(f"{folder}: {settings['count']} {unit} {end}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
