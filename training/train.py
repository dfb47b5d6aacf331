"""Trains one method: `python -m polyview train --recipe scenes/vse_infty --out runs/vse_infty`."""

import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from polyview.models import CONTEXT_DEFAULTS, METHODS, argument_defaults
from polyview.models.contextual import ContextConfig
from polyview.training.data.features import Extraction
from polyview.training.data.texts import TextConfig
from polyview.training.loop.clip import ClipTraining
from polyview.training.loop.command import run_command
from polyview.training.loop.config import OptimizerConfig, TrainConfig
from polyview.training.loop.trainer import Trainer, build_trainer
from polyview.training.objectives import OBJECTIVES
from polyview.training.settings import describe


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    run_command(argv, "train", TrainConfig, _build, describe_settings=_describe_all, use_cache=True)


def _build(
    config: TrainConfig, out: Path, *, resume: bool, cache: Path, skip_damaged: bool
) -> Trainer | ClipTraining:
    if config.network:
        return ClipTraining(config, out, resume=resume)
    if skip_damaged and not config.backbone_frozen:
        advice = f"set it, or replace the images that python -m polyview data {config.data} names"
        raise ValueError(f"--skip-damaged needs backbone_frozen=true; {advice}")
    extraction = Extraction(cache, skip_damaged=skip_damaged)
    return build_trainer(config, out, resume=resume, extraction=extraction)


def _describe_all() -> Iterator[str]:
    """Yields lines that describe the settings of the loop, then those of each method."""
    yield from describe(TrainConfig)
    yield from describe(TextConfig, "text.")
    yield from describe(OptimizerConfig, "optimizer.")
    for name, objective in OBJECTIVES.items():
        method = METHODS[name]
        yield f'\nmethod = "{name}": {method.title}'
        yield inspect.cleandoc((method.config_type or method).__doc__ or "")
        for argument, default in argument_defaults(name).items():
            yield f"arguments.{argument} = {json.dumps(default)}"
        yield from describe(objective, "objective.")
    yield "\nfor every method:"
    yield inspect.cleandoc(ContextConfig.__doc__ or "")
    for argument, default in CONTEXT_DEFAULTS.items():
        yield f"arguments.{argument} = {json.dumps(default)}"
