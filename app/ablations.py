"""Ablations: small tables of what changes when a method is varied, beside a pack as JSON files.

`ablations/<pack folder>/<any name>.json`, written by `python -m training.ablate`:

    {"name": "mvam-views", "title": "MVAM: number of view codes", "paper": "...", "found": "...",
     "here": "...",
     "command": "python -m training.ablate ...", "hardware": "2 CPU cores", "seeds": [0, 1],
     "columns": ["views", "rsum"], "rows": [["1", 450.1], ["16", 496.3]], "note": "..."}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.fields import Fields, PackError, read_json
from export.manifest import PackInfo

_MOST_COLUMNS, _MOST_ROWS = 20, 100
Cell = str | float | int | None


@dataclass(frozen=True)
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

    name: str
    title: str
    paper: str
    found: str
    here: str
    command: str
    hardware: str
    seeds: tuple[int, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str


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
    values = read_json(path)
    fields = Fields(values, path.name)
    columns = _columns(fields)
    return Ablation(
        name=fields.text("name"),
        title=fields.text("title"),
        paper=fields.text("paper"),
        found=fields.text("found"),
        here=fields.text("here") if values.get("here") else "",
        command=fields.text("command"),
        hardware=fields.text("hardware"),
        seeds=_seeds(fields),
        columns=columns,
        rows=_rows(fields, len(columns)),
        note=fields.text("note") if values.get("note") else "",
    )


def _columns(fields: Fields) -> tuple[str, ...]:
    columns = fields.sequence("columns")
    if not all(isinstance(title, str) and title.strip() for title in columns):
        raise PackError(f"{fields.where}: columns must be texts that are not empty")
    if not 2 <= len(columns) <= _MOST_COLUMNS:
        raise PackError(
            f"{fields.where}: columns must be 2 to {_MOST_COLUMNS} titles, not {len(columns)}"
        )
    return tuple(columns)


def _seeds(fields: Fields) -> tuple[int, ...]:
    seeds = fields.sequence("seeds")
    if not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise PackError(f"{fields.where}: seeds must be whole numbers of at least 0, not {seeds}")
    return tuple(seeds)


def _rows(fields: Fields, width: int) -> tuple[tuple[Cell, ...], ...]:
    rows = fields.sequence("rows")
    if not 1 <= len(rows) <= _MOST_ROWS:
        raise PackError(f"{fields.where}: there must be 1 to {_MOST_ROWS} rows, not {len(rows)}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list) or len(row) != width:
            raise PackError(f"{fields.where}: row {number} must hold {width} cells")
        if not all(_is_cell(cell) for cell in row):
            raise PackError(f"{fields.where}: row {number} may hold texts, numbers and null only")
    return tuple(tuple(row) for row in rows)


def _is_cell(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str | int | float) and not isinstance(cell, bool))
