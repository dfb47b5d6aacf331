"""Sweeps: methods and settings compared over grids and seeds, `python -m training.sweep NAME`.

A sweep is `training/recipes/sweeps/NAME.toml`. Each row names a recipe and settings. Every point of
its grid is trained once on the trial budget; the point with the highest validation rsum is then
trained with every seed and measured on the sweep's split. A training that was recorded before is
not repeated, and one that was interrupted resumes from its last epoch.

`docs/results/NAME.csv` gets one line per training and `NAME.hits.npz` what each image retrieved,
from which the table and its intervals are computed: `--report` needs no run folder.
"""

import argparse
import functools
import hashlib
import json
import multiprocessing
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from export.encoders.sources import describe_image_source
from export.pack.validation import check
from export.sessions import hardware
from models.files import replacing
from training.data.features import Extraction, load_features
from training.data.split import Split
from training.evaluation.metrics import retrieval_metrics
from training.evaluation.report import COLUMNS
from training.evaluation.scoring import score_matrix
from training.evaluation.statistics import (
    caption_cosines,
    difference_of_hits,
    image_hits,
    view_statistics,
)
from training.loop.config import RECIPES, TrainConfig, load_recipe
from training.loop.dual_encoder import run_views
from training.loop.runs import LOG, read_rows, write_rows
from training.loop.trainer import build_trainer
from training.settings import Settings, to_values

SWEEPS, RESULTS = RECIPES / "sweeps", Path("docs/results")
TRAINING_VERSION = 2  # raised whenever the same settings train to other weights
KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
STATISTICS = ("view_cosine", "wins_entropy", "caption_cosine", "temperature")

Grid = dict[str, tuple[Any, ...]]
"""Dotted names of settings, each with the values to try."""


class SweepRow(Settings):
    """One line of the table.

    Attributes:
        label: its name in the table.
        recipe: recipe below `training/recipes`; empty for the sweep's.
        settings: "dotted.name=value" strings, over the sweep's.
        grid: replaces the sweep's grid.
        seeds: replaces the sweep's seeds.
        own_baseline: label of the row that the method's paper compares it with; empty for none.
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
        name: the file's, without its ending.
        about: what the rows share, and what is compared.
        rows: the lines of the table.
        recipe: for rows that name none.
        settings: "dotted.name=value" strings for every row.
        grid: settings tried for each row.
        trial: settings of the trials alone, which make them cheaper.
        seeds: of the trainings at the chosen point.
        split: what these are measured on; points are always chosen on "val".
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
        """A row's training; later settings win, `changes` over all."""
        names = [*self.settings, *row.settings, *settings, *changes]
        names.sort(key=lambda change: not change.startswith("method="))  # resets its arguments
        return load_recipe(TrainConfig, row.recipe or self.recipe, names)


@dataclass(frozen=True)
class Job:
    """One training and what it is measured on."""

    label: str
    phase: Literal["trial", "final"]
    setting: str
    config: TrainConfig
    split: str

    @property
    def run(self) -> str:
        """Name of the run folder: the method and a hash of all settings that are not defaults."""
        values = non_default_settings(to_values(self.config), to_values(TrainConfig()))
        values |= {"version": TRAINING_VERSION, "backbone": _backbone_sha256(self.config.backbone)}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        return f"{self.config.method}-{digest[:12]}"


