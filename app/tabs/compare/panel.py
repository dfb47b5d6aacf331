"""The HTML of the Compare tab: aligned columns, matrices, what one method alone found, examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.comparison import Column, Comparison, Place, Truth
from app.curated import Example
from app.panels import text
from app.tabs.compare import beside
from app.tabs.compare.shown import Shown, image, number

SCRIPT = (Path(__file__).parent / "compare.js").read_text("utf-8")
_ABOUT = (Path(__file__).parent / "about.html").read_text("utf-8")
EXAMPLES_SCRIPT = (Path(__file__).parent / "examples.js").read_text("utf-8")
_NOTHING = "\N{EN DASH}"
# Told by sign and word, so that no colour is needed.
_RIGHT = '<span class="pv-cmp-mark">✓ right</span>'
_WRONG = '<span class="pv-cmp-wrong" title="wrong">✗<span class="pv-sr"> wrong</span></span>'
_MOST_CAPTIONS = 5  # of a picture, in the view that opens


def columns(comparison: Comparison, pictures: Mapping[int, Shown]) -> str:
    """The whole answer.

    Args:
        comparison: what to show.
        pictures: what is known about every picture that a column lists.
    """
    heads = "".join(_head(column, i, comparison) for i, column in enumerate(comparison.columns))
    titles = [column.title for column in comparison.columns]
    depth = max(len(column.places) for column in comparison.columns)
    rows = "".join(_row(comparison, pictures, rank) for rank in range(1, depth + 1))
    return (
        f'<div class="pv-cmp" style="--n:{len(comparison.columns)}" '
        f'data-facts="{text(_facts(comparison, pictures))}">'
        f'{_grid(heads, rows)}<aside class="pv-cmp-side">{beside.only_found(comparison, pictures)}'
        f"{beside.matrices(titles, comparison.k, comparison)}</aside>"
        '<dialog class="pv-cmp-look" aria-labelledby="pv-cmp-look-title"></dialog></div>'
    )


def ghost(titles: Sequence[tuple[str, str]], k: int) -> str:
    """The columns before a question: as large as those of the answer, so that nothing will move.

    Args:
        titles: (title, paper) of each column.
        k: how many ranks.
    """
    facts = "".join(
        f"<div><dt>{name}</dt><dd>{_NOTHING}</dd></div>"
        for name in ("first right at", "R-precision", f"in top {k}", "time")
    )
    heads = "".join(
        f'<div class="pv-cmp-head">{_title(title, paper, i)}<dl>{facts}</dl></div>'
        for i, (title, paper) in enumerate(titles)
    )
    names = [title for title, _ in titles]
    cell = '<div class="pv-cmp-tile"><span class="pv-cmp-pic"></span><span class="pv-cmp-foot">'
    rows = "".join(
        f'<div class="pv-cmp-rank">{rank}</div>' + f"{cell}</span></div>" * len(titles)
        for rank in range(1, k + 1)
    )
    return (
        f'<div class="pv-cmp pv-cmp-ghost" style="--n:{len(titles)}">'
        '<div class="pv-cmp-scroll"><div class="pv-cmp-grid" aria-hidden="true">'
        f'<div class="pv-cmp-corner">rank</div>{heads}{rows}</div></div>'
        '<aside class="pv-cmp-side"><div class="pv-cmp-invite"><h3>One question, every method</h3>'
        "<p>Type a sentence, or take one of the examples above. For a caption of the gallery it is "
        "known which pictures are right: they are framed.</p></div>"
        f"{beside.matrices(names, k)}</aside></div>"
    )


def examples(found: Sequence[Example], others: Sequence[str]) -> str:
    """Queries to try: those where methods differ, or else plain captions."""
    chips = [(e.caption, e.why) for e in found] or [(words, "") for words in others if words]
    buttons = "".join(
        f'<button type="button" class="pv-cmp-try" data-words="{text(words)}">'
        f"<span>{text(words)}</span>{f'<small>{text(why)}</small>' if why else ''}</button>"
        for words, why in chips
    )
    title = "Where they differ" if found else "To try"
    return f'<div class="pv-cmp-tries" role="group" aria-label="{title}">{buttons}</div>'


def asked_picture(shown: Shown, image_id: int) -> str:
    """The gallery's picture that would be asked with."""
    if not shown.address:
        return f'<p class="pv-none">{text(shown.file)} is not there any more.</p>'
    return (
        f'<figure class="pv-cmp-own"><img src="{text(shown.address)}" alt="{text(shown.words)}">'
        f"<figcaption>Picture {image_id}: {text(shown.words)}</figcaption></figure>"
    )


def verdict(comparison: Comparison) -> str:
    """What is known to be right, in a sentence."""
    truth, count = comparison.truth, len(comparison.truth.ids) if comparison.truth else 0
    if truth is None:
        return "Which pictures are right is not known for this query."
    if not truth.complete:
        written = (
            "picture it was written for is" if count == 1 else "pictures it was written for are"
        )
        return f"A caption of the gallery: the {written} framed; others may fit, too."
    if count == 1:
        return "One picture satisfies it; it is framed."
    return f"{count} pictures satisfy it; they are framed."


