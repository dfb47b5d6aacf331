"""Studies: recipes compared on the same images.

A study is `training/experiments/studies/<name>.toml`: which recipes, and each with which seeds.
"""

import csv
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from export.pack.validation import check
from export.sessions import hardware
from training.evaluation.report import COLUMNS
from training.experiments.results import table_lines
from training.experiments.runner import Row, deviation_of, mean_of, measured, settings_given
from training.experiments.trial import trial_folder
from training.loop.config import TrainConfig, load_recipe
from training.loop.logs import LOG
from training.settings import Settings

FOLDER = Path(__file__).parent / "studies"
KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")


class StudyRow(Settings):
    """A recipe and its trainings.

    Attributes:
        label: what it is, in words.
        recipe: its name.
        seeds: one training for each.
        settings: "dotted.name=value" strings.
    """

    label: str
    recipe: str
    seeds: tuple[int, ...] = (0,)
    settings: tuple[str, ...] = ()

    def row(self, changes: Sequence[str]) -> Row:
        """What is trained: the recipe with its settings, and with changes, for each seed."""
        config = load_recipe(TrainConfig, self.recipe, [*self.settings, *changes])
        return Row(self.label, tuple((config.changed(seed=seed),) for seed in self.seeds))


class Study(Settings):
    """Recipes on the same images.

    Attributes:
        name: the file's.
        about: what is the same for all.
        rows: the recipes, in order.
        here: what came out; empty before it was run.
    """

    name: str
    about: str
    rows: tuple[StudyRow, ...]
    here: str = ""


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
    headings = ["recipe", "seeds", *(COLUMNS[key] for key in KEYS)]
    return {
        **{key: getattr(study, key) for key in ("name", "about", "here")},
        "command": f"python -m training.study {study.name}{settings_given(changes)}",
        "hardware": hardware(),
        "columns": [*headings, "its deviation", "parameters", "minutes"],
        "rows": [_line(row.row(changes), out) for row in study.rows],
    }


def _line(row: Row, out: Path) -> list[Any]:
    """A row of the table: means over its seeds."""
    found = measured(row, out)
    minutes = [{"minutes": _minutes(trial_folder(config, out))} for (config,) in row.trainings]
    means = [mean_of(found, key) for key in KEYS]
    parameters = found[0]["parameters"]
    spread = deviation_of(found)
    return [row.label, len(found), *means, spread, parameters, mean_of(minutes, "minutes", 0)]


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
