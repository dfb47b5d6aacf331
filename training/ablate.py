"""Runs an ablation: `python -m training.ablate mv_vse_views`; `--list` names all.

Trains what was not trained before, writes `app/bundled/ablations/scenes/<name>.json` and brings
`docs/results.md` up to date; `--report` does the latter alone. With `--set` it is another ablation
than the one that is defined: its table goes into the folder of the trainings, and is printed.
"""

import argparse
import sys
from collections.abc import Sequence

from training.experiments.ablation import ablation_names, load_ablation, result_of, state_outcomes
from training.experiments.results import PAGE, README, RESULTS, update_page, update_readme
from training.experiments.runner import parser_of, run_rows, show_result, status_of, write_result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = parser_of("ablate", "Run an ablation by one command.", "runs/ablations", RESULTS)
    add = parser.add_argument
    add("name", nargs="?", help="what to run; see --list")
    add("--list", action="store_true", help="name the ablations")
    what = f"bring {PAGE} and {README} up to date with all results"
    add("--report", action="store_true", help=what)
    add("--seeds", type=int, nargs="+", default=[0], help="average over these")
    options = parser.parse_args(argv)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    if options.list:
        for name in ablation_names():
            print(f"{name}: {load_ablation(name).title}")
    elif options.name:
        _ablate(options)
    if options.report:
        state_outcomes(RESULTS)
        update_page()
        update_readme()


def _ablate(options: argparse.Namespace) -> None:
    ablation = load_ablation(options.name, options.set)
    run_rows([variant.row(options.seeds) for variant in ablation.variants], options)
    result = result_of(ablation, options.seeds, options.out, options.set)
    if options.set:
        show_result(options.out, {**result, "here": ""})
        return
    path = write_result(options.results, result)
    if options.results == RESULTS:
        update_page()
        print(f"{path} and {PAGE} are up to date")


if __name__ == "__main__":
    sys.exit(main())
