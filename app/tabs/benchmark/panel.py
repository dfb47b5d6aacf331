"""The Benchmark tab's own pieces of HTML. Whatever comes from outside passes through `text`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from app.ablations import Ablation, Cell
from app.measured import COLUMNS, MEGABYTES, QUERY_MS, RSUM, Column, Row, Table
from app.panels import line, problem, text
from app.rerun import Pair, Step
from app.speed import Speed
from app.tabs.benchmark.plot import NARROW, WIDE, Point, plot

_ACCURACY = "rsum, of 600"
_STAR = '<span class="pv-star" aria-hidden="true">★</span>'
_TITLES = {column.key: column.title for column in COLUMNS}
_RANKS = {"meanr": "mean rank", "nmr": "median rank / gallery"}
_NAMES = {"t2i": "text to picture", "i2t": "picture to text"}
_METHOD_OPTION = re.compile(r"(?<=--method )\S+")


def explanation() -> str:
    """The tab in plain words."""
    return (
        '<div class="pv-plain"><p>Every method was tested on pictures it had never seen. Each '
        "caption was used as a query, and we looked at which rank its picture came; each picture "
        "was used as a query for captions in the same way.</p>"
        "<p><b>R@1, R@5, R@10</b>: how often the right one was first, among the first five, among "
        "the first ten, in percent. <b>rsum</b> adds up all six. These count one picture as right "
        "for a caption, although others may fit as well. <b>R-P</b> and <b>mAP@R</b> count every "
        "picture that the caption is true of, and are the fairer numbers where that is known. "
        "<b>MedR</b> is the median rank.</p>"
        "<p><b>The plot</b> sets accuracy against speed: up is more accurate, left is faster, and "
        "a circle's area is the size on disk. No method is both faster and more accurate than one "
        "on the dashed line.</p>"
        "<p><b>Run it here</b> measures again on this machine with the command that made the "
        "numbers, and compares digit by digit. Another kind of processor may order two equal "
        "scores the other way, which moves a number by 0.02 to 0.1.</p></div>"
    )


def results(table: Table) -> str:
    """The table of all methods, with buttons that sort it, and how its numbers were made."""
    return (
        '<div class="pv-scroll pv-bench-scroll" tabindex="0" role="region" '
        'aria-label="Results of every method, scrolls sideways">'
        '<table class="pv-bench"><caption class="pv-unseen">Results of every method; choose a '
        "column's title to sort by it</caption>"
        f"<thead>{_groups(table)}{_titles(table)}</thead>"
        f"<tbody>{''.join(_row(table, row) for row in table.rows)}</tbody></table></div>"
        f'<p class="pv-key">{_STAR} best of its column. '
        "↓ lower is better, in all others higher. Choose a title to sort by it.</p>"
        f"{_sources(table.rows)}"
    )


def accuracy_and_speed(table: Table, speed: Speed | None, *, captions: bool) -> str:
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
    if speed is None or not points:
        then = "Measure it here to see" if captions else "A gallery with captions would show"
        return (
            '<div class="pv-plot pv-plot-empty"><p>How long a query takes was not recorded for '
            f"this pack. {then} accuracy against speed.</p></div>"
        )
    by = f" by <code>{text(speed.command)}</code>" if speed.command else ", just now"
    return (
        f'<figure class="pv-plot">{plot(points, _ACCURACY, WIDE, "pv-wide")}'
        f"{plot(points, _ACCURACY, NARROW, 'pv-narrow')}"
        "<figcaption>Circle area: text encoder and heads on disk. Dashed: no method is both faster "
        f"and more accurate than these. Times: median of {speed.queries:,} queries over "
        f"{speed.pictures:,} pictures, {text(speed.hardware)}{by}.</figcaption></figure>"
    )


def ablation_tables(tables: Sequence[Ablation], problems: Sequence[str]) -> str:
    """The ablations and what is wrong with damaged ones; nothing where there are none."""
    if not tables and not problems:
        return ""
    return (
        '<section class="pv-ablations"><h3>What happens when a method is varied</h3>'
        f"{''.join(map(problem, problems))}"
        f'<div class="pv-cards">{"".join(map(_ablation, tables))}</div></section>'
    )


def invitation(obstacle: str) -> str:
    """What stands under the button before anything was run, or why nothing can be."""
    if obstacle:
        return f'<div class="pv-run"><p class="pv-quiet">{text(obstacle)}.</p></div>'
    return (
        '<div class="pv-run"><p class="pv-quiet">Choose a method and run it: half a minute for all '
        "of them on two cores. You can go on searching meanwhile.</p></div>"
    )


def running(step: Step, title: str) -> str:
    """How far an evaluation is; `title` says what is being measured."""
    doing = f"{title}: {step.done} of {step.total} steps" if step.total else "Loading the pack …"
    percent = 100 * step.done // max(1, step.total)
    return (
        f'<div class="pv-run"><p class="pv-line"><strong>{text(doing)}</strong>'
        f"<span>{step.seconds:.0f} s</span></p>"
        '<div class="pv-bar" role="progressbar" aria-label="Evaluation" aria-valuemin="0" '
        f'aria-valuemax="100" aria-valuenow="{percent}"><i style="width:{percent}%"></i>'
        "</div></div>"
    )


def outcome(compared: dict[str, list[Pair]], titles: dict[str, str], details: str) -> str:
    """What was measured here beside what the pack states, method by method.

    Args:
        compared: for each method its numbers.
        titles: what people call each.
        details: how long it took, and on what.
    """
    pairs = [pair for method in compared.values() for pair in method]
    differing = sum(not pair.equal for pair in pairs)
    if differing:
        verdict = f"Not reproduced: {differing} of {len(pairs)} numbers differ."
    else:
        verdict = f"Reproduced: all {len(pairs)} numbers are equal to the last digit shown."
    methods = "".join(
        _compared(titles[name], numbers, opened=len(compared) == 1)
        for name, numbers in compared.items()
    )
    state = "pv-differs" if differing else "pv-agrees"
    return f'<div class="pv-run {state}">{line(verdict, details)}{methods}</div>'


def cancelled(sentence: str) -> str:
    """That there are no numbers because they are not wanted any more."""
    return f'<div class="pv-run">{line(sentence)}</div>'


def stopped(sentence: str) -> str:
    """Why there are no numbers."""
    return f'<div class="pv-run">{problem(sentence)}</div>'


def _groups(table: Table) -> str:
    """The upper line of the table's head."""
    cells = "".join(
        f'<th scope="colgroup" colspan="{len(list(columns))}">{text(group)}</th>'
        for group, columns in groupby(table.columns, key=lambda column: column.group)
    )
    return f'<tr class="pv-groups"><td></td>{cells}</tr>'


