"""Draws the curves of runs: `python -m training.plot RUN [RUN ...]`.

RUN is a run folder, or any folder with a `log.csv`, such as those that packs bring. Loss, rate and
gradient norm are those of single steps where the run has logged them, else means over epochs.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from models.files import replacing
from training.loop.command import refusals_end
from training.loop.logs import LOG, STEPS, read_rows

SCORES = ("rsum", "object_r_precision", "val_distillation")  # of these a run's first is drawn
PANELS = {
    "loss": "loss",
    "score": "validation",
    "rate": "learning rate",
    "grad_norm": "gradient norm",
}
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """What a run's logs hold.

    Attributes:
        name: of the run.
        score: which metric its validation has.
        points: for each of `PANELS` (epochs done, value).
    """

    name: str
    score: str
    points: Mapping[str, Points]


def read_curves(folder: Path, name: str) -> Curves:
    """The curves of a run.

    Raises:
        FileNotFoundError: it has no log.
        ValueError: the log is damaged.
    """
    path = folder / LOG
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; name a run that has ended an epoch")
    try:
        rows = read_rows(path)
        steps = read_rows(folder / STEPS) if (folder / STEPS).is_file() else []
        score = next((key for key in SCORES if any(row.get(key) for row in rows)), "")
        fine = _by_step(steps) or [(float(at), row) for at, row in enumerate(rows, 1)]
        points = {key: _values(fine, key) for key in ("loss", "rate", "grad_norm")}
        points["score"] = _values([(float(at), row) for at, row in enumerate(rows, 1)], score)
    except (ValueError, KeyError) as error:
        raise ValueError(f"the logs in {folder} are damaged: {error}") from error
    return Curves(name, score, points)


def draw(runs: Sequence[Curves], path: Path) -> None:
    """Draws the curves of runs into a PNG, a panel for each of `PANELS`."""
    figure = Figure(figsize=(11, 7), dpi=120, layout="constrained")
    grid = figure.subplots(2, 2)
    scores = " and ".join(dict.fromkeys(run.score for run in runs if run.score))
    for axes, (key, title) in zip(grid.flat, PANELS.items(), strict=True):
        _draw_panel(axes, runs, key)
        axes.set_title(f"{title}: {scores.replace('_', ' ')}" if key == "score" else title)
        axes.set_xlabel("epoch")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(runs)))
    with replacing(path) as draft:
        figure.savefig(draft, format="png")


def _draw_panel(axes: Axes, runs: Sequence[Curves], key: str) -> None:
    for run in runs:
        points = run.points[key]
        mark = "o" if len(points) < 50 else ""
        at, values = zip(*points, strict=True) if points else ((), ())
        axes.plot(at, values, label=run.name, marker=mark, markersize=3, linewidth=1.2)
    reached = [value for run in runs for _, value in run.points[key]]
    if key in ("loss", "grad_norm") and min(reached, default=0) > 0:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)


def _by_step(rows: list[dict[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Rows of steps with the epochs that were done then."""
    # an epoch ends with one of its last steps, so the most steps for an epoch are all it has
    each = max((int(row["step"]) / int(row["epoch"]) for row in rows), default=1.0)
    return [(int(row["step"]) / each, row) for row in rows]


def _values(rows: Sequence[tuple[float, Mapping[str, Any]]], key: str) -> Points:
    """A column's values; logs of image encoders have had no sum of their losses."""
    return [(at, float(row[key])) for at, row in rows if row.get(key)]


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and draws."""
    parser = argparse.ArgumentParser(
        prog="python -m training.plot", description="Draw the curves of runs."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder")
    what = "the PNG to write; without it curves.png in the run, or beside the first of several"
    parser.add_argument("--out", type=Path, help=what)
    options = parser.parse_args(argv)
    with refusals_end():
        names = [folder.resolve().name for folder in options.runs]
        alike = len(set(names)) < len(names)
        labels = [str(folder) for folder in options.runs] if alike else names
        runs = [read_curves(*given) for given in zip(options.runs, labels, strict=True)]
        first = options.runs[0]
        out = options.out or (first if len(runs) == 1 else first.parent) / "curves.png"
        draw(runs, out)
    print(f"{', '.join(labels)}: {out}")


if __name__ == "__main__":
    main()
