"""Trains one method: `python -m training.train --recipe scenes/vse_infty --out runs/vse_infty`."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from models.sources import describe_image_source
from training.config import TrainConfig, load_recipe
from training.datasets import CaptionedFeatures, load_pictures, load_split
from training.features import CACHE, Extraction
from training.images import load_image_side
from training.precomputed import is_precomputed
from training.trainer import Trainer


def build_trainer(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool,
    load: Callable[..., CaptionedFeatures] = load_split,
    cache: Path = CACHE,
) -> Trainer:
    """Loads what a configuration names and puts it into a trainer.

    Args:
        config: what to train.
        out: run folder.
        resume: go on with the run in `out`.
        load: loads a split's features, as `load_split` does; several trainers can share one that
            remembers.
        cache: folder of the token features of text encoders that are not trained.
    """
    data, backbone, limit = Path(config.data), config.backbone, config.train_images
    if not config.backbone_frozen:
        images = load_image_side(backbone)
        how = images.preprocess, images.encoder.summary_token
        train, val = load_pictures(data, "train", *how, limit), load_pictures(data, "val", *how)
        return Trainer(config, train, val, out, images=images, resume=resume, cache=cache)
    train = load(data, "train", backbone, limit, copies=config.feature_copies)
    val = load(data, "val", backbone, 0)
    sha = "" if is_precomputed(data) else describe_image_source(backbone)["sha256"]
    return Trainer(config, train, val, out, backbone_sha256=sha, resume=resume, cache=cache)


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Train one method.")
    parser.add_argument(
        "--recipe", required=True, help="for example scenes/vse_infty, or a TOML file"
    )
    parser.add_argument("--out", type=Path, required=True, help="run folder")
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="replace a setting, e.g. epochs=3"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    said = f"folder of cached features of photographs and captions; {CACHE} without it"
    parser.add_argument("--cache", type=Path, default=CACHE, help=said)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves it to torch")
    options = parser.parse_args(argv)
    try:
        if options.threads:
            torch.set_num_threads(options.threads)
        config = load_recipe(TrainConfig, options.recipe, options.set)
        load = functools.partial(load_split, extraction=Extraction(options.cache))
        shared: dict[str, Any] = {"load": load, "cache": options.cache}
        metrics = build_trainer(config, options.out, resume=options.resume, **shared).fit()
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    print(f"best val rsum {metrics['rsum']:.1f}, weights in {options.out}")


if __name__ == "__main__":
    main()
