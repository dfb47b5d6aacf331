"""Trains one method: `python -m training.train --recipe scenes/vse_infty --out runs/vse_infty`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from training.config import TrainConfig, load_recipe
from training.datasets import CaptionedFeatures, load_split
from training.features import file_sha256
from training.precomputed import is_precomputed
from training.runs import BEST
from training.trainer import Trainer


def build_trainer(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool,
    load: Callable[[Path, str, Path, int], CaptionedFeatures] = load_split,
) -> Trainer:
    """Loads what a configuration names and puts it into a trainer.

    Args:
        config: what to train.
        out: run folder.
        resume: go on with the run in `out`.
        load: loads a split, as `load_split` does; several trainers can share one that remembers.
    """
    data, backbone = Path(config.data), Path(config.backbone)
    train = load(data, "train", backbone, config.train_images)
    val = load(data, "val", backbone, 0)
    sha = "" if is_precomputed(data) else file_sha256(backbone / BEST)
    return Trainer(config, train, val, out, backbone_sha256=sha, resume=resume)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Train one method on cached features.")
    parser.add_argument(
        "--recipe", required=True, help="for example scenes/vse_infty, or a TOML file"
    )
    parser.add_argument("--out", type=Path, required=True, help="run folder")
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="replace a setting, e.g. epochs=3"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves it to torch")
    options = parser.parse_args()
    try:
        if options.threads:
            torch.set_num_threads(options.threads)
        config = load_recipe(TrainConfig, options.recipe, options.set)
        metrics = build_trainer(config, options.out, resume=options.resume).fit()
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    print(f"best val rsum {metrics['rsum']:.1f}, weights in {options.out}")


if __name__ == "__main__":
    main()
