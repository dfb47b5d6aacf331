"""Ablations: small tables of what changes when a method is varied, beside a pack as JSON files.

`ablations/<pack folder>/<any name>.json`:

    {"name": "mvam-views", "title": "MVAM: number of view codes", "paper": "...", "found": "...",
     "here": "...",
     "command": "python -m training.sweep ...", "hardware": "2 CPU cores", "seeds": [0, 1],
     "columns": ["views", "rsum"], "rows": [["1", 450.1], ["16", 496.3]], "note": "..."}
"""

from pathlib import Path
from typing import Annotated

from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from export.pack.schema import PackInfo
from export.pack.validation import OPEN, Text, check, read_json

Cell = str | float | int | None


@dataclass(frozen=True, config=OPEN, kw_only=True)
class Ablation:
    """One table, the attributes named as the keys.

    Attributes:
        name: for programs.
        title: for people.
        paper: what is varied, and where the paper reports it.
        found: what the paper found.
        here: what came out here, or empty.
        command: reproduces the rows.
        hardware: what they were measured on.
        seeds: of the training runs.
        columns: their titles; the first names what is varied.
        rows: one cell for each column.
        note: what to keep in mind, or empty.
    """

    name: Text
    title: Text
    paper: Text
    found: Text
    here: str = ""
    command: Text
    hardware: Text
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), FailFast()]
    columns: Annotated[tuple[Text, ...], Field(min_length=2, max_length=20)]
    rows: Annotated[tuple[tuple[Cell, ...], ...], Field(min_length=1, max_length=100), FailFast()]
    note: str = ""

    def __post_init__(self) -> None:
        """Refuses rows of other lengths than the columns."""
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} must hold {len(self.columns)} cells")


def folder_of(info: PackInfo) -> Path:
    """Where the ablations of a pack are."""
    return info.folder.parent / "ablations" / info.folder.name


def load(info: PackInfo) -> tuple[list[Ablation], list[str]]:
    """The ablations of a pack in the order of their files' names.

    Returns:
        The tables, and a sentence about each file that cannot be shown.
    """
    tables, problems = [], []
    for path in sorted(folder_of(info).glob("*.json")):
        try:
            tables.append(read(path))
        except (ValueError, OSError) as error:
            why = str(error).replace(str(path), path.name)  # visitors need not know where it lies
            problems.append(f"an ablation is left out: {why}")
    return tables, problems


def read(path: Path) -> Ablation:
    """Reads one file.

    Raises:
        PackError: it does not hold what it must; the message says what is wrong.
    """
    return check(Ablation, read_json(path), path.name)
