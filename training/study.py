"""Compares recipes on one set of photographs: `python -m training.study flickr8k --set data=DIR`.

A study is `training/studies/<name>.toml`: which recipes, and each with which seeds. What was not
trained before is trained, `docs/<name>.json` is written, and the study's part of `docs/results.md`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.ablate import Job, run_jobs
from training.config import TrainConfig, load_recipe
from training.report import COLUMNS
from training.results import PAGE, replace_part, table_lines
from training.runs import LOG, hardware, write_text
from training.trial import run_trial, trial_folder

FOLDER = Path(__file__).parent / "studies"
RESULTS = Path("docs")
KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")


@dataclass(frozen=True)
class Row:
    """A recipe and its trainings.

    Attributes:
        label: what it is, in words.
        recipe: its name.
        configs: what is trained, one for each seed.
    """

    label: str
    recipe: str
    configs: tuple[TrainConfig, ...]


@dataclass(frozen=True)
class Study:
    """Recipes on the same photographs.

    Attributes:
        name: the file's.
        about: what is the same for all.
        here: what came out; empty before it was run.
        rows: the recipes, in order.
    """

    name: str
    about: str
    here: str
    rows: tuple[Row, ...]


def load_study(name: str, changes: Sequence[str] = ()) -> Study:
    """Reads a study.

    Args:
        name: a file of `training/studies` without its ending.
        changes: "dotted.name=value" strings, applied to every recipe.

    Raises:
        ValueError: there is no such study, or something in its file makes no sense.
    """
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise ValueError(f'there is no study "{name}"; choose one of {known}')
    said = tomllib.loads(path.read_text("utf-8"))
    try:
        rows = tuple(_row(changes=changes, **entry) for entry in said.pop("rows"))
        return Study(name=name, rows=rows, **{"here": "", **said})
    except (TypeError, KeyError) as error:
        raise ValueError(f"study {name} has a key too many or too few: {error}") from error


def _row(
    label: str,
    recipe: str,
    seeds: Sequence[int] = (0,),
    settings: Sequence[str] = (),
    *,
    changes: Sequence[str],
) -> Row:
    config = load_recipe(TrainConfig, recipe, [*settings, *changes])
    return Row(label, recipe, tuple(replace(config, seed=seed) for seed in seeds))


def result_of(study: Study, changes: Sequence[str], out: Path) -> dict[str, Any]:
    """What was measured, as the study's JSON file holds it; every training was run before."""
    return {
        "name": study.name,
        "about": study.about,
        "here": study.here,
        "command": " ".join(
            ["python -m training.study", study.name, *(f"--set {change}" for change in changes)]
        ),
        "hardware": hardware(),
        "columns": [
            "recipe",
            "seeds",
            *(COLUMNS[key] for key in KEYS),
            "its deviation",
            "parameters",
            "minutes",
        ],
        "rows": [_measured(row, out) for row in study.rows],
    }


def _measured(row: Row, out: Path) -> list[Any]:
    """A row of the table: means over its seeds."""
    found = [run_trial(config, out) for config in row.configs]
    sums = [values["rsum"] for values in found]
    spread = round(float(np.std(sums, ddof=1)), 1) if len(sums) > 1 else None
    minutes = [_minutes(trial_folder(config, out)) for config in row.configs]
    return [
        row.label,
        len(found),
        *(round(float(np.mean([values[key] for values in found])), 1) for key in KEYS),
        spread,
        found[0]["parameters"],
        round(float(np.mean(minutes))),
    ]


def _minutes(folder: Path) -> float:
    """How long a training took, validations included."""
    with (folder / LOG).open(newline="", encoding="utf-8") as log:
        return sum(float(line["seconds"]) for line in csv.DictReader(log)) / 60


def study_lines(result: dict[str, Any]) -> list[str]:
    """A study's part of the page, as Markdown."""
    return [
        result["about"],
        "",
        *table_lines(result["columns"], result["rows"]),
        "",
        *([result["here"], ""] if result["here"] else []),
        f"`{result['command']}`, {result['hardware']}.",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        study = load_study(options.name, options.set)
        jobs = [
            Job(f"{row.label}, seed {config.seed}", config, keep_scores=False)
            for row in study.rows
            for config in row.configs
        ]
        run_jobs(jobs, options.out, options.threads, options.jobs)
        result = result_of(study, options.set, options.out)
        where = options.results / f"{study.name}.json"
        write_text(where, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        replace_part(options.results / PAGE.name, study.name, study_lines(result))
        print(f"{where} and {options.results / PAGE.name} are up to date")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.study", description="Compare recipes on the same photographs."
    )
    add = parser.add_argument
    add("name", help="a file of training/studies")
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of every recipe"
    )
    add("--out", type=Path, default=Path("runs/studies"), help="folder of the trainings")
    add("--threads", type=int, default=1, help="CPU threads of each training")
    add("--jobs", type=int, default=1, help="trainings at a time")
    add("--results", type=Path, default=RESULTS, help="folder of the page and of the numbers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
