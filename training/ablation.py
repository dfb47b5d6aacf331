"""Ablations: what each varies, on which budget, and what its paper found.

An ablation is `training/ablations/<name>.toml`. Its settings lie over those of `budget.toml` in the
same folder, which is the same small training for all, and a variant's over its ablation's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import TrainConfig, apply_change, from_values

FOLDER = Path(__file__).parent / "ablations"
BUDGET = "budget"


@dataclass(frozen=True)
class Measure:
    """A column: its heading, and the number of digits after the point."""

    heading: str
    digits: int = 1


MEASURES = {
    "rsum": Measure("rsum"),
    "i2t_r1": Measure("i2t R@1"),
    "t2i_r1": Measure("t2i R@1"),
    "view_cosine": Measure("cosine of two views", 3),
    "wins_top": Measure("wins of the busiest view, %"),
    "wins_entropy": Measure("entropy of the wins, bits", 2),
    "temperature": Measure("temperature at the end", 4),
    "parameters": Measure("parameters of the heads", 0),
    "step_ms": Measure("training step, ms"),
    "score_ms": Measure("scoring a text with all images, ms", 2),
}
ALWAYS = ("rsum", "i2t_r1", "t2i_r1")


@dataclass(frozen=True)
class Variant:
    """One row of an ablation.

    Attributes:
        label: what is different, in words.
        config: what is trained; its seed is replaced.
        models: how many models of different seeds are trained, whose scores are averaged.
    """

    label: str
    config: TrainConfig
    models: int = 1


@dataclass(frozen=True)
class Ablation:
    """A question, put to several trainings that differ in one thing.

    Attributes:
        name: the file's.
        title: the question in a few words.
        paper: what the paper varies, and where it reports it.
        found: what it found.
        note: what is different here, beside the budget.
        here: what came out here, and whether that agrees with the paper; empty before it was run.
        axis: what the variants' labels are.
        columns: keys of `MEASURES` beyond those that every ablation has.
        curves: also keep the learned pooling coefficients.
        budget: what every variant trains with, in words.
        variants: the rows, in order.
    """

    name: str
    title: str
    paper: str
    found: str
    note: str
    here: str
    axis: str
    columns: tuple[str, ...]
    curves: bool
    budget: str
    variants: tuple[Variant, ...]


def ablation_names() -> list[str]:
    """The ablations there are, by alphabet."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != BUDGET)


def load_ablation(name: str, changes: Sequence[str] = ()) -> Ablation:
    """Reads an ablation.

    Args:
        name: one of `ablation_names()`.
        changes: "dotted.name=value" strings, applied to every variant.

    Raises:
        ValueError: there is no such ablation, or something in its file makes no sense.
    """
    if name not in ablation_names():
        known = ", ".join(ablation_names())
        raise ValueError(f'there is no ablation "{name}"; choose one of {known}')
    said = _read(name)
    settings = _over(_read(BUDGET), said.pop("settings", {}))
    entries = said.pop("variants", [])
    if len(entries) < 2:
        raise ValueError(f"ablation {name} compares nothing; give it two [[variants]] or more")
    try:
        variants = tuple(_variant(entry, settings, changes) for entry in entries)
        values = {"note": "", "here": "", "axis": "variant", "columns": (), "curves": False, **said}
        values["columns"] = tuple(values["columns"])
        shared = _config(settings, changes)
        ablation = Ablation(name=name, budget=_budget(shared), variants=variants, **values)
    except (TypeError, KeyError) as error:
        raise ValueError(f"ablation {name} has a key too many or too few: {error}") from error
    if unknown := sorted(set(ablation.columns) - set(MEASURES)):
        raise ValueError(f'ablation {name} has no column "{unknown[0]}": {", ".join(MEASURES)}')
    return ablation


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def _variant(entry: dict[str, Any], settings: dict[str, Any], changes: Sequence[str]) -> Variant:
    own = {"settings": {}, "models": 1, **entry}
    config = _config(_over(settings, own.pop("settings")), changes)
    return Variant(config=config, **own)


def _config(settings: dict[str, Any], changes: Sequence[str]) -> TrainConfig:
    values = _over(settings, {})
    for change in changes:
        apply_change(values, change)
    return from_values(TrainConfig, values)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries, the second's values over the first's; neither is changed."""
    merged = {k: _over(v, {}) if isinstance(v, dict) else v for k, v in below.items()}
    for key, value in above.items():
        nested = isinstance(value, dict)
        merged[key] = _over(merged.get(key, {}), value) if nested else value
    return merged


def _budget(config: TrainConfig) -> str:
    images = f"the first {config.train_images:,}" if config.train_images else "all"
    chosen = "last" if config.validate_every >= config.epochs else "best validated"
    return (
        f"Trained on {images} training images for {config.epochs} epochs in batches of "
        f"{config.batch_size}, rate {config.optimizer.learning_rate:g} with a "
        f"{config.optimizer.schedule} schedule, unless the row says otherwise; measured on the "
        f"validation split after the {chosen} epoch."
    )
