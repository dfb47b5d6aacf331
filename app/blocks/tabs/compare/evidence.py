"""Maps inside the columns: what the words of the question bring to each column's images."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.blocks.tabs.evidence import MAX_VALUES, Split, split, visible
from app.blocks.tabs.html import render
from app.blocks.tabs.images import Listed
from app.blocks.tabs.widgets import script
from app.packs.columns import Columns
from app.search.comparison import Comparison
from app.search.questions import Question
from app.search.retriever import Retriever
from models.preprocess import Box

SCRIPT = script("evidence") + script("compare/evidence")
_TOGETHER = "its score is of all frames of a clip; open one in Search to see which"
_Word = tuple[int, str, int]  # its term, how it is read, and which of several such it is


@dataclass(frozen=True, eq=False)
class Lists:
    """What columns list, of which evidence can be shown; no two answers are equal.

    Attributes:
        question: that was asked.
        titles: of the columns, for people, by their keys.
        image_ids: of each column's images, best first.
        images: what is known about them.
    """

    question: Question
    titles: Mapping[str, str]
    image_ids: tuple[tuple[int, ...], ...]
    images: Mapping[int, Listed]

    @classmethod
    def of(
        cls, question: Question, comparison: Comparison, images: Mapping[int, Listed]
    ) -> "Lists":
        """Those of a comparison."""
        return cls(
            question,
            {column.key: column.title for column in comparison.columns},
            tuple(tuple(place.image_id for place in c.places) for c in comparison.columns),
            images,
        )


def bar(lists: Lists, offered: Columns) -> Markup:
    """The words of a question, and what the browser needs to light the columns.

    Words that several columns' methods read alike are one button. Methods that cannot be split, or
    bring nothing from any cell, are named.

    Args:
        lists: what the columns list.
        offered: the columns that there are.

    Raises:
        ValueError: the question cannot be asked any more.
    """
    terms = lists.question.terms(offered.home)
    lit: list[tuple[int, str, Split, list[Box]]] = []
    without: list[tuple[str, str]] = []  # title of a column, and why it is not lit
    for c, (key, title) in enumerate(lists.titles.items()):
        retriever, spec = offered.asked(key)
        try:
            found = split(retriever, terms, spec, _own(offered, retriever, lists.image_ids[c]))
        except ValueError as error:
            without.append((title, str(error)))
            continue
        boxes = [visible(retriever, lists.images[i].size) for i in lists.image_ids[c]]
        if found.seconds:
            without.append((title, _TOGETHER))
        elif found.has_places:
            lit.append((c, title, found, boxes))
        else:
            without.append((title, "its score comes from the picture as a whole, not from a part"))
    if not lit and all(why == _TOGETHER for _, why in without):
        raise ValueError(
            "These scores are of all frames of a clip: open one in Search to see which."
        )
    words = buttons([found for _, _, found, _ in lit])
    maps = sum(len(found.columns) * found.grid[0] * found.grid[1] for _, _, found, _ in lit)
    depth = max(1, MAX_VALUES // max(maps, 1))
    facts = {
        "names": [lit[0][2].spoken()[0] if lit else "", *(spoken for _, spoken in words.values())],
        "columns": [
            {
                "column": c,
                "title": title,
                "grid": found.grid,
                "tops": found.tops(),
                "at": [0, *(places(found).get(word) for word in words)],
                "hits": dict(
                    zip(
                        lists.image_ids[c],
                        found.packed(range(len(boxes[:depth])), boxes[:depth]),
                        strict=False,
                    )
                ),
            }
            for c, title, found, boxes in lit
        ],
    }
    most = max(len(ids) for ids in lists.image_ids)
    return render(
        "compare/evidence",
        facts=json.dumps(facts),
        words=[name for name, _ in words.values()],
        without=without,
        depth=depth if depth < most else None,
    )


def _own(offered: Columns, retriever: Retriever, image_ids: Sequence[int]) -> list[int]:
    """The ids that the images of a column have in its pack."""
    if retriever is offered.home:
        return list(image_ids)
    return [retriever.nearest(offered.home.image(one)) for one in image_ids]


def places(found: Split) -> dict[_Word, int]:
    """Where the words of a column are among its maps, counted from 1."""
    seen: Counter[tuple[int, str]] = Counter()
    places = {}
    for place, column in enumerate(found.columns, start=1):
        word = (column.term, column.name.casefold())
        seen[word] += 1
        places[(*word, seen[word])] = place
    return places


def buttons(columns: Sequence[Split]) -> dict[_Word, tuple[str, str]]:
    """The words of all columns, term by term, each once: for a button, and in a sentence."""
    names: dict[_Word, tuple[str, str]] = {}
    for found in columns:
        for word, place in places(found).items():
            names.setdefault(word, (found.names()[place], found.spoken()[place]))
    return dict(sorted(names.items(), key=lambda item: item[0][0]))
