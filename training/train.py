"""Trains one method: `python -m training.train --recipe scenes/vse_infty --out runs/vse_infty`."""

import functools
from collections.abc import Sequence
from typing import Any

from training.data.features import CACHE, Extraction, load_features
from training.loop.command import parse, refusals_end
from training.loop.config import TrainConfig, load_recipe
from training.loop.trainer import build_trainer


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    options = parse("Train one method.", argv, cache=CACHE)
    with refusals_end():
        config = load_recipe(TrainConfig, options.recipe, options.set)
        load = functools.partial(load_features, extraction=Extraction(options.cache))
        shared: dict[str, Any] = {"load": load, "cache": options.cache}
        metrics = build_trainer(config, options.out, resume=options.resume, **shared).fit()
    print(f"best val rsum {metrics['rsum']:.1f}, weights in {options.out}")


if __name__ == "__main__":
    main()