def _titles(table: Table) -> str:
    """The lower line of the table's head: a button for each column."""
    cells = "".join(
        _title(number, column.title, column, _opens(table, column))
        for number, column in enumerate(table.columns, start=1)
    )
    return f'<tr class="pv-titles">{_title(0, "method", None, "")}{cells}</tr>'


def _opens(table: Table, column: Column) -> str:
    """The class of the cells of a group's first column."""
    first = next(other for other in table.columns if other.group == column.group)
    return "pv-opens" if column is first else ""


def _title(number: int, title: str, column: Column | None, css_class: str) -> str:
    first = "descending" if column and column.best != "lowest" else "ascending"
    meaning = f' title="{text(column.meaning)}"' if column else ""
    down = " ↓" if column and column.best == "lowest" else ""
    return (
        f'<th scope="col" aria-sort="none" class="{css_class}">'
        f'<button type="button" data-column="{number}" data-first="{first}"{meaning}>'
        f"{text(title)}{down}<i></i></button></th>"
    )


def _row(table: Table, row: Row) -> str:
    cells = "".join(_cell(table, row, column) for column in table.columns)
    return (
        f'<tr><th scope="row" data-value="{text(row.title)}" title="{text(row.paper)}">'
        f"{text(row.title)}</th>{cells}</tr>"
    )


def _cell(table: Table, row: Row, column: Column) -> str:
    shown, value = row.show(column), row.values.get(column.key)
    opens = _opens(table, column)
    if value is None or not shown:
        unmeasured = '<span title="not measured">–</span>'  # noqa: RUF001
        return f'<td data-value="" class="{opens}">{unmeasured}</td>'
    if row.name not in table.best(column):
        return f'<td data-value="{value}" class="{opens}">{text(shown)}</td>'
    said = '<span class="pv-unseen">, best</span>'
    return f'<td data-value="{value}" class="pv-best {opens}">{_STAR}{text(shown)}{said}</td>'


