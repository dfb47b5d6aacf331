"""Draws the curves of runs: `python -m polyview plot RUN [RUN ...]`.

RUN is a run folder, or another folder with a `log.csv`, such as `training/METHOD` of a pack.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from polyview.models.files import replacing
from polyview.training.evaluation.report import read_rows
from polyview.training.loop.loop import LOG
from polyview.training.settings import exit_on_error

SCORES = ("rsum", "object_r_precision", "val_distillation")  # the first available score is drawn


def read_curves(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Reads points (epoch, value) of each curve; raises ValueError if the log is not valid."""
    if not (folder / LOG).is_file():
        raise ValueError(f"there is no {folder / LOG}; name a run that has finished an epoch")
    try:
        rows = [(float(row["epoch"]), row) for row in read_rows(folder / LOG)]
        score = next((key for key in SCORES if any(row.get(key) for _, row in rows)), SCORES[0])
        return {
            key: [(epoch, float(row[key])) for epoch, row in rows if row.get(key)]
            for key in ("loss", score, "rate", "grad_norm")
        }
    except (ValueError, KeyError) as error:
        raise ValueError(f"the log in {folder} is damaged: {error}") from error


def main(argv: Sequence[str] | None = None) -> None:
    """Draws the runs named on the command line."""
    parser = argparse.ArgumentParser("python -m polyview plot", description="Draw training curves.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder")
    help_text = "PNG file (default: curves.png in the run folder; for several, one folder above)"
    parser.add_argument("--out", type=Path, help=help_text)
    options = parser.parse_args(argv)
    figure = Figure(figsize=(11, 7), dpi=120, layout="constrained")
    panels = list(figure.subplots(2, 2).flat)
    with exit_on_error():
        for folder in options.runs:
            for axes, (name, points) in zip(panels, read_curves(folder).items(), strict=True):
                axes.plot(*zip(*points, strict=True), label=str(folder), marker=".", linewidth=1)
                axes.set(title=name, xlabel="epoch")
        panels[0].legend(fontsize="small")
        first = options.runs[0]
        out = options.out or (first if len(options.runs) == 1 else first.parent) / "curves.png"
        with replacing(out) as draft:
            figure.savefig(draft, format="png")
    print(out)
