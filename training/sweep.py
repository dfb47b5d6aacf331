"""Sweeps: methods and settings compared over grids and seeds, `python -m polyview sweep NAME`.

A sweep is `training/recipes/sweeps/NAME.toml`. Each row names a recipe and settings. Every point of
its grid is trained once on the trial budget; the point with the highest validation rsum is then
trained with every seed and measured on the sweep's split. Recorded trainings are not repeated;
interrupted ones resume from their last epoch.

`docs/results/NAME.csv` gets one line per training and `NAME.hits.npz` what each image retrieved,
from which the table and its intervals are computed: `--report` needs no run folder.
"""

import argparse
import functools
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyview.export.sessions import hardware
from polyview.models.files import write_whole
from polyview.training.data.features import Extraction, load_features
from polyview.training.data.open_split import holds_features
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.report import COLUMNS
from polyview.training.evaluation.scoring import score_matrix
from polyview.training.evaluation.statistics import (
    caption_cosines,
    difference_of_hits,
    image_hits,
    view_statistics,
)
from polyview.training.loop.runs import LOG, read_rows
from polyview.training.loop.sweeps import (
    Job,
    Record,
    Sweep,
    final_jobs,
    load_sweep,
    sweep_names,
    trial_jobs,
)
from polyview.training.loop.trained_run import run_views
from polyview.training.loop.trainer import build_trainer

RESULTS = Path("docs/results")
PAGES = ("README.md", "docs/results.md")  # with the short table and the whole one
KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
STATISTICS = ("view_cosine", "wins_entropy", "caption_cosine", "temperature")


def train(job: Job, out: Path) -> tuple[Job, dict[str, Any], np.ndarray]:
    """Trains or resumes a job; returns it, its line of the CSV, and its best epoch's hits."""
    folder = out / job.run
    try:
        trainer = build_trainer(job.config, folder, resume=True, load=_load_once)
        trainer.fit()
        _, method, images, texts, split = run_views(folder, job.split, Extraction())
    except ValueError as error:
        raise ValueError(f"{job.label}, {job.setting}, seed {job.config.seed}: {error}") from error
    scores = score_matrix(method, images, texts)
    learned = method.contrastive_temperature()
    measured = {
        **retrieval_metrics(scores, split.image_of),
        **view_statistics(method, images, texts, split.image_of),
        **caption_cosines(texts, split.image_of),
        **({} if learned is None else {"temperature": learned.item()}),
    }
    seconds = sum(float(line["seconds"]) for line in read_rows(folder / LOG))
    keys = (*KEYS, *STATISTICS)
    values = {key: round(measured[key], 4) if key in measured else "" for key in keys}
    values |= {
        "parameters": sum(p.numel() for p in method.parameters()),
        "minutes": round(seconds / 60, 1),
        "hardware": hardware(),
    }
    return job, values, image_hits(scores, split.image_of, split.alike)


def run_jobs(jobs: Sequence[Job], record: Record, out: Path, workers: int, threads: int) -> None:
    """Trains the jobs that are not recorded, `workers` at a time, and records each result."""
    missing = [job for job in jobs if record.find(job) is None]
    for done, (job, values, hits) in enumerate(_results(missing, out, workers, threads), start=1):
        record.add(job, values, hits)
        name = f"{job.label}, {job.phase} {job.setting}, seed {job.config.seed}"
        line = f"[{done}/{len(missing)}] {name}: rsum {values['rsum']:.1f}"
        print(f"{line}, {values['minutes']} minutes", flush=True)


