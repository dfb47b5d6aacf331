"""A run's logs: `log.csv` with a row an epoch, `steps.csv` with a row for every few steps.

Epochs are counted from 1. Logs of earlier versions counted from 0; they are read as the others.
"""

import csv
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.files import replacing

LOG, STEPS = "log.csv", "steps.csv"
MOST_STEPS = 2000  # rows of a run's steps.csv
_WRITE_SECONDS = 10.0  # from one writing of steps.csv to the next


class StepLog:
    """The log of a run's steps; of a long run only every n-th is noted.

    Args:
        path: the CSV file; what it holds stays, where a run goes on.
        total: steps of the whole run.
        done: steps that are behind the run. Later ones in the file were interrupted before a
            checkpoint, and will be taken again.
    """

    def __init__(self, path: Path, total: int, done: int) -> None:
        self.path = path
        self.every = math.ceil(total / MOST_STEPS)
        before = read_rows(path) if done and path.is_file() else []
        self.rows: list[Mapping[str, Any]] = [row for row in before if int(row["step"]) <= done]
        self._written = time.monotonic()

    def add(self, row: Mapping[str, Any]) -> None:
        """Notes a step; the file follows within seconds."""
        self.rows.append(row)
        if time.monotonic() - self._written > _WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        """Brings the file up to date."""
        if self.rows:
            write_rows(self.path, self.rows)
        self._written = time.monotonic()


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


def from_one(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose epochs are counted from 1, of rows that may count them from 0.

    >>> from_one([{"epoch": 0, "loss": 2.5}, {"epoch": 1, "loss": 2.0}])
    [{'epoch': 1, 'loss': 2.5}, {'epoch': 2, 'loss': 2.0}]
    """
    if not rows or int(rows[0]["epoch"]) != 0:
        return [dict(row) for row in rows]
    return [{**row, "epoch": int(row["epoch"]) + 1} for row in rows]


def time_left(seconds: float) -> str:
    """A time to wait, as coarse as it is known.

    >>> [time_left(s) for s in (20, 100, 4000)]
    ['under a minute', '2 min', '1 h 07 min']
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
