"""Runs the trainings of an experiment's rows, and reads from them what its table shows."""

import argparse
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.files import write_whole
from training.evaluation.metrics import retrieval_metrics
from training.experiments.results import table_lines
from training.experiments.trial import run_trial, trial_scores, validation_images
from training.loop.config import TrainConfig


@dataclass(frozen=True)
class Row:
    """A line of an experiment's table.

    Attributes:
        label: what is different, in words.
        trainings: for each seed what is trained: one model, or several whose scores are averaged.
    """

    label: str
    trainings: tuple[tuple[TrainConfig, ...], ...]


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        label: the row it belongs to, and which of its trainings it is.
        config: what to train.
        keep_scores: whether its scores are averaged with others'.
    """

    label: str
    config: TrainConfig
    keep_scores: bool


def run_rows(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Trains what was not trained before, one after the other or several at a time.

    Args:
        rows: of an experiment; a training that several share is run once.
        options: of the command line, see `parser_of`.

    Raises:
        ValueError: a training failed; the sentence names the row.
    """
    jobs = _jobs(rows)
    arguments = [(job, options.out) for job in jobs]
    began = time.monotonic()
    results = _results(arguments, options.threads, options.jobs)
    for done, (job, values) in enumerate(results, start=1):
        minutes = (time.monotonic() - began) / 60
        print(
            f"[{done}/{len(jobs)}] {job.label}: rsum {values['rsum']:.1f} "
            f"({minutes:.1f} minutes so far)",
            flush=True,
        )


def _jobs(rows: Sequence[Row]) -> list[Job]:
    jobs: dict[str, Job] = {}
    for row in rows:
        for configs in row.trainings:
            for config in configs:
                before = jobs.get(repr(config))
                keep = len(configs) > 1 or (before is not None and before.keep_scores)
                jobs[repr(config)] = Job(f"{row.label}, seed {config.seed}", config, keep)
    return list(jobs.values())


def _results(
    arguments: list[tuple[Job, Path]], threads: int, workers: int
) -> Iterator[tuple[Job, dict[str, Any]]]:
    if workers == 1:
        torch.set_num_threads(threads)
        yield from map(_run, arguments)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
        yield from pool.map(_run, arguments)


def _run(argument: tuple[Job, Path]) -> tuple[Job, dict[str, Any]]:
    job, out = argument
    try:
        return job, run_trial(job.config, out, keep_scores=job.keep_scores)
    except ValueError as error:
        raise ValueError(f"{job.label}: {error}") from error


def measured(row: Row, out: Path) -> list[dict[str, Any]]:
    """What was measured of a row that was run: for each seed its model's or ensemble's values."""
    return [_measured(configs, out) for configs in row.trainings]


def _measured(configs: tuple[TrainConfig, ...], out: Path) -> dict[str, Any]:
    single = [run_trial(config, out, keep_scores=len(configs) > 1) for config in configs]
    if len(configs) == 1:
        return single[0]
    scores = np.mean([trial_scores(config, out) for config in configs], axis=0)
    sums = {key: sum(v[key] for v in single) for key in ("parameters", "step_ms", "score_ms")}
    return {**retrieval_metrics(scores, validation_images(configs[0])), **sums}


def mean_of(found: Sequence[dict[str, Any]], key: str, digits: int = 1) -> float | None:
    """The mean of a value over seeds, rounded; None where one lacks it."""
    values = [values[key] for values in found if key in values]
    if len(values) < len(found):
        return None
    return round(float(np.mean(values)), digits or None)  # None rounds to a whole number


def deviation_of(found: Sequence[dict[str, Any]]) -> float | None:
    """The standard deviation of rsum over seeds; None for one."""
    sums = [values["rsum"] for values in found]
    return round(float(np.std(sums, ddof=1)), 1) if len(sums) > 1 else None


def parser_of(name: str, description: str, out: str, results: Path) -> argparse.ArgumentParser:
    """The command line of an experiment, with what all have.

    Args:
        name: of the module.
        description: what the command does.
        out: default folder of the trainings.
        results: default folder of the results.
    """
    parser = argparse.ArgumentParser(prog=f"python -m training.{name}", description=description)
    add = parser.add_argument
    add("--out", type=Path, default=Path(out), help="folder of the trainings")
    add("--threads", type=int, default=1, help="CPU threads of each training")
    add("--jobs", type=int, default=1, help="trainings at a time")
    what = "replace a setting of every row, e.g. epochs=2"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    add("--results", type=Path, default=results, help="folder of the results")
    return parser


def status_of(work: Callable[[], None]) -> int:
    """Runs a command; returns its exit status, 1 after a refusal, which goes to stderr."""
    try:
        work()
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on with what was not trained", file=sys.stderr)
        return 130
    return 0


def settings_given(changes: Sequence[str]) -> str:
    """Changes of settings as they stand on a command line, a space before each.

    >>> settings_given(["epochs=3", "data=my photographs"])
    " --set epochs=3 --set 'data=my photographs'"
    """
    return "".join(f" --set {shlex.quote(change)}" for change in changes)


def show_result(out: Path, result: dict[str, Any]) -> None:
    """Prints the table of an experiment under other settings, and keeps it with its trainings."""
    path = write_result(out, result)
    table = "\n".join(table_lines(result["columns"], result["rows"]))
    print(f"{table}\n\n{result['command']}\nin {path}, as settings were replaced")


def write_result(folder: Path, result: dict[str, Any]) -> Path:
    """Writes an experiment's result as `<its name>.json`."""
    path = folder / f"{result['name']}.json"
    write_whole(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return path
