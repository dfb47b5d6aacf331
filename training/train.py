"""Trains one method: `python -m training.train --recipe scenes/vse_infty --out runs/vse_infty`.

`--list` names the recipes, `--help-settings` every setting (docs/settings.md).
"""

import functools
from collections.abc import Sequence

from training.data.features import Extraction, load_features
from training.loop.command import Command, fit
from training.loop.config import TrainConfig
from training.loop.trainer import build_trainer


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    command = Command("train", "Train one method.", TrainConfig, cache=True)
    options = command.read(argv)
    with command.ends(options):
        config = command.settings(TrainConfig, options)
        load = functools.partial(load_features, extraction=Extraction(options.cache))
        out, cache = options.out, options.cache
        fit(build_trainer(config, out, resume=options.resume, load=load, cache=cache), options)


if __name__ == "__main__":
    main()
