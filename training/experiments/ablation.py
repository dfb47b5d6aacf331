"""Ablations: what each varies, on which budget, what its paper found, and what came out here.

An ablation is `training/experiments/ablations/<name>.toml`. Its settings lie over those of
`budget.toml` in the same folder, which is the same small training for all, and a variant's over
its ablation's.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from export.pack.validation import check
from export.sessions import hardware
from training.experiments.runner import (
    Row,
    deviation_of,
    mean_of,
    measured,
    settings_given,
    write_result,
)
from training.loop.config import TrainConfig
from training.settings import Settings, apply_change

FOLDER = Path(__file__).parent / "ablations"
BUDGET = "budget"
SEEDS_APART = 100  # the models of one row have the seeds 100 s, 100 s + 1, ...


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
    "caption_cosine": Measure("cosine of two captions of an image", 3),
    "caption_low": Measure("its lowest tenth", 3),
    "caption_high": Measure("its highest tenth", 3),
    "wins_top": Measure("wins of the busiest view, %"),
    "wins_entropy": Measure("entropy of the wins, bits", 2),
    "temperature": Measure("temperature at the end", 4),
    "parameters": Measure("parameters of the heads", 0),
    "step_ms": Measure("training step, ms"),
    "score_ms": Measure("scoring a text with all images, ms", 2),
}
ALWAYS = ("rsum", "i2t_r1", "t2i_r1")


class Variant(Settings):
    """One row of an ablation.

    Attributes:
        label: what is different, in words.
        config: what is trained; its seed is replaced.
        models: how many models of different seeds are trained, whose scores are averaged.
    """

    label: str
    config: TrainConfig
    models: int = Field(default=1, ge=1)

    def row(self, seeds: Sequence[int]) -> Row:
        """What is trained: for each seed one model, or as many as the ensemble has."""
        first = SEEDS_APART if self.models > 1 else 1
        return Row(
            self.label,
            tuple(
                tuple(self.config.changed(seed=first * seed + i) for i in range(self.models))
                for seed in seeds
            ),
        )


class Ablation(Settings):
    """A question, put to several trainings that differ in one thing.

    Attributes:
        name: the file's.
        title: the question in a few words.
        paper: what the paper varies, and where it reports it.
        found: what it found.
        shared: what every variant trains, unless it says otherwise.
        variants: the rows, in order.
        note: what is different here, beside the budget.
        here: what came out here, and whether that agrees with the paper; empty before it was run.
        axis: what the variants' labels are.
        columns: keys of `MEASURES` beyond those that every ablation has.
        curves: also keep the learned pooling coefficients.
    """

    name: str
    title: str
    paper: str
    found: str
    shared: TrainConfig
    variants: tuple[Variant, ...] = Field(min_length=2)
    note: str = ""
    here: str = ""
    axis: str = "variant"
    columns: tuple[str, ...] = ()
    curves: bool = False

    @model_validator(mode="after")
    def _refuse_unknown_columns(self) -> Self:
        if unknown := sorted(set(self.columns) - set(MEASURES)):
            raise ValueError(f'there is no column "{unknown[0]}"; choose of {", ".join(MEASURES)}')
        return self


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
    values = _read(name)
    settings = _over(_read(BUDGET), values.pop("settings", {}))
    variants = [
        {"config": _changed(_over(settings, entry.pop("settings", {})), changes), **entry}
        for entry in values.pop("variants", [])
    ]
    given = {"name": name, "shared": _changed(settings, changes), "variants": variants}
    return check(Ablation, {**values, **given}, f"ablation {name}")


def result_of(
    ablation: Ablation, seeds: Sequence[int], out: Path, changes: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything about an ablation that was run, as its JSON file holds it.

    Args:
        ablation: as it was loaded.
        seeds: over which each row is averaged.
        out: folder of the trainings.
        changes: with which it was loaded.
    """
    found = [measured(variant.row(seeds), out) for variant in ablation.variants]
    labels = [variant.label for variant in ablation.variants]
    given = "" if list(seeds) == [0] else f" --seeds {' '.join(map(str, seeds))}"
    given += settings_given(changes)
    keys = (*ALWAYS, *ablation.columns)
    columns = [ablation.axis, *(MEASURES[key].heading for key in keys)]
    rows = [
        [label, *(mean_of(values, key, MEASURES[key].digits) for key in keys)]
        for label, values in zip(labels, found, strict=True)
    ]
    if len(seeds) > 1:
        columns.insert(2, f"its deviation over {len(seeds)} seeds")
        for row, values in zip(rows, found, strict=True):
            row.insert(2, deviation_of(values))
    result: dict[str, Any] = {
        **{key: getattr(ablation, key) for key in ("name", "title", "paper", "found", "here")},
        "command": f"python -m training.ablate {ablation.name}{given}",
        "hardware": hardware(),
        "seeds": list(seeds),
        "columns": columns,
        "rows": rows,
        "note": _note(ablation),
    }
    if ablation.curves:
        result["curves"] = {
            f"{label}: {name}": curve
            for label, values in zip(labels, found, strict=True)
            for name, curve in values[0].get("curves", {}).items()
        }
    return result


def state_outcomes(results: Path) -> None:
    """Brings what ablations say came out, and what they note, into the files of their results."""
    for name in ablation_names():
        path = results / f"{name}.json"
        if path.is_file():
            values = json.loads(path.read_text("utf-8"))
            ablation = load_ablation(name)
            outcome = {"here": ablation.here, "note": _note(ablation)}
            if {**values, **outcome} != values:
                write_result(results, {**values, **outcome})


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def _changed(settings: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    values = dict(settings)
    for change in changes:
        apply_change(values, change)
    return values


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries, the second's values over the first's; neither is changed."""
    merged = {k: _over(v, {}) if isinstance(v, dict) else v for k, v in below.items()}
    for key, value in above.items():
        nested = isinstance(value, dict)
        merged[key] = _over(merged.get(key, {}), value) if nested else value
    return merged


def _note(ablation: Ablation) -> str:
    return f"{_budget(ablation.shared)} {ablation.note}".strip()


def _budget(config: TrainConfig) -> str:
    images = f"the first {config.train_images:,}" if config.train_images else "all"
    chosen = "last" if config.validate_every >= config.epochs else "best validated"
    return (
        f"Trained on {images} training images for {config.epochs} epochs in batches of "
        f"{config.batch_size}, rate {config.optimizer.learning_rate:g} with a "
        f"{config.optimizer.schedule} schedule, unless the row says otherwise; measured on the "
        f"validation split after the {chosen} epoch."
    )