class Record:
    """What was measured: a CSV of trainings, and what each image retrieved.

    Args:
        folder: of the results.
        name: of the sweep.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.csv"
        self.hits_path = self.path.with_suffix(".hits.npz")
        self.lines = read_rows(self.path) if self.path.is_file() else []
        self.hits: dict[str, np.ndarray] = {}
        if self.hits_path.is_file():
            with np.load(self.hits_path, allow_pickle=False) as file:
                self.hits = {key: file[key] for key in file.files}

    def find(self, job: Job) -> dict[str, str] | None:
        """The line of a training that was recorded; None otherwise."""
        wanted = {"row": job.label, "phase": job.phase, "run": job.run, "split": job.split}
        lines = (line for line in self.lines if wanted.items() <= line.items())
        return next((line for line in lines if self._key(job) in self.hits), None)

    def add(self, job: Job, values: Mapping[str, Any], hits: np.ndarray) -> None:
        """Records a training; both files are replaced whole."""
        head: dict[str, Any] = {"row": job.label, "phase": job.phase, "setting": job.setting}
        head |= {"seed": job.config.seed, "split": job.split, "run": job.run}
        self.lines.append({key: str(value) for key, value in {**head, **values}.items()})
        self.hits[self._key(job)] = hits
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.hits_path) as draft, draft.open("wb") as file:
            np.savez_compressed(file, **self.hits)  # type: ignore[arg-type]
        write_rows(self.path, self.lines)

    def hits_of(self, job: Job) -> np.ndarray:
        """(4, N_img), see `training.evaluation.statistics.image_hits`."""
        return self.hits[self._key(job)]

    @staticmethod
    def _key(job: Job) -> str:
        return f"{job.run}.{job.split}"


def load_sweep(name: str) -> Sweep:
    """Reads a sweep by its name below `training/recipes/sweeps`, or by the path of a TOML file.

    Raises:
        ValueError: there is no such sweep, or its file makes no sense.
    """
    path = Path(name) if name.endswith(".toml") else SWEEPS / f"{name}.toml"
    if not path.is_file():
        raise ValueError(
            f'there is no sweep "{name}"; the sweeps are:\n' + "\n".join(sweep_names())
        )
    values = {**tomllib.loads(path.read_text("utf-8")), "name": path.stem}
    return check(Sweep, values, f"sweep {name}")


def sweep_names() -> list[str]:
    """All sweeps, sorted."""
    paths = SWEEPS.rglob("*.toml")
    return sorted(path.relative_to(SWEEPS).with_suffix("").as_posix() for path in paths)


def trial_jobs(sweep: Sweep, changes: Sequence[str]) -> list[Job]:
    """The trials of every row; none for a row without a choice."""
    return [
        Job(row.label, "trial", " ".join(p), sweep.config(row, [*sweep.trial, *p], changes), "val")
        for row in sweep.rows
        for p in sweep.points(row)
        if len(sweep.points(row)) > 1
    ]


def final_jobs(sweep: Sweep, changes: Sequence[str], record: Record) -> list[Job]:
    """The trainings at each row's chosen point; none for a row with trials left to do."""
    trials = trial_jobs(sweep, changes)
    jobs = []
    for row in sweep.rows:
        tried = [(job, record.find(job)) for job in trials if job.label == row.label]
        if any(line is None for _, line in tried):
            continue
        points = sweep.points(row)
        setting = " ".join(points[0])
        if tried:
            setting = max(tried, key=lambda pair: float((pair[1] or {})["rsum"]))[0].setting
        point = next(p for p in points if " ".join(p) == setting)
        for seed in row.seeds or sweep.seeds:
            config = sweep.config(row, point, [*changes, f"seed={seed}"])
            jobs.append(Job(row.label, "final", setting, config, sweep.split))
    return jobs


def train(job: Job, out: Path) -> tuple[Job, dict[str, Any], np.ndarray]:
    """Trains a job to its end, resuming what was interrupted, and measures its best epoch.

    Returns:
        The job, the values of its line in the CSV, and its hits.
    """
    folder = out / job.run
    try:
        trainer = build_trainer(job.config, folder, resume=True, load=_load_once)
        trainer.fit()
        _, method, images, texts, split = run_views(folder, job.split, Extraction())
    except ValueError as error:
        raise ValueError(f"{job.label}, {job.setting}, seed {job.config.seed}: {error}") from error
    scores = score_matrix(method, images, texts)
    learned = method.contrastive_temperature()
    found = {
        **retrieval_metrics(scores, split.image_of),
        **view_statistics(method, images, texts, split.image_of),
        **caption_cosines(texts, split.image_of),
        **({} if learned is None else {"temperature": learned.item()}),
    }
    seconds = sum(float(line["seconds"]) for line in read_rows(folder / LOG))
    values = {key: round(found[key], 4) if key in found else "" for key in (*KEYS, *STATISTICS)}
    values |= {
        "parameters": sum(p.numel() for p in method.parameters()),
        "minutes": round(seconds / 60, 1),
        "hardware": hardware(),
    }
    return job, values, image_hits(scores, split.image_of, split.alike)


def run_jobs(jobs: Sequence[Job], record: Record, out: Path, workers: int, threads: int) -> None:
    """Trains what is not recorded, `workers` at a time, and records each training as it ends."""
    missing = [job for job in jobs if record.find(job) is None]
    for done, (job, values, hits) in enumerate(_results(missing, out, workers, threads), start=1):
        record.add(job, values, hits)
        name = f"{job.label}, {job.phase} {job.setting}, seed {job.config.seed}"
        line = f"[{done}/{len(missing)}] {name}: rsum {values['rsum']:.1f}"
        print(f"{line}, {values['minutes']} minutes", flush=True)


