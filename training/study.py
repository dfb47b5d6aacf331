"""Compares recipes on one set of images: `python -m training.study flickr8k --set data=DIR`.

What was not trained before is trained: first the trials of every row, then the best of each with
every seed. The table goes into the folder of the trainings and is
printed; with `--write`, and where no setting is replaced, it goes to `docs/<name>.json` and into
`docs/results.md`, which are this repository's own numbers, and the README has a line of it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from training.experiments.results import PAGE, README, replace_part, update_readme
from training.experiments.runner import parser_of, run_rows, show_result, status_of, write_result
from training.experiments.study import load_study, result_of, study_lines

RESULTS = Path("docs")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = parser_of("study", "Compare recipes on the same images.", "runs/studies", RESULTS)
    parser.add_argument("name", help="a file of training/experiments/studies")
    what = f"with --set, too, write the results into {RESULTS}"
    parser.add_argument("--write", action="store_true", help=what)
    options = parser.parse_args(argv)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    study = load_study(options.name)
    run_rows(study.trials(options.set), options)
    run_rows(study.rows_of(options.set, study.chosen(options.set, options.out)), options)
    result = result_of(study, options.set, options.out)
    if options.set and not options.write:
        show_result(options.out, {**result, "here": ""})
        return
    path = write_result(options.results, result)
    page = options.results / PAGE.name
    replace_part(page, study.name, study_lines(result))
    written = [path, page]
    if options.results == RESULTS:
        update_readme()
        written.append(README)
    print(f"{', '.join(map(str, written))}: up to date")


if __name__ == "__main__":
    sys.exit(main())
