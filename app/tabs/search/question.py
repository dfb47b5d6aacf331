"""A question of the Search tab: what the widgets beside it hold, and how they show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from app.asking import Ask
from app.filters import Wanted
from app.pictures import PictureError, open_picture
from app.query import checked, parse
from app.retriever import Retriever

_ENSEMBLES = 3
_PREVIEW = 480  # pixels of an uploaded picture's longer side as shown


@dataclass(frozen=True)
class Choices:
    """What stands beside a question, in the order of `SearchTab._choices`.

    Attributes:
        method: a method or an ensemble.
        count: how many pictures.
        asked: the questions so far.
        picture: the uploaded picture that is part of the next question, or a sample for none.
        weight: of that picture.
        values: what is wanted of each fact, in the order of `filters.offered`.
    """

    method: str
    count: int
    asked: tuple[Ask, ...]
    picture: Ask
    weight: float
    values: tuple[list[str], ...]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Choices:
        """From the values of the widgets."""
        method, count, asked, picture, weight, *values = given
        return cls(method, count, tuple(asked), picture, weight, tuple(v or [] for v in values))


def has_several_views(retriever: Retriever, spec: str) -> bool:
    """Whether a picture has several views, of which one can win."""
    names = retriever.methods_of(spec)
    shape = retriever.index.images[names[0]].shape
    return len(names) == 1 and shape is not None and shape[0] > 1


def method_choices(retriever: Retriever, chosen: str) -> list[tuple[str, str]]:
    """What can be chosen as the method: (what is read, value)."""
    single = [(f"{m.title} ({m.paper})", name) for name, m in retriever.runtime.methods.items()]
    specs = dict.fromkeys(retriever.ensembles(_ENSEMBLES))
    if chosen not in retriever.runtime.methods:
        specs[chosen] = None
    return single + [(f"{retriever.title_of(spec)} (ensemble)", spec) for spec in specs]


def filter_drawer(wanted: Wanted, visible: bool = True) -> gr.Accordion:
    """The drawer's label, which tells of filters that are set even while it is closed."""
    chosen = sum(map(len, wanted.values()))
    return gr.Accordion(label=f"Filters ({chosen})" if chosen else "Filters", visible=visible)


def wanted_of(retriever: Retriever, values: Sequence[list[str]]) -> dict[str, list[str]]:
    """Filters by the names of their facts."""
    facts = zip(retriever.collection.facts, values, strict=False)
    return {fact: chosen for fact, chosen in facts if chosen}


def preview(picture: Ask) -> Image.Image | None:
    """An uploaded picture as shown; None where there is none that can be."""
    if picture.kind != "upload":
        return None
    try:
        shown = open_picture(Path(picture.path))
    except PictureError:
        return None  # the answer says why
    shown.thumbnail((_PREVIEW, _PREVIEW))
    return shown


def looked_for(ask: Ask) -> str:
    """The sentence of a question; of several terms the one that weighs most, of a picture none."""
    if not ask.words.strip():
        return ""
    heaviest = max(parse(checked(ask.words)), key=lambda term: term.weight)
    return heaviest.words
