"""A question of the Search tab: what the widgets beside it hold, and how they show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.search.filters import Filters
from app.search.query import checked, parse
from app.search.questions import Question
from app.search.retriever import Retriever

_ENSEMBLES = 3


@dataclass(frozen=True)
class Inputs:
    """What stands beside a question, in the order of `SearchTab._inputs`.

    Attributes:
        method: a method or an ensemble.
        questions: the questions so far.
        path: of the uploaded image that is part of the next question; empty for none.
        weight: of that image.
        values: what is wanted of each fact, in the order of `filters.offered`.
    """

    method: str
    questions: tuple[Question, ...]
    path: str
    weight: float
    values: tuple[list[str], ...]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Inputs:
        """From the values of the widgets."""
        method, questions, path, weight, *values = given
        return cls(method, tuple(questions), path, weight, tuple(v or [] for v in values))


def has_several_views(retriever: Retriever, spec: str) -> bool:
    """Whether an image has several views, of which one can win."""
    names = retriever.methods.names(spec)
    shape = retriever.gallery(names[0]).shape
    return len(names) == 1 and shape is not None and shape[0] > 1


def method_choices(retriever: Retriever, chosen: str) -> list[tuple[str, str]]:
    """What can be chosen as the method: (what is read, value)."""
    single = [(f"{m.title} ({m.paper})", name) for name, m in retriever.methods.items()]
    specs = dict.fromkeys(retriever.methods.ensembles(_ENSEMBLES))
    if chosen not in retriever.methods:
        specs[chosen] = None
    return single + [(f"{retriever.methods.title(spec)} (ensemble)", spec) for spec in specs]


def filter_drawer(filters: Filters, visible: bool = True) -> gr.Accordion:
    """The drawer's label, which tells of filters that are set even while it is closed."""
    chosen = sum(map(len, filters.wanted.values()))
    return gr.Accordion(label=f"Filters ({chosen})" if chosen else "Filters", visible=visible)


def filters_of(retriever: Retriever, values: Sequence[list[str]]) -> Filters:
    """Filters from the values chosen for each fact."""
    facts = zip(retriever.collection.facts, values, strict=False)
    return Filters.of(retriever.collection, dict(facts))


def looked_for(question: Question) -> str:
    """The sentence of a question; of several terms the one that weighs most, of an image none."""
    if not question.words.strip():
        return ""
    heaviest = max(parse(checked(question.words)), key=lambda term: term.weight)
    return heaviest.words
