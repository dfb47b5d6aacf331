"""What follows from the columns, to stand beside them: who alone found what, and two matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.comparison import Comparison, Place
from app.panels import text
from app.query import MINUS
from app.tabs.compare.shown import Shown, image, number


def only_found(comparison: Comparison, pictures: Mapping[int, Shown]) -> str:
    """For each column, the pictures that it alone found."""
    rows = []
    for i, (column, places) in enumerate(
        zip(comparison.columns, comparison.only_found, strict=True)
    ):
        if not places:
            continue
        tiles = "".join(_small(place, pictures[place.image_id]) for place in places)
        rows.append(
            f'<li><span class="pv-cmp-who">{number(i)}{text(column.title)}'
            f'</span><span class="pv-cmp-smalls">{tiles}</span></li>'
        )
    what = "right pictures" if comparison.truth else "pictures"
    note = f"{what.capitalize()} in the top {comparison.k} of one column alone."
    body = f"<ul>{''.join(rows)}</ul>" if rows else f'<p class="pv-none">{_nobody(comparison)}</p>'
    return (
        '<section class="pv-cmp-alone"><h3>Only this method found it</h3>'
        f"<p>{note}</p>{body}</section>"
    )


def matrices(titles: Sequence[str], k: int, comparison: Comparison | None = None) -> str:
    """Two tables of how far each two columns agree; empty cells where nothing was compared yet."""
    count = len(titles)
    shares: list[list[float | None]] = [[None] * count for _ in titles]
    taus = shares
    if comparison is not None:
        shares = [[100 * value for value in row] for row in comparison.overlap]
        taus = [list(row) for row in comparison.tau]
    return _matrix(
        titles,
        f"Overlap@{k}",
        f"Per cent of the top {k} that two columns share.",
        [[_Cell.of_share(value) for value in row] for row in shares],
    ) + _matrix(
        titles,
        "Kendall's τ",
        f"How alike two columns order what either has in its top {k}: 1 the same, 0 unrelated, "
        f"{MINUS}1 opposite.",
        [[_Cell.of_tau(value) for value in row] for row in taus],
    )


class _Cell(NamedTuple):
    """What a cell says, what it says in full, and how strong its tint is, 0 to 100."""

    shown: str
    full: str
    tint: float

    @classmethod
    def of_share(cls, value: float | None) -> _Cell:
        """A share in per cent."""
        return cls("", "", 0) if value is None else cls(f"{value:.0f}", f"{value:.0f} %", value)

    @classmethod
    def of_tau(cls, value: float | None) -> _Cell:
        """A tau; .6 is shown and 0.63 is said."""
        if value is None:
            return cls("", "not defined", 0)
        shown, sign = f"{abs(value):.1f}".removeprefix("0"), MINUS if value < 0 else ""
        return cls(
            "0" if shown == ".0" else f"{sign}{shown}",
            f"{sign}{abs(value):.2f}",
            100 * max(0.0, value),
        )


def _matrix(titles: Sequence[str], title: str, note: str, cells: Sequence[Sequence[_Cell]]) -> str:
    """A table of every pair of columns."""
    head = "".join(
        f'<th scope="col" title="{text(name)}">{number(i)}'
        f'<span class="pv-sr">{text(name)}</span></th>'
        for i, name in enumerate(titles)
    )
    body = ""
    for i, row in enumerate(cells):
        values = "".join(
            '<td class="pv-cmp-self"></td>' if i == j else _pair(titles[i], titles[j], cell)
            for j, cell in enumerate(row)
        )
        body += (
            f'<tr><th scope="row" title="{text(titles[i])}">{number(i)}'
            f"<span>{text(titles[i])}</span></th>{values}</tr>"
        )
    return (
        f'<section class="pv-cmp-matrix"><h3>{text(title)}</h3><p>{text(note)}</p>'
        f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )


def _pair(one: str, other: str, cell: _Cell) -> str:
    said = text(f"{one} and {other}: {cell.full}")
    return f'<td style="--tint:{cell.tint:.0f}%" title="{said}">{cell.shown}</td>'


def _nobody(comparison: Comparison) -> str:
    if comparison.truth and not any(column.right_in_list for column in comparison.columns):
        return f"No method has a right picture in its top {comparison.k}."
    return "None: whatever one of them found, another found, too."


def _small(place: Place, shown: Shown) -> str:
    return (
        f'<button type="button" class="pv-cmp-small" data-id="{place.image_id}">'
        f"{image(shown)}<span>rank {place.rank}</span></button>"
    )
