"""Queries of several terms: reading them, and what their algebra does to scores."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyview.app.search.query import MAX_TERMS, Term, checked_k, combined, describe, parse
from polyview.app.search.retriever import Retriever
from tests.app.conftest import IMAGES


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


@pytest.mark.parametrize("text", ["dog +", "dog - + cat", "2: + cat", "2:", "1000: dog"])
def test_refuses_what_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"words after|weight must be"):
        parse(text)


def test_refuses_too_many_terms() -> None:
    with pytest.raises(ValueError, match=f"{MAX_TERMS + 1} terms"):
        parse(" + ".join(["dog"] * (MAX_TERMS + 1)))


@pytest.mark.parametrize("text", ["2: dog + beach - people", "a dog", "- 0.5: cat + dog"])
def test_writes_what_it_read(text: str) -> None:
    assert terms(" ".join(describe(parse(text), typed=True))) == terms(text)


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


@pytest.mark.parametrize("spec", ["nothing", "vsepp+nothing", "vsepp+vsepp", "", "+"])
def test_refuses_unknown_ensembles(retriever: Retriever, spec: str) -> None:
    with pytest.raises(ValueError, match=r"no method|twice"):
        retriever.scores(parse("a bar"), spec)


def test_says_how_it_was_read() -> None:
    times, minus = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"
    assert describe(parse("2: dog + beach - .5: people")) == [
        f"2 {times} dog",
        "+ beach",
        f"{minus} 0.5 {times} people",
    ]
    assert describe([Term(), *parse("dog")], "mine.png") == ["mine.png", "+ dog"]


def test_equal_terms_are_one() -> None:
    image, other = Image.new("RGB", (4, 4)), Image.new("RGB", (4, 4))
    values = [*parse("a  dog + cat + a dog - cat"), Term(image=image), Term(image=other)]
    stored = combined([*values, Term(image=image, weight=0.5)])
    assert [(term.weight, term.words) for term in stored] == [(2, "a  dog"), (1.5, ""), (1, "")]
    assert stored[1].image is image
    assert combined(parse("0.1: a + 0.2: a - 0.3: a")) == []


def test_a_view_wins_where_all_terms_agree(views_retriever: Retriever) -> None:
    terms, method = parse("a + picture of a pink bar"), views_retriever.methods["mv_vse"]
    results = views_retriever.search(terms, "mv_vse", IMAGES)
    images = views_retriever.gallery("mv_vse").views(range(IMAGES))
    expected = []
    for term in terms:
        scores = method.view_scores(images, views_retriever.views(term.words, "mv_vse"))
        expected.append(scores[..., 0].argmax(dim=0).tolist())
    agreed = 0
    for hit in results.hits:
        won = [views[hit.image_id] for views in expected]
        assert hit.view == (won[0] if won[0] == won[1] else None)
        agreed += won[0] == won[1]
    assert 0 < agreed < IMAGES


def test_an_ensemble_finds_captions(views_retriever: Retriever) -> None:
    image = Term(image=views_retriever.open(3))
    both = views_retriever.search([image], "vse_infty+mv_vse", 1, captions=5).captions
    totals: dict[tuple[str, int], float] = {}
    for name in ("vse_infty", "mv_vse"):
        for hit in views_retriever.search([image], name, 1, captions=1000).captions:
            key = (hit.text, hit.image_id)
            totals[key] = totals.get(key, 0.0) + hit.score / 2
    best = sorted(totals.values(), reverse=True)[:5]
    np.testing.assert_allclose([hit.score for hit in both], best, atol=1e-6)
    assert [totals[hit.text, hit.image_id] for hit in both] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("k", [0, 2.5, True, None, "3", float("nan")])
def test_k_is_a_whole_number(k: Any) -> None:
    assert checked_k(3) == 3
    with pytest.raises(ValueError, match="k must be a whole number of at least 1, not"):
        checked_k(k)
