"""What the Search tab makes of evidence: words that add up, maps as they reach the browser."""

import base64
import json
import re
from html import unescape

import numpy as np
import pytest

from app.blocks.tabs.compare.evidence import buttons, places
from app.blocks.tabs.evidence import MAX_VALUES, WHOLE, Column, Split, split
from app.blocks.tabs.images import Listed
from app.blocks.tabs.search.evidence import Hits, bar
from app.blocks.tabs.search.view import Result
from app.search.query import Term, parse
from app.search.questions import Question
from app.search.retriever import Retriever


@pytest.mark.parametrize("spec", ["vse_infty", "avse", "pvse", "mvam+mv_vse"])
@pytest.mark.parametrize("words", ["a red circle", "2: a red circle + a bar - a pink circle"])
def test_words_and_rest_add_up_to_the_score(
    many_retriever: Retriever, spec: str, words: str
) -> None:
    terms, ids = parse(words), (3, 0, 7)
    scores = many_retriever.scores(terms, spec)
    place = {int(image): i for i, image in enumerate(scores.ids)}
    hits = Hits(Question("words", words), spec, ids, ((30, 20), (20, 30), (9, 9)), (0.0,) * 3)
    html = bar(hits, many_retriever)
    data = re.search(r'data-evidence="([^"]*)"', html)
    assert data is not None
    facts = json.loads(unescape(data[1]))
    assert facts["names"][0] == "the words together"
    for image in ids:
        hit = facts["hits"][str(image)]
        wanted = scores.values[place[image]]
        assert hit["sums"][0] + hit["rest"] == pytest.approx(wanted, abs=3e-4)
        assert sum(hit["sums"][1:]) == pytest.approx(hit["sums"][0], abs=1e-3)
        cells = np.frombuffer(base64.b64decode(hit["cells"]), np.int8) * hit["scale"]
        each = cells.reshape(len(facts["names"]) - 1, -1)
        assert each.sum(axis=1) == pytest.approx(hit["sums"][1:], abs=hit["scale"] * each.shape[1])
        assert (np.abs(each).max(axis=1) <= np.array(facts["tops"][1:]) + hit["scale"]).all()


def test_a_sample_has_no_evidence() -> None:
    assert Hits.of([Result(1, Listed("a.png", (), None))]) is None


def test_a_page_gets_no_more_values_than_it_can_hold() -> None:
    rng = np.random.default_rng(0)
    grid = (32, 32)
    words = tuple(Column(f"word {i}", rng.normal(size=(5, *grid))) for i in range(300))
    found = Split(np.ones(5), words)
    lit = found.most_lit()
    assert lit * len(words) * grid[0] * grid[1] <= MAX_VALUES < (lit + 1) * len(words) * 32 * 32
    assert Split(np.ones(1), words * 20).most_lit() == 1  # the first one always is


def test_the_cells_of_an_image_asked_with_add_up_to_its_one_column(
    many_retriever: Retriever,
) -> None:
    terms = [Term(image=many_retriever.open(2)), Term("a red circle", weight=2.0)]
    whole = split(many_retriever, terms, "mv_vse", (3, 0))
    cells = split(many_retriever, terms, "mv_vse", (3, 0), by_cell=True)
    own = [column for column in cells.columns if column.cell]
    assert len(own) == np.prod(whole.grid)
    np.testing.assert_allclose(sum(c.maps for c in own), whole.columns[0].maps, atol=1e-6)
    np.testing.assert_allclose(cells.rest, whole.rest, atol=1e-6)


def test_words_that_methods_read_alike_are_one_button(many_retriever: Retriever) -> None:
    terms = parse("a red circle beside a bar - a pink circle")
    columns = [split(many_retriever, terms, spec, (3, 0)) for spec in ("vse_infty", "pvse")]
    names = [name for name, _ in buttons(columns).values()]
    expected = ["a", "red", "circle", "beside", "a", "bar", "a", "pink", "circle"]
    assert [name for name in names if name != WHOLE] == expected
    assert names.count(WHOLE) == 2  # PVSE's, of either term
    for found in columns:
        at = places(found)
        assert sorted(at.values()) == list(range(1, len(found.columns) + 1))
        assert all(buttons(columns)[word][0] == found.names()[place] for word, place in at.items())
