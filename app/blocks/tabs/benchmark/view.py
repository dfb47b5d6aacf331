"""What the Benchmark tab's templates get: the table, the plot and ablations."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from markupsafe import Markup

from app.blocks.tabs.benchmark import candidates
from app.blocks.tabs.benchmark.plot import Point, plot
from app.blocks.tabs.benchmark.svg import NARROW, WIDE
from app.blocks.tabs.html import problem, render
from app.packs.ablations import Ablation, Cell
from app.packs.candidates import Candidates
from app.packs.description import shown_command
from app.packs.measured import MEGABYTES, QUERY_MS, RSUM, Row, Table
from app.packs.speed import Speed
from models import METHODS

_ACCURACY = "rsum, of 600"
_UNKNOWN = "\N{EN DASH}"
_METHOD_OPTION = re.compile(r"(?<=--method )\S+")


def explanation() -> Markup:
    """The tab in plain words."""
    return render("benchmark/explained")


def results(table: Table) -> Markup:
    """The table of all methods, with buttons that sort it, and how its numbers were made."""
    groups = [list(columns) for _, columns in groupby(table.columns, key=lambda c: c.group)]
    return render(
        "benchmark/results",
        table=table,
        groups=groups,
        opens={columns[0].key for columns in groups},
        group={column.key: i for i, columns in enumerate(groups) for column in columns},
        sources=_sources(table.rows),
    )


def accuracy_and_speed(table: Table, speed: Speed | None, *, captions: bool) -> Markup:
    """The plot, as wide and as narrow as pages are, and where its times are from.

    Args:
        table: the methods and their numbers.
        speed: how long their queries take, where that is known.
        captions: whether the gallery has captions, which the speed can be measured with here.
    """
    points = [
        Point(row.title, row.values[QUERY_MS], row.values[RSUM], row.values[MEGABYTES])
        for row in table.rows
        if QUERY_MS in row.values and RSUM in row.values
    ]
    plots = [
        plot(points, _ACCURACY, frame, css_class)
        for frame, css_class in ((WIDE, "pv-wide"), (NARROW, "pv-narrow"))
        if speed is not None and points
    ]
    return render("benchmark/plot", plots=plots, speed=speed, captions=captions)


def against_candidates(found: Candidates | None) -> Markup:
    """How the time of a query grows with the images; nothing where that was not measured."""
    if found is None:
        return Markup()
    lines = [
        candidates.Line(METHODS[name].title, times)
        for name, times in found.median.items()
        if name in METHODS
    ]
    plots = [
        candidates.plot(lines, found.images, frame, css_class)
        for frame, css_class in ((WIDE, "pv-wide pv-growth"), (NARROW, "pv-narrow pv-growth"))
        if lines
    ]
    return render("benchmark/candidates", plots=plots, found=found)


def ablation_tables(tables: Sequence[Ablation], problems: Sequence[str]) -> Markup:
    """The ablations and what is wrong with damaged ones; nothing where there are none."""
    if not tables and not problems:
        return Markup()
    shown = [(table, _rows(table)) for table in tables]
    return render("benchmark/ablations", tables=shown, problems=problem(*problems))


def _sources(rows: Iterable[Row]) -> list[tuple[str, dict[str, str]]]:
    """The commands that made the numbers, (methods, facts): one where they differ in the method."""
    sources: dict[str, tuple[list[str], dict[str, str]]] = {}
    for row in rows:
        for source in filter(None, (row.source, row.calibrated)):
            command = shown_command(source["command"])
            command = _METHOD_OPTION.sub("METHOD", command, count=1)
            facts = {**source, "command": command}
            sources.setdefault(repr(facts), ([], facts))[0].append(row.title)
    return [(", ".join(titles), facts) for titles, facts in sources.values()]


def _rows(table: Ablation) -> list[list[str]]:
    """Cells as they are shown: the numbers of a column with the same number of digits."""
    digits = [_decimals(row[i] for row in table.rows) for i in range(len(table.columns))]
    return [
        [_shown(cell, places) for cell, places in zip(row, digits, strict=True)]
        for row in table.rows
    ]


def _decimals(cells: Iterable[Cell]) -> int:
    """Digits after the point that a column's numbers need."""
    return max((len(repr(c).partition(".")[2]) for c in cells if isinstance(c, float)), default=0)


def _shown(cell: Cell, digits: int) -> str:
    if cell is None:
        return _UNKNOWN
    return cell if isinstance(cell, str) else f"{cell:,.{digits}f}"
