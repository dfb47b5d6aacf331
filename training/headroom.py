"""What several views could gain over one vector: `python -m training.headroom scenes`.

Runs the study's trials that choose the settings, trains what is drawn where that was not trained
before, and writes numbers, a table and a plot: into the folder of the trainings, or, with `--write`
and where no setting is replaced, into `docs/headroom_<name>.json` and `.svg` and `docs/results.md`.
"""

import argparse
import sys
from collections.abc import Sequence

from training.experiments.headroom import headroom_lines, load_headroom, points_of, result_of
from training.experiments.headroom_plot import draw
from training.experiments.results import PAGE, replace_part
from training.experiments.runner import parser_of, run_rows, show_result, status_of, write_result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = parser_of("headroom", "Draw what views could gain.", "runs/studies", PAGE.parent)
    parser.add_argument("name", help="a file of training/experiments/headrooms")
    what = f"with --set, too, write the results into {PAGE.parent}"
    parser.add_argument("--write", action="store_true", help=what)
    options = parser.parse_args(argv)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    headroom = load_headroom(options.name)
    study = headroom.tried()
    run_rows(study.trials(options.set), options)
    run_rows(headroom.rows(options.set, study.chosen(options.set, options.out)), options)
    result = result_of(headroom, options.set, options.out)
    folder = options.out if options.set and not options.write else options.results
    folder.mkdir(parents=True, exist_ok=True)
    draw(points_of(result), folder / f"{headroom.key}.svg")
    if folder == options.out:
        show_result(folder, {**result, "here": ""})
        return
    path = write_result(folder, result)
    page = folder / PAGE.name
    replace_part(page, headroom.key, headroom_lines(result))
    print(f"{path}, its plot and {page} are up to date")


if __name__ == "__main__":
    sys.exit(main())
