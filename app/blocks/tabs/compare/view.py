"""What the Compare tab's templates get: aligned columns, matrices, what one method alone found."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup
from PIL import Image

from app.blocks.tabs.html import render
from app.blocks.tabs.images import Listed, at
from app.search.comparison import Comparison, Place, Truth
from app.search.curated import Example
from app.search.query import MINUS

_MOST_CAPTIONS = 5  # of an image, in the dialog that opens


@dataclass(frozen=True)
class Sheet:
    """A comparison with what is known about its images.

    Attributes:
        comparison: what was found.
        images: every image that a column lists, by its id.
        gallery: what was searched, for people.
        image: what was asked with, small; None where it was words.
    """

    comparison: Comparison
    images: Mapping[int, Listed]
    gallery: str
    image: Image.Image | None = None


class _Move(NamedTuple):
    """How an image moved against the column to the left, for the eye and for the ear."""

    sign: str
    way: str
    words: str


class _Cell(NamedTuple):
    """What a cell shows, what it says in full, and how strong its tint is, 0 to 100."""

    shown: str = ""
    full: str = ""
    tint: float = 0.0


def columns(comparison: Comparison, images: Mapping[int, Listed]) -> Markup:
    """The whole answer.

    Args:
        comparison: what to show.
        images: what is known about every image that a column lists.
    """
    alone = [
        (number, column, places)
        for number, (column, places) in enumerate(
            zip(comparison.columns, comparison.only_found, strict=True), start=1
        )
        if places
    ]
    titles = [column.title for column in comparison.columns]
    return render(
        "compare/columns",
        comparison=comparison,
        columns=comparison.columns,
        images=images,
        depth=max(len(column.places) for column in comparison.columns),
        facts=json.dumps(_facts(comparison, images), ensure_ascii=False),
        moved=_moved,
        alone=alone,
        none_right=comparison.truth is not None
        and not any(column.right_in_list for column in comparison.columns),
        matrices=_matrices(titles, comparison.k, comparison),
        titles=titles,
    )


def ghost(titles: Sequence[tuple[str, str]], k: int) -> Markup:
    """The columns before a question: as large as those of the answer, so that nothing will move.

    Args:
        titles: (title, paper) of each column.
        k: how many ranks.
    """
    names = [title for title, _ in titles]
    matrices = _matrices(names, k)
    return render("compare/ghost", columns=titles, k=k, titles=names, matrices=matrices)


def examples(found: Sequence[Example], others: Sequence[str]) -> Markup:
    """Queries to try: those where methods differ, or else plain captions."""
    chips = [(e.caption, e.why) for e in found] or [(words, "") for words in others if words]
    title = "Where they differ" if found else "To try"
    return render("compare/examples", title=title, chips=chips)


def asked_image(listed: Listed, image_id: int) -> Markup:
    """The gallery's image that would be asked with."""
    return render("compare/asked", listed=listed, image_id=image_id)


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


def elsewhere(titles: Sequence[str]) -> Markup:
    """Why some open packs are not offered; nothing where all are."""
    return render("compare/elsewhere", titles=titles) if titles else Markup()


def explanation() -> Markup:
    """What the tab shows, in plain words."""
    return render("compare/about")


def _matrices(
    titles: Sequence[str], k: int, comparison: Comparison | None = None
) -> list[dict[str, Any]]:
    """Two tables of how far each two columns agree; empty cells where nothing was compared yet."""
    shares = [[_Cell()] * len(titles)] * len(titles)
    taus = [[_of_tau(None)] * len(titles)] * len(titles)
    if comparison is not None:
        shares = [[_of_share(100 * value) for value in row] for row in comparison.overlap]
        taus = [[_of_tau(value) for value in row] for row in comparison.tau]
    return [
        {
            "title": f"Overlap@{k}",
            "note": f"Per cent of the top {k} that two columns share.",
            "rows": shares,
        },
        {
            "title": "Kendall's τ",
            "note": "How alike two columns order what either has in its top "
            f"{k}: 1 the same, 0 unrelated, {MINUS}1 opposite.",
            "rows": taus,
        },
    ]


def _of_share(percent: float) -> _Cell:
    return _Cell(f"{percent:.0f}", f"{percent:.0f} %", percent)


def _of_tau(tau: float | None) -> _Cell:
    """A tau; .6 is shown where 0.63 is meant."""
    if tau is None:
        return _Cell(full="not defined")
    shown, sign = f"{abs(tau):.1f}".removeprefix("0"), MINUS if tau < 0 else ""
    shown = "0" if shown == ".0" else f"{sign}{shown}"
    return _Cell(shown, f"{sign}{abs(tau):.2f}", 100 * max(0.0, tau))


def _moved(place: Place, left: str) -> _Move | None:
    """How an image moved against the column `left`; None where there is nothing to say."""
    if place.left_rank is None:
        return None
    if place.new:
        return _Move("new", "new", f"rank {place.left_rank:,} in {left}")
    move = place.move or 0
    if move == 0:
        return _Move("=", "same", f"the same rank in {left}")
    steps = "1 place" if abs(move) == 1 else f"{abs(move)} places"
    if move > 0:
        return _Move(f"▲{move}", "up", f"{steps} higher than in {left}")
    return _Move(f"▼{-move}", "down", f"{steps} lower than in {left}")


def _facts(comparison: Comparison, images: Mapping[int, Listed]) -> dict[str, Any]:
    """What opening an image shows, for compare.js; of a clip, when each column's frame is shown."""
    files = {place.image_id: place.file_id for c in comparison.columns for place in c.places}
    moments = [
        {place.file_id: images[place.image_id].clock for place in column.places}
        for column in comparison.columns
    ]
    return {
        "columns": [column.title for column in comparison.columns],
        "k": comparison.k,
        "pictures": {
            image_id: {
                "file": listed.file,
                "captions": listed.captions[:_MOST_CAPTIONS],
                "address": listed.address,
                "ranks": comparison.ranks[image_id],
                "moment": f"The frame {at(listed.moment)}" if listed.moment else "",
                "moments": [shown.get(files[image_id], "") for shown in moments],
                "right": _judged(files[image_id], comparison.truth),
            }
            for image_id, listed in images.items()
        },
    }


def _judged(file_id: int, truth: Truth | None) -> str:
    if truth is None:
        return ""
    if file_id in truth.ids:
        return "✓ right"
    return "✗ wrong" if truth.complete else ""
