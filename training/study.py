"""Compares recipes on one set of images: `python -m training.study flickr8k --set data=DIR`.

What was not trained before is trained, `docs/<name>.json` is written, and the study's part of
`docs/results.md`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from training.experiments.results import PAGE, replace_part
from training.experiments.runner import parser_of, run_rows, status_of, write_result
from training.experiments.study import load_study, result_of, study_lines

RESULTS = Path("docs")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = parser_of("study", "Compare recipes on the same images.", "runs/studies", RESULTS)
    parser.add_argument("name", help="a file of training/experiments/studies")
    options = parser.parse_args(argv)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    study = load_study(options.name)
    run_rows([row.row(options.set) for row in study.rows], options)
    result = result_of(study, options.set, options.out)
    path = write_result(options.results, result)
    page = options.results / PAGE.name
    replace_part(page, study.name, study_lines(result))
    print(f"{path} and {page} are up to date")


if __name__ == "__main__":
    sys.exit(main())
