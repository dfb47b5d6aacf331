"""Studies: recipes compared on the same images.

A study is `training/experiments/studies/<name>.toml`: which recipes, and each with which seeds.
Where it has a grid, every recipe is first tried with each setting of it, on a smaller budget, and
the one that validates best is what the seeds train: a fair comparison gives all the same number.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from export.pack.validation import check
from export.sessions import hardware
from training.data.open_split import open_split
from training.data.split import Split
from training.evaluation.kinds import kind_metrics
from training.evaluation.metrics import retrieval_metrics
from training.evaluation.report import COLUMNS
from training.evaluation.statistics import bootstrap_difference
from training.experiments.results import table_lines
from training.experiments.runner import Row, deviation_of, mean_of, measured, settings_given
from training.experiments.trial import split_scores, trial_minutes
from training.loop.config import TrainConfig, load_recipe
from training.settings import Settings

FOLDER = Path(__file__).parent / "studies"
KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")


Grid = dict[str, tuple[Any, ...]]
"""Dotted names of settings, each with the values that are tried."""


class StudyRow(Settings):
    """A recipe and its trainings.

    Attributes:
        label: what it is, in words.
        recipe: its name.
        seeds: one training for each; empty for those of the study.
        settings: "dotted.name=value" strings.
        grid: what is tried; empty for that of the study.
    """

    label: str
    recipe: str
    seeds: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()
    grid: Grid = Field(default_factory=dict)


class Study(Settings):
    """Recipes on the same images.

    Attributes:
        name: the file's.
        about: what is the same for all.
        rows: the recipes, in order.
        seeds: one training for each.
        settings: "dotted.name=value" strings of every row; a row's own go before.
        grid: what is tried of every row; a row's own takes its place.
        trial: settings of the trials alone, which make them smaller.
        split: what the table is measured on; trials are always chosen by "val".
        baseline: label of the row that the others are compared with; empty for none.
        here: what came out; empty before it was run.
    """

    name: str
    about: str
    rows: tuple[StudyRow, ...]
    seeds: tuple[int, ...] = (0,)
    settings: tuple[str, ...] = ()
    grid: Grid = Field(default_factory=dict)
    trial: tuple[str, ...] = ()
    split: Literal["val", "test"] = "val"
    baseline: str = ""
    here: str = ""

    @model_validator(mode="after")
    def _refuse_what_is_unfair(self) -> Self:
        if self.baseline and self.baseline not in [row.label for row in self.rows]:
            raise ValueError(f'there is no row "{self.baseline}" to compare with')
        counts = {row.label: len(self.tried(row)) for row in self.rows}
        if len(set(counts.values())) > 1:
            few, many = (choose(counts, key=lambda name: counts[name]) for choose in (min, max))
            raise ValueError(
                f"every row must have as many trials, not {counts[few]} ({few}) and "
                f"{counts[many]} ({many})"
            )
        return self

    def tried(self, row: StudyRow) -> list[tuple[str, ...]]:
        """The settings of each of a row's trials; one empty one without a grid."""
        axes = [
            [f"{name}={json.dumps(value, separators=(',', ':'))}" for value in values]
            for name, values in (row.grid or self.grid).items()
        ]
        return list(product(*axes))

    def trials(self, changes: Sequence[str]) -> list[Row]:
        """What is tried, of all rows in order; nothing where there is no choice."""
        return [
            Row(
                f"{row.label} with {', '.join(given)}",
                ((self.config(row, (*self.trial, *given), changes),),),
            )
            for row in self.rows
            for given in self.tried(row)
            if given
        ]

    def chosen(self, changes: Sequence[str], out: Path) -> dict[str, dict[str, float]]:
        """How each row's trials validated, which were run before: rsum by setting, best first."""
        found = iter(measured(row, out)[0]["rsum"] for row in self.trials(changes))
        sums = {
            row.label: {" ".join(g): round(next(found), 2) for g in self.tried(row) if g}
            for row in self.rows
        }
        best = {label: sorted(each, key=lambda g: -each[g]) for label, each in sums.items()}
        return {label: {given: sums[label][given] for given in best[label]} for label in sums}

    def rows_of(
        self, changes: Sequence[str], chosen: Mapping[str, Mapping[str, float]]
    ) -> list[Row]:
        """What the table holds: each recipe as it was chosen, and with changes, for each seed."""
        rows = []
        for row in self.rows:
            given = next(iter(chosen[row.label]), "").split()
            config = self.config(row, given, changes)
            seeds = row.seeds or self.seeds
            rows.append(Row(row.label, tuple((config.changed(seed=seed),) for seed in seeds)))
        return rows

    def only(self, labels: Sequence[str]) -> Self:
        """The study of some of its rows alone.

        Raises:
            ValueError: it has no such row.
        """
        rows = {row.label: row for row in self.rows}
        if unknown := [label for label in labels if label not in rows]:
            raise ValueError(
                f'study {self.name} has no row "{unknown[0]}"; it has {", ".join(rows)}'
            )
        chosen = tuple(row for row in self.rows if row.label in labels)
        return self.model_copy(update={"rows": chosen, "baseline": ""})

    def config(self, row: StudyRow, given: Sequence[str], changes: Sequence[str]) -> TrainConfig:
        """What a row trains with further settings, and with changes, which win over all others."""
        everything = [*self.settings, *row.settings, *given, *changes]
        return load_recipe(TrainConfig, row.recipe, everything)


