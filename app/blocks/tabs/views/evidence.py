"""What a text finds in one image: the evidence of its score and of each view's, word by word."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from markupsafe import Markup
from PIL import Image

from app.blocks.tabs.evidence import columns_of
from app.blocks.tabs.html import render
from app.blocks.tabs.views.charts import note
from app.blocks.tabs.views.view import IMAGE_SIDE, Shown
from app.blocks.tabs.widgets import script
from app.explain.evidence import Explained, explain
from app.explain.heatmaps import data_uri
from app.search.query import Term
from app.search.retriever import Retriever

SCRIPT = script("evidence") + script("views/evidence")


def draw(
    retriever: Retriever, shown: Shown, image_id: int | None, name: str, text: str, views: int
) -> Markup:
    """The image lit by the score's evidence and by each view's, and a small map for each word.

    Args:
        retriever: the pack and its images.
        shown: the image.
        image_id: the same in the collection; None where it is not in there.
        name: a method.
        text: to look for; without words there is no evidence.
        views: how many of an image the method makes.
    """
    if not text.strip():
        return note("Type a sentence above to see where in the picture each of its words is found.")
    images: Sequence[int] | Image.Image = shown.image if image_id is None else [image_id]
    try:
        whole = explain(retriever, [Term(text)], name, images)
        if views > 1:
            whole = _with_views(
                whole, explain(retriever, [Term(text)], name, images, per_view=True)
            )
        found = columns_of(whole)
    except ValueError as error:
        return note(str(error))
    if not found.has_places:
        return note("No part of the picture brings anything: this method reads it as a whole.")
    drawn = range(min(len(found.scores), found.most_lit()))
    facts = {
        "grid": found.grid,
        "tops": found.tops(),
        "names": found.spoken(),
        "time": not shown.smooth,
        "hits": found.packed(drawn, [shown.seen] * len(drawn)),
    }
    under = shown.image.copy()
    under.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    return render(
        "views/evidence",
        facts=json.dumps(facts),
        names=found.names(),
        titles=["The score", *(f"View {view + 1}" for view in range(views))][: len(drawn)],
        scores=found.scores,
        under=data_uri(under, "WEBP"),
        shown=shown,
    )


def _with_views(whole: Explained, views: Explained) -> Explained:
    """The score and each view of one image, as if they were several images."""
    return replace(
        whole,
        scores=np.concatenate([whole.scores, views.scores[0]]),
        seconds=whole.seconds * (1 + views.scores.shape[1]),
        terms=tuple(
            replace(
                term,
                cells=np.concatenate([term.cells, view.cells[0]]),
                whole_sentence=np.concatenate([term.whole_sentence, view.whole_sentence[0]]),
                base=np.concatenate([term.base, view.base[0]]),
            )
            for term, view in zip(whole.terms, views.terms, strict=True)
        ),
    )
