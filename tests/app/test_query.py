"""Queries of several terms: reading them, and what their algebra does to scores."""

from __future__ import annotations

import numpy as np
import pytest

from app.query import MAX_TERMS, Term, parse, write
from app.retriever import Retriever


def terms(text: str) -> list[tuple[float, str]]:
    return [(term.weight, term.words) for term in parse(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a dog", [(1, "a dog")]),
        ("a t-shirt, 3:15 pm", [(1, "a t-shirt, 3:15 pm")]),
        ("2: dog + beach - people", [(2, "dog"), (1, "beach"), (-1, "people")]),
        ("- people", [(-1, "people")]),
        (" +  dog - .5: cat", [(1, "dog"), (-0.5, "cat")]),
        ("dog+beach", [(1, "dog+beach")]),
        ("", [(1, "")]),
    ],
)
def test_reads_terms(text: str, expected: list[tuple[float, str]]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize("text", ["dog +", "dog - + cat", "2: + cat", "1000: dog"])
def test_refuses_what_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"words after|weight must be"):
        parse(text)


def test_refuses_too_many_terms() -> None:
    with pytest.raises(ValueError, match=f"{MAX_TERMS + 1} terms"):
        parse(" + ".join(["dog"] * (MAX_TERMS + 1)))


@pytest.mark.parametrize("text", ["2: dog + beach - people", "a dog", "- 0.5: cat + dog"])
def test_writes_what_it_read(text: str) -> None:
    assert terms(write(parse(text))) == terms(text)


@pytest.mark.parametrize("spec", ["vsepp", "vse_infty", "vsepp+vse_infty"])
def test_algebra_of_scores(retriever: Retriever, spec: str) -> None:
    once = retriever.scores(parse("a red circle"), spec)
    twice = retriever.scores(parse("a red circle + a red circle"), spec)
    none = retriever.scores(parse("a red circle - a red circle"), spec)
    np.testing.assert_allclose(twice.values, 2 * once.values, rtol=1e-6)
    assert (twice.values.argsort() == once.values.argsort()).all()
    np.testing.assert_array_equal(none.values, 0)
    assert once.ids.tolist() == list(range(len(once.values)))


def test_an_ensemble_averages(retriever: Retriever) -> None:
    query = parse("2: a red circle - a bar")
    parts = [retriever.scores(query, name).values for name in ("vsepp", "vse_infty")]
    both = retriever.scores(query, "vsepp+vse_infty").values
    np.testing.assert_allclose(both, (parts[0] + parts[1]) / 2, atol=1e-6)


def test_a_picture_is_a_term(retriever: Retriever) -> None:
    picture = retriever.open(3)
    scores = retriever.scores([Term(image=picture)], "vse_infty")
    assert scores.ids[scores.values.argmax()] == 3


@pytest.mark.parametrize("spec", ["nothing", "vsepp+nothing", "vsepp+vsepp", "", "+"])
def test_refuses_unknown_ensembles(retriever: Retriever, spec: str) -> None:
    with pytest.raises(ValueError, match=r"no method|twice"):
        retriever.scores(parse("a bar"), spec)
