"""Sweeps as TOML files, their trainings, and the recorded results."""

import functools
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from polyview.export.encoders.sources import describe_image_source
from polyview.export.pack.validation import check
from polyview.models.files import replacing
from polyview.training.loop.config import RECIPES, TrainConfig, load_recipe
from polyview.training.loop.runs import read_rows, write_rows
from polyview.training.settings import Settings, unknown_name

SWEEPS = RECIPES / "sweeps"
TRAINING_VERSION = 2  # increase when the same settings give other weights

Grid = dict[str, tuple[Any, ...]]
"""Dotted names of settings, each with the values to try."""


class SweepRow(Settings):
    """One row of the table; its recipe, grid and seeds override those of the sweep.

    Attributes:
        label: its name in the table.
        recipe: recipe below `training/recipes`.
        settings: "dotted.name=value" strings, applied after the sweep's.
        grid: settings tried.
        seeds: of the trainings at the chosen point.
        own_baseline: label of the row that is the baseline in the method's paper; empty for none.
    """

    label: str
    recipe: str = ""
    settings: tuple[str, ...] = ()
    grid: Grid = Field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    own_baseline: str = ""


class Sweep(Settings):
    """Rows trained on the same images.

    Attributes:
        name: the file name without its suffix.
        about: a description for people.
        rows: the rows of the table.
        recipe: default recipe of rows.
        settings: "dotted.name=value" strings for every row.
        grid: settings tried for each row.
        trial: additional settings of trials, which make them cheaper.
        seeds: of the trainings at the chosen point.
        split: the split to measure on; points are always chosen on "val".
        baseline: label of the row to compare all others with; empty for none.
    """

    name: str
    about: str
    rows: tuple[SweepRow, ...] = Field(min_length=1)
    recipe: str = ""
    settings: tuple[str, ...] = ()
    grid: Grid = Field(default_factory=dict)
    trial: tuple[str, ...] = ()
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    split: Literal["val", "test"] = "val"
    baseline: str = ""

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        labels = [row.label for row in self.rows]
        for name in [self.baseline, *(row.own_baseline for row in self.rows)]:
            if name and name not in labels:
                raise ValueError(f'there is no row "{name}" to compare with')
        counts = {row.label: len(self.points(row)) for row in self.rows}
        if len(set(counts.values())) > 1:
            fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            raise ValueError(
                f"every row must have as many trials, not {counts[fewest]} ({fewest}) and "
                f"{counts[most]} ({most})"
            )
        return self

    def points(self, row: SweepRow) -> list[tuple[str, ...]]:
        """The points of a row's grid as settings; a single empty one without a grid."""
        axes = [
            [f"{name}={json.dumps(value, separators=(',', ':'))}" for value in values]
            for name, values in (row.grid or self.grid).items()
        ]
        return list(product(*axes))

    def config(self, row: SweepRow, settings: Sequence[str], changes: Sequence[str]) -> TrainConfig:
        """The configuration of a row's training; later settings override earlier ones."""
        names = [*self.settings, *row.settings, *settings, *changes]
        names.sort(key=lambda change: not change.startswith("method="))  # resets its arguments
        return load_recipe(TrainConfig, row.recipe or self.recipe, names)


@dataclass(frozen=True)
class Job:
    """A training and its evaluation split."""

    label: str
    phase: Literal["trial", "final"]
    setting: str
    config: TrainConfig
    split: str

    @property
    def run(self) -> str:
        """Name of the run folder: the method and a hash of the non-default settings."""
        values = self.config.model_dump(mode="json", exclude_defaults=True)
        values |= {"version": TRAINING_VERSION, "backbone": _backbone_sha256(self.config.backbone)}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        return f"{self.config.method}-{digest[:12]}"

    @property
    def key(self) -> str:
        """The key of its hits."""
        return f"{self.run}.{self.split}"


class Record:
    """The recorded results of a sweep: the lines of `NAME.csv`, and the hits of each image.

    Attributes:
        lines: lines of the CSV file.
        hits: (4, N_img) by `Job.key`, see `training.evaluation.statistics.image_hits`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.csv"
        self.lines = read_rows(self.path) if self.path.is_file() else []
        self.hits: dict[str, np.ndarray] = {}
        if (hits := self.path.with_suffix(".hits.npz")).is_file():
            with np.load(hits, allow_pickle=False) as file:
                self.hits = {key: file[key] for key in file.files}

    def find(self, job: Job) -> dict[str, str] | None:
        """The line of a recorded training; None if not recorded."""
        same = {"row": job.label, "phase": job.phase, "run": job.run, "split": job.split}
        lines = (line for line in self.lines if same.items() <= line.items())
        return next((line for line in lines if job.key in self.hits), None)

    def add(self, job: Job, values: Mapping[str, Any], hits: np.ndarray) -> None:
        """Records a training; replaces both files atomically."""
        head: dict[str, Any] = {"row": job.label, "phase": job.phase, "setting": job.setting}
        head |= {"seed": job.config.seed, "split": job.split, "run": job.run}
        self.lines.append({key: str(value) for key, value in {**head, **values}.items()})
        self.hits[job.key] = hits
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path.with_suffix(".hits.npz")) as draft, draft.open("wb") as file:
            np.savez_compressed(file, **self.hits)  # type: ignore[arg-type]
        write_rows(self.path, self.lines)


def load_sweep(name: str) -> Sweep:
    """Reads a sweep by its name below `training/recipes/sweeps`, or by the path of a TOML file.

    Raises:
        ValueError: the sweep does not exist, or its file is not valid.
    """
    path = Path(name) if name.endswith(".toml") else SWEEPS / f"{name}.toml"
    if not path.is_file():
        raise ValueError(unknown_name("sweep", name, sweep_names()))
    values = {**tomllib.loads(path.read_text("utf-8")), "name": path.stem}
    return check(Sweep, values, f"sweep {name}")


def sweep_names() -> list[str]:
    """All sweeps, sorted."""
    return sorted(path.stem for path in SWEEPS.glob("*.toml"))


def trial_jobs(sweep: Sweep, changes: Sequence[str]) -> list[Job]:
    """The trials of every row; none for a row without a choice."""
    return [
        Job(row.label, "trial", " ".join(p), sweep.config(row, [*sweep.trial, *p], changes), "val")
        for row in sweep.rows
        for p in sweep.points(row)
        if len(sweep.points(row)) > 1
    ]


def final_jobs(sweep: Sweep, changes: Sequence[str], record: Record) -> list[Job]:
    """The trainings at each row's chosen point; none for rows with missing trials."""
    trials = trial_jobs(sweep, changes)
    jobs = []
    for row in sweep.rows:
        points = {" ".join(point): point for point in sweep.points(row)}
        tried = {job.setting: record.find(job) for job in trials if job.label == row.label}
        if None in tried.values():
            continue
        rsums = {setting: float(line["rsum"]) for setting, line in tried.items() if line}
        setting = max(rsums, key=rsums.__getitem__, default=next(iter(points)))
        for seed in row.seeds or sweep.seeds:
            config = sweep.config(row, points[setting], [*changes, f"seed={seed}"])
            jobs.append(Job(row.label, "final", setting, config, sweep.split))
    return jobs


@functools.cache
def _backbone_sha256(backbone: str) -> str:
    return str(describe_image_source(backbone)["sha256"]) if backbone else ""