def _sources(rows: Iterable[Row]) -> str:
    """The commands that made the numbers: one line where they differ in the method only."""
    sources: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for row in rows:
        if row.source is not None:
            command = _METHOD_OPTION.sub("METHOD", row.source["command"], count=1)
            about = {**row.source, "command": command}
            sources.setdefault(tuple(sorted(about.items())), []).append(row.title)
    shown = []
    for facts, titles in sources.items():
        about = dict(facts)
        whose = f"{text(', '.join(titles))}: " if len(sources) > 1 else ""
        seed = "unknown" if about["seed"] is None else about["seed"]
        shown.append(
            f"<li>{whose}{text(about['split'])} split, training seed {text(seed)}, "
            f"{text(about['hardware'])}<code>{text(about['command'])}</code></li>"
        )
    if not shown:
        return '<p class="pv-none">No method of this pack was measured yet.</p>'
    return f'<ul class="pv-sources">{"".join(shown)}</ul>'


def _ablation(table: Ablation) -> str:
    digits = [_decimals(row[i] for row in table.rows) for i in range(len(table.columns))]
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in table.columns)
    body = ""
    for first, *rest in table.rows:
        cells = "".join(
            f"<td>{_shown(cell, places)}</td>"
            for cell, places in zip(rest, digits[1:], strict=True)
        )
        body += f'<tr><th scope="row">{_shown(first, digits[0])}</th>{cells}</tr>'
    seeds = ", ".join(map(str, table.seeds))
    note = f'<p class="pv-note">{text(table.note)}</p>' if table.note else ""
    here = f"<p><b>Here:</b> {text(table.here)}</p>" if table.here else ""
    return (
        f'<article class="pv-card pv-ablation"><h4>{text(table.title)}</h4>'
        f'<p class="pv-paper">{text(table.paper)}</p>'
        '<div class="pv-scroll" tabindex="0" role="region" '
        f'aria-label="{text(table.title)}, scrolls sideways"><table class="pv-bench pv-small">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<p><b>The paper found:</b> {text(table.found)}</p>{here}{note}"
        f'<p class="pv-paper">{text(table.hardware)}, seed {text(seeds)}</p>'
        f"<code>{text(table.command)}</code></article>"
    )


def _decimals(cells: Iterable[Cell]) -> int:
    """Digits after the point that a column's numbers need, so that all are shown with as many."""
    return max((len(repr(c).partition(".")[2]) for c in cells if isinstance(c, float)), default=0)


def _shown(cell: Cell, digits: int) -> str:
    if cell is None:
        return "–"  # noqa: RUF001
    if isinstance(cell, str):
        return text(cell)
    return f"{cell:,.{digits}f}"


def _compared(title: str, numbers: Sequence[Pair], opened: bool) -> str:
    differing = [pair for pair in numbers if not pair.equal]
    mark = "≠" if differing else "✓"
    summary = f"{len(differing)} of {len(numbers)} differ" if differing else "all equal"
    rows = "".join(
        f'<tr{"" if pair.equal else " class=pv-off"}><th scope="row">{text(_name(pair.key))}</th>'
        f"<td>{pair.show(pair.stated)}</td><td>{pair.show(pair.here)}</td>"
        f"<td>{'equal' if pair.equal else pair.difference}</td></tr>"
        for pair in [*differing, *(pair for pair in numbers if pair.equal)]
    )
    return (
        f"<details{' open' if opened else ''}><summary>{mark} {text(title)}: {summary}</summary>"
        '<table class="pv-bench pv-small"><thead><tr><th scope="col">number</th>'
        '<th scope="col">stated</th><th scope="col">here</th><th scope="col">difference</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></details>"
    )


def _name(key: str) -> str:
    """A metric's key for people.

    >>> _name("t2i_r1")
    'text to picture R@1'
    """
    direction, _, rest = key.partition("_")
    if direction not in _NAMES:
        return key.replace("_", " ")
    return f"{_NAMES[direction]} {_TITLES.get(key) or _RANKS.get(rest) or rest.replace('_', ' ')}"