def elsewhere(titles: Sequence[str]) -> str:
    """Why some open packs are not offered; nothing where all are."""
    if not titles:
        return ""
    names = " and ".join(titles)
    verb = "searches" if len(titles) == 1 else "search"
    return (
        f'<p class="pv-none">{text(names)} {verb} other pictures, so ranks cannot be compared '
        "picture by picture and no method of theirs is offered.</p>"
    )


def explanation() -> str:
    """What the tab shows, in plain words."""
    return _ABOUT


def _grid(heads: str, rows: str) -> str:
    return (
        '<div class="pv-cmp-scroll" tabindex="-1"><div class="pv-cmp-grid" role="grid" '
        'aria-label="Pictures by rank and method">'
        '<div class="pv-cmp-row" role="row"><div class="pv-cmp-corner" role="columnheader">rank'
        f"</div>{heads}</div>{rows}</div></div>"
    )


def _title(title: str, paper: str, place: int) -> str:
    return (
        f"<h3>{number(place)}{text(title)}</h3>"
        f'<p class="pv-cmp-paper" title="{text(paper)}">{text(paper) or "averaged scores"}</p>'
    )


def _head(column: Column, place: int, comparison: Comparison) -> str:
    facts = []
    if (best := column.best_true_rank) is not None:
        facts.append(("first right at", f"{best:,}", best == 1))
    if column.r_precision is not None:
        share = f"{100 * column.r_precision:.0f} %"
        facts.append(("R-precision", share, False))
    if comparison.truth is not None:
        count = len(comparison.truth.ids)
        facts.append((f"in top {comparison.k}", f"{column.right_in_list} of {count}", False))
    time = f"Median of {column.runs}, the query read and all pictures scored"
    rows = "".join(
        f"<div{' data-best' if best else ''}><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
        for name, value, best in facts
    )
    rows += f'<div title="{time}"><dt>time</dt><dd>{_ms(column.ms)}</dd></div>'
    return (
        f'<div class="pv-cmp-head" role="columnheader">'
        f"{_title(column.title, column.paper, place)}<dl>{rows}</dl></div>"
    )


def _row(comparison: Comparison, pictures: Mapping[int, Shown], rank: int) -> str:
    cells = []
    for c, column in enumerate(comparison.columns):
        if rank > len(column.places):
            cells.append('<div role="gridcell"></div>')
            continue
        place = column.places[rank - 1]
        left = comparison.columns[c - 1].title if c else ""
        first = rank == 1 and c == 0
        tile = _tile(place, pictures[place.image_id], c, left, first)
        cells.append(f'<div role="gridcell">{tile}</div>')
    return (
        f'<div class="pv-cmp-row" role="row"><div class="pv-cmp-rank" role="rowheader">{rank}</div>'
        f"{''.join(cells)}</div>"
    )


def _tile(place: Place, shown: Shown, c: int, left: str, first: bool) -> str:
    right = " pv-cmp-right" if place.right else ""
    return (
        f'<button type="button" class="pv-cmp-tile{right}" data-id="{place.image_id}" '
        f'data-row="{place.rank}" data-column="{c}" tabindex="{0 if first else -1}">'
        f'<span class="pv-cmp-pic">{image(shown)}{_RIGHT if place.right else ""}</span>'
        f'<span class="pv-cmp-foot">{_WRONG if place.right is False else ""}{_move(place, left)}'
        f'<span class="pv-cmp-score" title="score">{place.score:.3f}</span></span></button>'
    )


def _move(place: Place, left: str) -> str:
    """How a picture moved against the column to the left, for the eye and for the ear."""
    if place.left_rank is None:
        return '<span class="pv-cmp-move"></span>'
    if place.new:
        sign, way, said = "new", "new", f"rank {place.left_rank:,} in {left}"
    elif place.move == 0:
        sign, way, said = "=", "same", f"the same rank in {left}"
    else:
        move = place.move or 0
        sign, way = (f"▲{move}", "up") if move > 0 else (f"▼{-move}", "down")
        steps = "place" if abs(move) == 1 else "places"
        said = f"{abs(move)} {steps} {'higher' if move > 0 else 'lower'} than in {left}"
    return (
        f'<span class="pv-cmp-move pv-cmp-went-{way}" title="{text(said)}">'
        f'<span aria-hidden="true">{sign}</span><span class="pv-sr">{text(said)}</span></span>'
    )


def _facts(comparison: Comparison, pictures: Mapping[int, Shown]) -> str:
    """What opening a picture shows, for the script."""
    facts = {
        "columns": [column.title for column in comparison.columns],
        "k": comparison.k,
        "pictures": {
            image_id: {
                "file": shown.file,
                "captions": shown.captions[:_MOST_CAPTIONS],
                "address": shown.address,
                "ranks": comparison.ranks[image_id],
                "right": _word(image_id, comparison.truth),
            }
            for image_id, shown in pictures.items()
        },
    }
    return json.dumps(facts, ensure_ascii=False)


def _word(image_id: int, truth: Truth | None) -> str:
    if truth is None:
        return ""
    if image_id in truth.ids:
        return "✓ right"
    return "✗ wrong" if truth.complete else ""


def _ms(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 100 else f"{ms:,.0f} ms"
