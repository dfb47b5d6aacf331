"""Sweeps: methods and settings compared over grids and seeds, `python -m polyview sweep NAME`.

A sweep is `training/recipes/sweeps/NAME.toml`. Each row names a recipe, settings and a grid. Each
point of the grid is trained once with the trial settings; the point with the highest validation
rsum is then trained with each seed and measured on the sweep's split. Recorded trainings are not
repeated; interrupted trainings resume after their last epoch.

Each training adds a line to `docs/results/NAME.csv` and its hits per image to `NAME.hits.npz`. The
table and its intervals are computed from these two files; `--report` also needs image encoders.
"""

import argparse
import hashlib
import json
import multiprocessing
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from polyview.export.encoders.sources import describe_image_source
from polyview.export.pack.validation import check
from polyview.export.sessions import hardware
from polyview.models.files import atomic_write, replacing
from polyview.training.data.features import Extraction
from polyview.training.data.open_split import holds_features
from polyview.training.evaluation.metrics import image_hits, retrieval_metrics
from polyview.training.evaluation.report import (
    COLUMNS,
    format_difference,
    read_rows,
    to_markdown,
    write_into_page,
    write_rows,
)
from polyview.training.evaluation.scoring import score_matrix
from polyview.training.evaluation.views import caption_cosines, view_statistics
from polyview.training.loop.config import RECIPES, TrainConfig, load_recipe
from polyview.training.loop.loop import LOG
from polyview.training.loop.trainer import build_trainer, run_views
from polyview.training.settings import Settings, exit_on_error, positive_int, unknown_name_message

RESULTS = Path("docs/results")
PAGE = Path("docs/results.md")
ABLATIONS = Path("app/bundled/ablations/scenes")  # tables of the app's Results screen
KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
STATISTICS = ("view_cosine", "wins_entropy", "caption_cosine", "temperature")
DIFFERENCE = "difference [95 % interval]"
APP_COLUMNS = ("row", "i2t R@1", "t2i R@1", "rsum", "deviation")  # of an ablation
SWEEPS = RECIPES / "sweeps"
TRAINING_VERSION = 2  # increase when the same settings give different weights

_describe_image_source = cache(describe_image_source)


class TrainingPlan(Settings):
    """Trainings of a sweep or row. A row adds to the sweep's `settings` and replaces other values.

    Attributes:
        recipe: name of a recipe below `training/recipes`.
        settings: "dotted.name=value" strings.
        grid: dotted names of settings, each with the values to try.
        seeds: seeds of the trainings at the best point; seed 0 if empty.
    """

    recipe: str = ""
    settings: tuple[str, ...] = ()
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    seeds: tuple[int, ...] = ()


class SweepRow(TrainingPlan):
    """A row of the sweep's table.

    Attributes:
        label: name of the row.
        own_baseline: label of the row that is the baseline in the method's paper; empty for none.
    """

    label: str
    own_baseline: str = ""


class Sweep(TrainingPlan):
    """Rows trained on the same images.

    Attributes:
        name: the file name without its suffix.
        description: the comparison in sentences, of which the first is the title of the sweep.
        paper: for ablations, the setting that a paper varied, and the paper's table or figure.
        finding: the paper's result; empty if the paper has none.
        rows: rows of the table.
        trial: additional settings that make trials cheaper.
        split: split of the final metrics; grid points are always compared on "val".
        baseline: label of the row to compare all others with; empty for none.
    """

    name: str
    description: str
    paper: str = ""
    finding: str = ""
    rows: tuple[SweepRow, ...] = Field(min_length=1)
    trial: tuple[str, ...] = ()
    split: Literal["val", "test"] = "val"
    baseline: str = ""

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        counts = {row.label: len(self.points(row)) for row in self.rows}
        for name in [self.baseline, *(row.own_baseline for row in self.rows)]:
            if name and name not in counts:
                raise ValueError(unknown_name_message("baseline", name, counts))
        extremes = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        if len({*counts.values()}) > 1:
            numbers = " and ".join(f"{counts[label]} ({label})" for label in extremes)
            raise ValueError(f"all rows must have the same number of trials, not {numbers}")
        return self

    @property
    def title(self) -> str:
        """The first sentence of the description."""
        return " ".join(self.description.split()).partition(". ")[0].removesuffix(".")

    def points(self, row: SweepRow) -> list[tuple[str, ...]]:
        """Returns the settings of each grid point of a row; one empty point if there is no grid."""
        axes = [
            [f"{name}={json.dumps(value, separators=(',', ':'))}" for value in values]
            for name, values in (row.grid or self.grid).items()
        ]
        return list(product(*axes))

    def config(self, row: SweepRow, settings: Sequence[str], changes: Sequence[str]) -> TrainConfig:
        """Builds a training's configuration; `settings` override the row, and `changes` both."""
        assignments = [*self.settings, *row.settings, *settings, *changes]
        return load_recipe(TrainConfig, row.recipe or self.recipe, assignments)