def table(
    sweep: Sweep, changes: Sequence[str], record: Record, *, short: bool = False
) -> list[str]:
    """The rows whose trainings are all recorded, as a Markdown table.

    Each row is compared with the sweep's baseline and with its paper's; it is "ahead" or "behind"
    only if the interval over seeds and images excludes 0. `short` makes the README's table.
    """
    rows: dict[str, list[Job]] = {}
    for job in final_jobs(sweep, changes, record):
        rows.setdefault(job.label, []).append(job)
    complete = {label: jobs for label, jobs in rows.items() if all(map(record.find, jobs))}
    keys = ("rsum",) if short else KEYS
    heads = ["row", "seeds", *(COLUMNS[key] for key in keys), "deviation"]
    heads += ["against", "difference [95 % interval]"]
    heads += [] if short else ["trials", "parameters", "minutes", "setting"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 2) + "---|"]
    for row in (row for row in sweep.rows if row.label in complete):
        jobs = complete[row.label]
        measured = [record.find(job) or {} for job in jobs]
        values = {key: [float(line[key]) for line in measured] for key in (*KEYS, "minutes")}
        cells = [row.label, str(len(jobs)), *(f"{np.mean(values[key]):.1f}" for key in keys)]
        cells.append(f"{np.std(values['rsum'], ddof=1):.1f}" if len(jobs) > 1 else "-")
        names = [sweep.baseline, row.own_baseline]
        names = [n for n in dict.fromkeys(names) if n in complete and n != row.label]
        differences = [difference_of(jobs, complete[name], record) for name in names]
        cells += ["<br>".join(names) or "-", "<br>".join(differences) or "-"]
        if not short:
            cells += [str(len(sweep.points(row))), measured[0]["parameters"]]
            cells += [f"{np.mean(values['minutes']):.0f}", jobs[0].setting]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def difference_of(jobs: Sequence[Job], others: Sequence[Job], record: Record) -> str:
    """The rsum difference with its interval; "ahead" or "behind" if it excludes 0."""
    first, second = (np.stack([record.hits[job.key] for job in each]) for each in (jobs, others))
    sure = difference_of_hits(first, second)
    verdict = " ahead" if sure["low"] > 0 else " behind" if sure["high"] < 0 else ""
    return f"{sure['difference']:+.1f} [{sure['low']:+.1f}, {sure['high']:+.1f}]{verdict}"


def replace_block(page: Path, name: str, lines: Sequence[str]) -> bool:
    """Replaces the block between `<!-- sweep NAME -->` and `<!-- end NAME -->` on a page.

    Returns:
        Whether the page has such a block.
    """
    start, end = f"<!-- sweep {name} -->\n", f"<!-- end {name} -->"
    before, marker, rest = page.read_text("utf-8").partition(start)
    if not marker or end not in rest:
        return False
    write_whole(page, before + start + "\n".join(["", *lines, "", end]) + rest.partition(end)[2])
    return True


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


_load_once = functools.lru_cache(maxsize=4)(load_features)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m polyview sweep", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="sweeps, see --list, or TOML files")
    add("--list", action="store_true", help="list the sweeps")
    add("--rows", nargs="+", metavar="LABEL", help="train only these rows")
    add("--report", action="store_true", help="train nothing; print the recorded table")
    what = f"also write the tables between the marks of each sweep in {' and '.join(PAGES)}"
    add("--write", action="store_true", help=what)
    add("--out", type=Path, default=Path("runs/sweeps"), help="folder of the runs")
    add("--results", type=Path, help=f"folder of the CSV; {RESULTS}, or --out beside --set")
    add("--jobs", type=int, default=1, help="trainings at a time")
    add("--threads", type=int, default=1, help="CPU threads of each training")
    what = "folder to train on instead: photographs, scenes, or ready-made features"
    add("--data", metavar="DIR", help=what)
    what = "replace a setting of every row, e.g. epochs=3; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    options = parser.parse_args(argv)
    if options.list or not options.names:
        for name in sweep_names():
            print(f"{name}: {load_sweep(name).about.split('.')[0]}")
        return 0
    if options.data:
        features = holds_features(Path(options.data))
        options.set += [f"data={options.data}", *(["backbone="] if features else [])]
    try:
        for name in options.names:
            _run(load_sweep(name), options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command resumes", file=sys.stderr)
        return 130
    return 0


def _run(sweep: Sweep, options: argparse.Namespace) -> None:
    labels = options.rows or [row.label for row in sweep.rows]
    if unknown := [label for label in labels if label not in [row.label for row in sweep.rows]]:
        names = "\n".join(row.label for row in sweep.rows)
        raise ValueError(f'sweep {sweep.name} has no row "{unknown[0]}"; its rows are:\n{names}')
    record = Record(options.results or (options.out if options.set else RESULTS), sweep.name)
    if not options.report:
        for jobs in (trial_jobs, functools.partial(final_jobs, record=record)):
            chosen = [job for job in jobs(sweep, options.set) if job.label in labels]
            run_jobs(chosen, record, options.out, options.jobs, options.threads)
    lines = table(sweep, options.set, record)
    print("\n".join([sweep.about.strip(), "", *lines]))
    if options.write:
        short = table(sweep, options.set, record, short=True)
        for page, block in zip(map(Path, PAGES), (short, lines), strict=True):
            if not replace_block(page, sweep.name, block):
                print(f"{page} has no <!-- sweep {sweep.name} --> block", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
