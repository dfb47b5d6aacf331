"""The table of a sweep (`training/sweep.py`), from its recorded trainings."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyview.models.files import write_whole
from polyview.training.evaluation.metrics import difference_of_hits
from polyview.training.evaluation.report import COLUMNS

KEYS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
DIFFERENCE = "difference [95 % interval]"
NUMBERS = ("row", "i2t R@1", "t2i R@1", "rsum", "deviation")  # columns of the page and the app


class FinalRow(NamedTuple):
    """The trainings of a row at its best grid point, with S seeds."""

    label: str
    baselines: Sequence[str]  # labels of the rows to compare with
    trials: int  # number of grid points
    setting: str  # the best grid point
    lines: Sequence[Mapping[str, str]]  # S lines of the sweep's CSV file
    hits: np.ndarray  # (S, 4, N_img), see `metrics.image_hits`


def table(rows: Sequence[FinalRow]) -> list[list[str]]:
    """Returns the cells of a table, first its head.

    Each row is compared with those of its baselines that are in the table.
    """
    hits = {row.label: row.hits for row in rows}
    heads = ["row", "seeds", *(COLUMNS[key] for key in KEYS), "deviation", "against"]
    lines = [[*heads, DIFFERENCE, "trials", "parameters", "minutes", "setting"]]
    for row in rows:
        values = {key: [float(line[key]) for line in row.lines] for key in (*KEYS, "minutes")}
        cells = [row.label, str(len(row.lines)), *(f"{np.mean(values[key]):.1f}" for key in KEYS)]
        cells.append(f"{np.std(values['rsum'], ddof=1):.1f}" if len(row.lines) > 1 else "-")
        names = [name for name in row.baselines if name in hits]
        differences = [format_difference(row.hits, hits[name]) for name in names]
        cells += ["<br>".join(names) or "-", "<br>".join(differences) or "-"]
        cells += [str(row.trials), row.lines[0]["parameters"]]
        lines.append([*cells, f"{np.mean(values['minutes']):.0f}", row.setting])
    return lines


def format_difference(first: np.ndarray, second: np.ndarray) -> str:
    """Formats the rsum difference of two rows' hits (S, 4, N_img) with its interval.

    Adds "ahead" or "behind" if the interval over seeds and images excludes 0.
    """
    values = difference_of_hits(first, second)
    verdict = " ahead" if values["low"] > 0 else " behind" if values["high"] < 0 else ""
    return f"{values['difference']:+.1f} [{values['low']:+.1f}, {values['high']:+.1f}]{verdict}"


def select(lines: Sequence[Sequence[str]], heads: Sequence[str]) -> list[list[str]]:
    """Returns some columns of a table, by their heads."""
    columns = [lines[0].index(head) for head in heads]
    return [[line[column] for column in columns] for line in lines]


def to_markdown(lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table; numbers are aligned to the right."""
    head, *rows = (f"| {' | '.join(cells)} |" for cells in lines)
    return [head, "|---|" + "---:|" * (len(lines[0]) - 2) + "---|", *rows]


def to_json_rows(lines: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Returns the rows of the app's table of an ablation: `NUMBERS` and the difference."""
    return [
        [label, *(None if cell == "-" else float(cell) for cell in numbers), difference]
        for label, *numbers, difference in select(lines, [*NUMBERS, DIFFERENCE])[1:]
    ]


def write_into_page(page: Path, name: str, lines: Sequence[Sequence[str]]) -> None:
    """Replaces the block of a sweep in a Markdown page; raises ValueError if it has none."""
    start, end = f"<!-- sweep {name} -->\n", f"<!-- end {name} -->"
    block = re.compile(rf"(?<={re.escape(start)}).*?(?={re.escape(end)})", re.DOTALL)
    cells = to_markdown(select(lines, [*NUMBERS, "against", DIFFERENCE, "setting"]))
    text, count = block.subn(lambda _: "\n".join(["", *cells, "", ""]), page.read_text("utf-8"))
    if not count:
        raise ValueError(f"{page} has no <!-- sweep {name} --> block")
    write_whole(page, text)
