"""A run's logs: `log.csv` with a row an epoch, `steps.csv` with a row for every few steps.

Epochs are counted from 1.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.files import replacing

LOG, STEPS = "log.csv", "steps.csv"
MAX_ROWS = 2000  # of a run's steps.csv


class StepLog:
    """The log of a run's steps; of a long run only of every n-th.

    Args:
        path: the CSV file; its rows stay where a run is resumed.
        total: steps of the whole run.
        done: steps before the checkpoint that is resumed. Later rows are removed, because their
            steps are taken again.
    """

    def __init__(self, path: Path, total: int, done: int) -> None:
        self.path = path
        self.every = math.ceil(total / MAX_ROWS)
        before = read_rows(path) if done and path.is_file() else []
        self.rows: list[Mapping[str, Any]] = [row for row in before if int(row["step"]) <= done]

    def write(self) -> None:
        """Writes the file."""
        if self.rows:
            write_rows(self.path, self.rows)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV whole, so that it never ends in half a row; a row may lack some columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; a value that a row lacks is an empty text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def time_left(seconds: float) -> str:
    """A remaining time in words.

    >>> [time_left(s) for s in (20, 100, 4000)]
    ['under a minute', '2 min', '1 h 07 min']
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