@dataclass(frozen=True)
class Job:
    """A training and its evaluation split."""

    label: str
    phase: Literal["trial", "final"]
    setting: str  # the settings of the grid point, joined by spaces
    config: TrainConfig
    split: str

    @property
    def run(self) -> str:
        """The name of the run folder: the method and a hash of the non-default settings."""
        values = self.config.model_dump(mode="json", exclude_defaults=True)
        source = self.config.backbone
        backbone = _describe_image_source(source)["sha256"] if source else ""
        values |= {"version": TRAINING_VERSION, "backbone": backbone}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        return f"{self.config.method}-{digest[:12]}"

    @property
    def key(self) -> str:
        """The job's key in `Record.hits`."""
        return f"{self.run}.{self.split}"

    def __str__(self) -> str:
        return f"{self.label}, {self.phase} {self.setting}, seed {self.config.seed}"


class Record:
    """The recorded results of a sweep.

    Attributes:
        lines: lines of `NAME.csv`.
        hits: (4, N_img) by `Job.key`, see `training.evaluation.metrics.image_hits`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.csv"
        self.lines = read_rows(self.path) if self.path.is_file() else []
        self.hits: dict[str, np.ndarray] = {}
        if (hits_path := self.path.with_suffix(".hits.npz")).is_file():
            with np.load(hits_path, allow_pickle=False) as file:
                self.hits = dict(file)

    def find(self, job: Job) -> dict[str, str] | None:
        """Returns the CSV line of a training; None if the training is not recorded."""
        columns = {"row": job.label, "phase": job.phase, "run": job.run, "split": job.split}
        lines = (line for line in self.lines if columns.items() <= line.items())
        return next(lines, None) if job.key in self.hits else None

    def add(self, job: Job, values: Mapping[str, Any], hits: np.ndarray) -> None:
        """Records a training; replaces both files atomically."""
        columns: dict[str, Any] = {"row": job.label, "phase": job.phase, "setting": job.setting}
        columns |= {"seed": job.config.seed, "split": job.split, "run": job.run}
        self.lines.append({key: str(value) for key, value in {**columns, **values}.items()})
        self.hits[job.key] = hits
        with replacing(self.path.with_suffix(".hits.npz")) as draft, draft.open("wb") as file:
            np.savez_compressed(file, **self.hits)  # type: ignore[arg-type]
        write_rows(self.path, self.lines)


def load_sweep(name: str) -> Sweep:
    """Reads a sweep, given its name below `training/recipes/sweeps` or the path of a TOML file.

    Raises ValueError if the sweep does not exist, or its file is not valid.
    """
    path = Path(name) if name.endswith(".toml") else SWEEPS / f"{name}.toml"
    if not path.is_file():
        raise ValueError(unknown_name_message("sweep", name, sweep_names()))
    values = {**tomllib.loads(path.read_text("utf-8")), "name": path.stem}
    return check(Sweep, values, f"sweep {name}")


def sweep_names() -> list[str]:
    """Returns the names of all sweeps, sorted."""
    return sorted(path.stem for path in SWEEPS.glob("*.toml"))


def trial_jobs(sweep: Sweep, changes: Sequence[str]) -> list[Job]:
    """Returns the trials of every row that has more than one grid point."""
    jobs = []
    for row in [row for row in sweep.rows if len(sweep.points(row)) > 1]:
        for point in sweep.points(row):
            config = sweep.config(row, [*sweep.trial, *point], changes)
            jobs.append(Job(row.label, "trial", " ".join(point), config, "val"))
    return jobs


def final_jobs(sweep: Sweep, changes: Sequence[str], record: Record) -> list[Job]:
    """Returns the final jobs at each row's best grid point; skips rows with missing trials."""
    trials = trial_jobs(sweep, changes)
    jobs = []
    for row in sweep.rows:
        points = {" ".join(point): point for point in sweep.points(row)}
        lines = {job.setting: record.find(job) for job in trials if job.label == row.label}
        if None in lines.values():
            continue
        rsums = {setting: float(line["rsum"]) for setting, line in lines.items() if line}
        setting = max(rsums, key=rsums.__getitem__, default=next(iter(points)))
        for seed in row.seeds or sweep.seeds or (0,):
            config = sweep.config(row, points[setting], [*changes, f"seed={seed}"])
            jobs.append(Job(row.label, "final", setting, config, sweep.split))
    return jobs


