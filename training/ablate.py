"""Runs an ablation: `python -m training.ablate mv_vse_views`; `--list` names all.

Trains what was not trained before, writes `app/bundled/ablations/scenes/<name>.json` and brings
`docs/results.md` up to date; `--report` does the latter alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.ablation import (
    ALWAYS,
    MEASURES,
    Ablation,
    Variant,
    ablation_names,
    load_ablation,
)
from training.config import TrainConfig
from training.metrics import retrieval_metrics
from training.results import PAGE, RESULTS, update_page
from training.runs import hardware, write_text
from training.trial import run_trial, trial_scores, validation_images

SEEDS_APART = 100  # the models of one row have the seeds 100 s, 100 s + 1, ...


@dataclass(frozen=True)
class Job:
    """One trial of an ablation.

    Attributes:
        label: the row it belongs to, and which of its trainings it is.
        config: what to train.
        keep_scores: whether its scores are averaged with others'.
    """

    label: str
    config: TrainConfig
    keep_scores: bool


def members(variant: Variant, seed: int) -> list[TrainConfig]:
    """The trainings of a row for one seed: one, or as many as its ensemble has models."""
    if variant.models == 1:
        return [replace(variant.config, seed=seed)]
    first = SEEDS_APART * seed
    return [replace(variant.config, seed=first + i) for i in range(variant.models)]


def jobs_of(ablation: Ablation, seeds: Sequence[int]) -> list[Job]:
    """Every trial of an ablation, those that rows share once."""
    jobs: dict[str, Job] = {}
    for variant in ablation.variants:
        for seed in seeds:
            for config in members(variant, seed):
                keep = variant.models > 1
                before = jobs.get(repr(config))
                jobs[repr(config)] = Job(
                    f"{variant.label}, seed {config.seed}",
                    config,
                    keep or (before is not None and before.keep_scores),
                )
    return list(jobs.values())


def run_jobs(jobs: Sequence[Job], out: Path, threads: int, workers: int) -> None:
    """Runs trials, one after the other or several at a time, and says how far it is.

    Raises:
        ValueError: a training failed; the sentence names the row.
    """
    arguments = [(job, out) for job in jobs]
    began = time.monotonic()
    for done, (job, values) in enumerate(_results(arguments, threads, workers), start=1):
        minutes = (time.monotonic() - began) / 60
        print(
            f"[{done}/{len(jobs)}] {job.label}: rsum {values['rsum']:.1f} "
            f"({minutes:.1f} minutes so far)",
            flush=True,
        )


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


def row_of(ablation: Ablation, variant: Variant, seeds: Sequence[int], out: Path) -> list[Any]:
    """A row of the table, from trials that were run: means over seeds, None where not measured.

    Returns:
        The label, the values of `columns_of`, each rounded as its `Measure` says.
    """
    found = [_measured(variant, seed, out) for seed in seeds]
    row: list[Any] = [variant.label]
    for key in (*ALWAYS, *ablation.columns):
        values = [values[key] for values in found if key in values]
        whole = len(values) == len(found)
        digits = MEASURES[key].digits or None  # None rounds to a whole number
        row.append(round(float(np.mean(values)), digits) if whole else None)
    if len(seeds) > 1:
        spread = np.std([values["rsum"] for values in found], ddof=1)
        row.insert(2, round(float(spread), MEASURES["rsum"].digits))
    return row


def columns_of(ablation: Ablation, seeds: Sequence[int]) -> list[str]:
    """The headings of an ablation's table."""
    headings = [MEASURES[key].heading for key in (*ALWAYS, *ablation.columns)]
    if len(seeds) > 1:
        headings.insert(1, f"its deviation over {len(seeds)} seeds")
    return [ablation.axis, *headings]


def _measured(variant: Variant, seed: int, out: Path) -> dict[str, Any]:
    """What was measured of a row's model, or of the average of its models' scores."""
    configs = members(variant, seed)
    single = [run_trial(config, out, keep_scores=len(configs) > 1) for config in configs]
    if len(configs) == 1:
        return single[0]
    scores = np.mean([trial_scores(config, out) for config in configs], axis=0)
    sums = {key: sum(v[key] for v in single) for key in ("parameters", "step_ms", "score_ms")}
    return {**retrieval_metrics(scores, validation_images(configs[0])), **sums}


def result_of(ablation: Ablation, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """Everything about an ablation that was run, as its JSON file holds it."""
    seeds_said = "" if list(seeds) == [0] else f" --seeds {' '.join(map(str, seeds))}"
    result: dict[str, Any] = {
        "name": ablation.name,
        "title": ablation.title,
        "paper": ablation.paper,
        "found": ablation.found,
        "here": ablation.here,
        "command": f"python -m training.ablate {ablation.name}{seeds_said}",
        "hardware": hardware(),
        "seeds": list(seeds),
        "columns": columns_of(ablation, seeds),
        "rows": [row_of(ablation, variant, seeds, out) for variant in ablation.variants],
        "note": f"{ablation.budget} {ablation.note}".strip(),
    }
    if ablation.curves:
        result["curves"] = {
            f"{variant.label}: {name}": curve
            for variant in ablation.variants
            for name, curve in _measured(variant, seeds[0], out).get("curves", {}).items()
        }
    return result


def state_outcomes(results: Path) -> None:
    """Brings what ablations say came out (`Ablation.here`) into the files of their results."""
    for name in ablation_names():
        path = results / f"{name}.json"
        if path.is_file():
            values = json.loads(path.read_text("utf-8"))
            if values.get("here") != (here := load_ablation(name).here):
                values["here"] = here
                write_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        if options.list:
            for name in ablation_names():
                print(f"{name}: {load_ablation(name).title}")
        elif options.name:
            _ablate(options)
        if options.report:
            state_outcomes(RESULTS)
            update_page()
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _ablate(options: argparse.Namespace) -> None:
    ablation = load_ablation(options.name, options.set)
    run_jobs(jobs_of(ablation, options.seeds), options.out, options.threads, options.jobs)
    text = json.dumps(result_of(ablation, options.seeds, options.out), indent=1, ensure_ascii=False)
    if options.set and options.results == RESULTS:
        print(text)  # not the ablation as it is defined, so nothing that the page should show
        return
    write_text(options.results / f"{ablation.name}.json", text + "\n")
    if options.results == RESULTS:
        update_page()
        print(f"{RESULTS / ablation.name}.json and {PAGE} are up to date")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.ablate", description="Run an ablation by one command."
    )
    add = parser.add_argument
    add("name", nargs="?", help="what to run; see --list")
    add("--list", action="store_true", help="name the ablations")
    add("--report", action="store_true", help=f"bring {PAGE} up to date with all results")
    add("--out", type=Path, default=Path("runs/ablations"), help="folder of the trainings")
    add("--seeds", type=int, nargs="+", default=[0], help="average over these")
    add("--threads", type=int, default=1, help="CPU threads of each training")
    add("--jobs", type=int, default=1, help="trainings at a time")
    said = "replace a setting of every row, e.g. train_images=500; results are then only printed"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=said)
    add("--results", type=Path, default=RESULTS, help="folder of the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