def table(sweep: Sweep, changes: Sequence[str], record: Record) -> list[str]:
    """The table of the rows whose trainings are all recorded, as lines of Markdown."""
    rows: dict[str, list[Job]] = {}
    for job in final_jobs(sweep, changes, record):
        rows.setdefault(job.label, []).append(job)
    complete = {label: jobs for label, jobs in rows.items() if all(map(record.find, jobs))}
    heads = ["row", "seeds", *(COLUMNS[key] for key in KEYS), "deviation"]
    heads += ["against", "difference [95 % interval]", "parameters", "minutes", "setting"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 2) + "---|"]
    for row in sweep.rows:
        if row.label not in complete:
            continue
        jobs = complete[row.label]
        measured = [record.find(job) or {} for job in jobs]
        values = {key: [float(line[key]) for line in measured] for key in (*KEYS, "minutes")}
        cells = [row.label, str(len(jobs)), *(f"{np.mean(values[key]):.1f}" for key in KEYS)]
        cells.append(f"{np.std(values['rsum'], ddof=1):.1f}" if len(jobs) > 1 else "-")
        names = [sweep.baseline, row.own_baseline]
        names = [n for n in dict.fromkeys(names) if n in complete and n != row.label]
        differences = [_difference(jobs, complete[name], record) for name in names]
        cells += ["<br>".join(names) or "-", "<br>".join(differences) or "-"]
        cells += [measured[0]["parameters"], f"{np.mean(values['minutes']):.0f}", jobs[0].setting]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _difference(jobs: Sequence[Job], others: Sequence[Job], record: Record) -> str:
    first, second = (np.stack([record.hits_of(job) for job in each]) for each in (jobs, others))
    sure = difference_of_hits(first, second)
    return f"{sure['difference']:+.1f} [{sure['low']:+.1f}, {sure['high']:+.1f}]"


def non_default_settings(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of nested dictionaries that differ from their defaults.

    >>> non_default_settings({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}})
    {'b': {'d': 3}}
    """
    changed = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            if inner := non_default_settings(value, default):
                changed[key] = inner
        elif value != default:
            changed[key] = value
    return changed


def _results(
    jobs: Sequence[Job], out: Path, workers: int, threads: int
) -> Iterator[tuple[Job, dict[str, Any], np.ndarray]]:
    if workers == 1 or len(jobs) < 2:
        torch.set_num_threads(threads)
        yield from (train(job, out) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
        for future in as_completed([pool.submit(train, job, out) for job in jobs]):
            yield future.result()


@functools.cache
def _backbone_sha256(backbone: str) -> str:
    return str(describe_image_source(backbone)["sha256"]) if backbone else ""


@functools.lru_cache(maxsize=4)
def _load_once(
    data: Path, name: str, backbone: str, copies: int = 1, also: tuple[str, ...] = ()
) -> Split:
    return load_features(data, name, backbone, copies=copies, also=also)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.sweep", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("name", nargs="?", help="the sweep, see --list, or a TOML file")
    add("--list", action="store_true", help="list the sweeps")
    add("--rows", nargs="+", metavar="LABEL", help="train only these rows")
    add("--report", action="store_true", help="train nothing; print the table of what is recorded")
    add("--out", type=Path, default=Path("runs/sweeps"), help="folder of the runs")
    add("--results", type=Path, help=f"folder of the CSV; {RESULTS}, or --out beside --set")
    add("--jobs", type=int, default=1, help="trainings at a time")
    add("--threads", type=int, default=1, help="CPU threads of each training")
    what = "replace a setting of every row, e.g. data=data/mine; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    options = parser.parse_args(argv)
    if options.list or not options.name:
        print(
            "\n".join(f"{name}: {load_sweep(name).about.split('.')[0]}" for name in sweep_names())
        )
        return 0
    try:
        _run(options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command resumes", file=sys.stderr)
        return 130
    return 0


def _run(options: argparse.Namespace) -> None:
    sweep = load_sweep(options.name)
    labels = options.rows or [row.label for row in sweep.rows]
    if unknown := [label for label in labels if label not in [row.label for row in sweep.rows]]:
        names = "\n".join(row.label for row in sweep.rows)
        raise ValueError(f'sweep {sweep.name} has no row "{unknown[0]}"; its rows are:\n{names}')
    results = options.results or (options.out if options.set else RESULTS)
    record = Record(results, sweep.name)
    if not options.report:
        for jobs in (trial_jobs, functools.partial(final_jobs, record=record)):
            chosen = [job for job in jobs(sweep, options.set) if job.label in labels]
            run_jobs(chosen, record, options.out, options.jobs, options.threads)
    print("\n".join([sweep.about.strip(), "", *table(sweep, options.set, record)]))


if __name__ == "__main__":
    sys.exit(main())