def train(job: Job, out: Path) -> tuple[Job, dict[str, Any], np.ndarray]:
    """Trains or resumes a job; returns the job, and CSV values and hits of its best epoch."""
    folder = out / job.run
    try:
        build_trainer(job.config, folder, resume=True).fit()
        _, method, images, texts, split = run_views(folder, job.split, Extraction())
    except ValueError as error:
        raise ValueError(f"{job.label}, {job.setting}, seed {job.config.seed}: {error}") from error
    scores = score_matrix(method, images, texts)
    metrics = retrieval_metrics(scores, split.image_of) | caption_cosines(texts, split.image_of)
    metrics |= view_statistics(method, images, texts, split.image_of)
    if (temperature := method.contrastive_temperature()) is not None:
        metrics["temperature"] = temperature.item()
    seconds = sum(float(line["seconds"]) for line in read_rows(folder / LOG))
    keys, count = (*KEYS, *STATISTICS), sum(weights.numel() for weights in method.parameters())
    values = {key: round(metrics[key], 4) if key in metrics else "" for key in keys}
    values |= {"parameters": count, "minutes": round(seconds / 60, 1), "hardware": hardware()}
    return job, values, image_hits(scores, split.image_of, split.alike)


def run_jobs(jobs: Sequence[Job], record: Record, out: Path, workers: int, threads: int) -> None:
    """Trains the jobs that are not recorded, `workers` at a time, and records each result."""
    missing = [job for job in jobs if record.find(job) is None]
    with ExitStack() as stack:
        if workers == 1 or len(missing) < 2:
            torch.set_num_threads(threads)
            results = (train(job, out) for job in missing)
        else:
            context = multiprocessing.get_context("spawn")
            executor = ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,))
            pool = stack.enter_context(executor)
            futures = [pool.submit(train, job, out) for job in missing]
            results = (future.result() for future in as_completed(futures))
        for number, (job, values, hits) in enumerate(results, start=1):
            record.add(job, values, hits)
            line = f"[{number}/{len(missing)}] {job}: rsum {values['rsum']:.1f}"
            print(f"{line}, {values['minutes']} minutes", flush=True)


def table(sweep: Sweep, changes: Sequence[str], record: Record) -> list[list[str]]:
    """Returns the headings, and the cells of each row whose final trainings are all recorded.

    Each row is compared with its baselines, if these are in the table.
    """
    finals = dict[str, list[Job]]()  # row label -> its final jobs, one per seed
    hits = dict[str, np.ndarray]()  # row label -> hits (S seeds, 4, N_img)
    for label, group in groupby(final_jobs(sweep, changes, record), lambda job: job.label):
        finals[label] = list(group)
        if all(map(record.find, finals[label])):
            hits[label] = np.stack([record.hits[job.key] for job in finals[label]])
    headings = ["row", "seeds", *(COLUMNS[key] for key in KEYS), "deviation", "against"]
    rows = [[*headings, DIFFERENCE, "trials", "parameters", "minutes", "setting"]]
    for row in sweep.rows:
        if row.label not in hits:
            continue
        jobs = finals[row.label]
        lines = [line for job in jobs if (line := record.find(job))]
        values = {key: [float(line[key]) for line in lines] for key in (*KEYS, "minutes")}
        baselines = dict.fromkeys((sweep.baseline, row.own_baseline))
        names = [name for name in baselines if name in hits and name != row.label]
        differences = [format_difference(hits[row.label], hits[name]) for name in names]
        cells = [row.label, str(len(lines)), *(f"{np.mean(values[key]):.1f}" for key in KEYS)]
        cells.append(f"{np.std(values['rsum'], ddof=1):.1f}" if len(lines) > 1 else "-")
        cells += ["<br>".join(names) or "-", "<br>".join(differences) or "-"]
        cells += [str(len(sweep.points(row))), lines[0]["parameters"]]
        rows.append([*cells, f"{np.mean(values['minutes']):.0f}", jobs[0].setting])
    return rows