def load_study(name: str) -> Study:
    """Reads a study.

    Args:
        name: a file of `training/experiments/studies` without its ending.

    Raises:
        ValueError: there is no such study, or something in its file makes no sense.
    """
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise ValueError(f'there is no study "{name}"; choose one of {known}')
    values = tomllib.loads(path.read_text("utf-8"))
    return check(Study, {**values, "name": name}, f"study {name}")


def result_of(study: Study, changes: Sequence[str], out: Path) -> dict[str, Any]:
    """What was measured, as the study's JSON file holds it; every training was run before."""
    chosen = study.chosen(changes, out)
    rows = study.rows_of(changes, chosen)
    headings = ["recipe", "seeds", *(COLUMNS[key] for key in KEYS), "its deviation"]
    headings += [f"above {study.baseline}", "low", "high"] if study.baseline else []
    base = next((row for row in rows if row.label == study.baseline), None)
    return {
        **{key: getattr(study, key) for key in ("name", "about", "here")},
        "command": f"python -m training.study {study.name}{settings_given(changes)}",
        "hardware": hardware(),
        "columns": [*headings, "parameters", "minutes"],
        "rows": [_line(row, base, study.split, out) for row in rows],
        **_twins(rows, study.split, out),
        "trials": chosen if study.trials(changes) else {},
    }


def _line(row: Row, base: Row | None, split: str, out: Path) -> list[Any]:
    """A row of the table: means over its seeds."""
    found, data = measured(row, out), _data_of(row, split)
    if split != "val":
        found = [
            {**values, **retrieval_metrics(scores, data.image_of)}
            for values, scores in zip(found, _scores(row, split, out), strict=True)
        ]
    above: list[Any] = []
    if base is row:
        above = [None, None, None]
    elif base is not None:
        here, there = _scores(row, split, out), _scores(base, split, out)
        sure = bootstrap_difference(here, there, data.image_of, alike=data.alike)
        above = [round(sure[key], 1) for key in ("difference", "low", "high")]
    minutes = [{"minutes": trial_minutes(config, out)} for (config,) in row.trainings]
    means = [mean_of(found, key) for key in KEYS]
    spread, parameters = deviation_of(found), found[0]["parameters"]
    return [
        row.label, len(found), *means, spread, *above, parameters, mean_of(minutes, "minutes", 0),
    ]  # fmt: skip


def _scores(row: Row, split: str, out: Path) -> np.ndarray:
    """The scores (S, N_img, N_txt) of a row's trainings, one for each seed."""
    return np.stack([split_scores(config, out, split) for (config,) in row.trainings])


def _data_of(row: Row, split: str) -> Split:
    return open_split(Path(row.trainings[0][0].data), split)


def _twins(rows: Sequence[Row], split: str, out: Path) -> dict[str, Any]:
    """Where images are twins, of each kind of captions how many are above the twin, row by row."""
    data = _data_of(rows[0], split)
    if data.alike is None:
        return {}
    kinds = [*dict.fromkeys(data.kinds)]
    table: list[list[Any]] = [["caption above its twin, %", *kinds]]
    for row in rows:
        found = [kind_metrics(scores, data) for scores in _scores(row, split, out)]
        table.append([row.label, *(mean_of(found, f"{kind}_above_alike") for kind in kinds)])
    return {"twins": table}


def study_lines(result: dict[str, Any]) -> list[str]:
    """A study's part of the page, as Markdown."""
    trials = [
        f"- {label}: {'; '.join(f'{given} {rsum:.1f}' for given, rsum in each.items())}"
        for label, each in result.get("trials", {}).items()
    ]
    return [
        result["about"],
        "",
        *table_lines(result["columns"], result["rows"]),
        "",
        *([*table_lines(twins[0], twins[1:]), ""] if (twins := result.get("twins")) else []),
        *([result["here"], ""] if result["here"] else []),
        *(["Trials, by validation rsum, the chosen one first:", "", *trials, ""] if trials else []),
        f"`{result['command']}`, {result['hardware']}.",
    ]
