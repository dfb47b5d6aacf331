"""What a question brings to its hits, for the page: tinted words and lit images."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from PIL import Image

from app.blocks.tabs.evidence import Split, split, visible
from app.blocks.tabs.html import line, render
from app.blocks.tabs.search.view import Result
from app.blocks.tabs.widgets import script
from app.explain.heatmaps import data_uri
from app.search.query import Term
from app.search.questions import Question
from app.search.retriever import Retriever

SCRIPT = script("evidence") + script("search/evidence")
INVITATION = line("", "Once you ask, each word shows what it adds and, pointed at, where it is.")
_OWN_SIDE = 168  # pixels of an image that is asked with


@dataclass(frozen=True)
class Hits:
    """Hits of which evidence can be shown; equal ones have equal evidence.

    Attributes:
        question: what they answer.
        spec: the method or ensemble that found them.
        image_ids: n images.
        sizes: width and height of each one's thumbnail.
        scores: of each.
    """

    question: Question
    spec: str
    image_ids: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    scores: tuple[float, ...]

    @property
    def key(self) -> str:
        """Which question of which method it is, so that the browser mixes no two."""
        return hashlib.sha256(repr((self.question, self.spec)).encode()).hexdigest()[:16]

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Hits | None":
        """Those of some results; None where nothing was asked."""
        hits = [result for result in results if result.rank]
        if not hits:
            return None
        return cls(
            hits[0].question,
            hits[0].spec,
            tuple(hit.image_id for hit in hits),
            tuple(hit.image.size for hit in hits),
            tuple(hit.score for hit in hits),
        )


def bar(hits: Hits, retriever: Retriever) -> Markup:
    """The words of a question, and what the browser needs to light the images.

    Args:
        hits: no more of them are lit than a page can hold.
        retriever: of the pack and its images.

    Raises:
        ValueError: the score of this question cannot be split.
    """
    terms, found = _split(hits, retriever)
    facts = {
        "of": hits.key, "grid": found.grid, "tops": found.tops(), "names": found.spoken(),
        "hits": _packed(found, hits, retriever), "time": found.by_time,
    }  # fmt: skip
    words = [(at, one.name) for at, one in enumerate(found.columns, start=1) if not one.cell]
    cells = [(at, one.name) for at, one in enumerate(found.columns, start=1) if one.cell]
    image = terms[0].image
    return render(
        "search/evidence",
        facts=json.dumps(facts),
        words=words,
        cells=cells,
        row=found.grid[1],
        own=data_uri(_seen(image, retriever), "WEBP") if image is not None and cells else "",
    )


def more(hits: Hits | None, retriever: Retriever) -> str:
    """The same of further hits of a question, as JSON; empty where there is none."""
    if hits is None:
        return ""
    try:
        _, found = _split(hits, retriever)
    except ValueError:
        return ""
    return json.dumps({"of": hits.key, "hits": _packed(found, hits, retriever)})


def _split(hits: Hits, retriever: Retriever) -> tuple[list[Term], Split]:
    """A question's terms and what they bring; of examples, each is one column."""
    terms = hits.question.terms(retriever)
    by_cell = not (hits.question.more or hits.question.less)
    found = split(retriever, terms, hits.spec, hits.image_ids, by_cell=by_cell)
    if found.seconds:
        return terms, found.over_time()
    if not found.has_places:
        raise ValueError(
            "This score is of each picture as a whole: open one to see which parts are like it."
        )
    return terms, found


def _packed(found: Split, hits: Hits, retriever: Retriever) -> dict[int, Any]:
    lit = range(min(len(hits.image_ids), found.most_lit()))
    packed = found.packed(lit, [visible(retriever, hits.sizes[place]) for place in lit])
    return dict(zip(hits.image_ids, packed, strict=False))


def _seen(image: Image.Image, retriever: Retriever) -> Image.Image:
    """The part of an image that the encoder sees, small and as wide as high as its cells are."""
    left, top, right, bottom = visible(retriever, image.size)
    box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
    return image.resize((_OWN_SIDE, _OWN_SIDE), box=box)