def select(lines: Sequence[Sequence[str]], headings: Sequence[str]) -> list[list[str]]:
    """Selects columns of a table by their headings."""
    columns = [lines[0].index(heading) for heading in headings]
    return [[line[column] for column in columns] for line in lines]


def ablation(sweep: Sweep, lines: Sequence[Sequence[str]], hardware: str) -> dict[str, Any]:
    """Builds an ablation's JSON for the app's Results screen from the cells of its table."""
    config = sweep.config(sweep.rows[0], (), ())
    note = " ".join(sweep.description.split()).partition(". ")[2]
    budget = f"{config.train_images:,} training images, {config.epochs} epochs, "
    budget += f"batches of {config.batch_size}; {sweep.split} split."
    return {
        "name": sweep.name,
        "title": sweep.title,
        "paper": " ".join(sweep.paper.split()),
        "found": " ".join(sweep.finding.split()),
        "command": f"python -m polyview sweep {sweep.name}",
        "hardware": hardware,
        "seeds": list(sweep.seeds or (0,)),
        "columns": [*APP_COLUMNS, f'against "{sweep.baseline}", 95 % interval'],
        "rows": [
            [label, *(None if cell == "-" else float(cell) for cell in numbers), difference]
            for label, *numbers, difference in select(lines, [*APP_COLUMNS, DIFFERENCE])[1:]
        ],
        "note": f"{note} {budget}".strip(),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs or reports the sweeps named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m polyview sweep", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="sweeps (see --list) or TOML files")
    add("--list", action="store_true", help="list the sweeps")
    add("--report", action="store_true", help="train nothing; print the recorded table")
    help_text = f"also write the table into {PAGE} or, for an ablation, JSON for the app"
    add("--write", action="store_true", help=help_text)
    add("--out", type=Path, default=Path("runs/sweeps"), help="folder of the runs")
    add("--results", type=Path, help=f"CSV folder (default: {RESULTS}; with --set/--data: --out)")
    add("--jobs", type=positive_int, default=1, help="number of trainings at a time (default: 1)")
    add("--threads", type=positive_int, default=1, help="CPU threads of each training (default: 1)")
    add("--data", metavar="DIR", help="folder to train on, in place of the data of the recipes")
    help_text = "replace a setting of every row, e.g. epochs=3; repeatable"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=help_text)
    options = parser.parse_args(argv)
    if options.list or not options.names:
        for name in sweep_names():
            print(f"{name}: {load_sweep(name).title}")
        return
    if options.data:
        features = holds_features(Path(options.data))
        options.set += [f"data={options.data}", *(["backbone="] if features else [])]
    with exit_on_error("continue with the same command"):
        for name in options.names:
            _run_sweep(load_sweep(name), options)


def _run_sweep(sweep: Sweep, options: argparse.Namespace) -> None:
    if options.write and options.set:
        raise ValueError("--write needs the sweep's own settings; leave out --set and --data")
    record = Record(options.results or (options.out if options.set else RESULTS), sweep.name)
    if not options.report:
        run_options = record, options.out, options.jobs, options.threads
        run_jobs(trial_jobs(sweep, options.set), *run_options)
        run_jobs(final_jobs(sweep, options.set, record), *run_options)
    lines = table(sweep, options.set, record)
    print("\n".join([sweep.description.strip(), "", *to_markdown(lines, note_count=1)]))
    if options.write and len(lines) <= len(sweep.rows):  # the first line has the headings
        raise ValueError(f"sweep {sweep.name} has untrained rows; run it without --report first")
    if options.write and sweep.paper:
        finals = [line for line in record.lines if line["phase"] == "final"]
        machines = " and ".join(sorted({line["hardware"] for line in finals}))
        values = ablation(sweep, lines, machines)
        atomic_write(ABLATIONS / f"{sweep.name}.json", json.dumps(values, indent=1) + "\n")
    elif options.write:
        cells = select(lines, ["row", "rsum", "deviation", "against", DIFFERENCE])
        write_into_page(PAGE, sweep.name, to_markdown(cells, note_count=2))
