"""What the Search tab makes of evidence: words that add up, maps as they reach the browser."""

import base64
import json
import re
from html import unescape

import numpy as np
import pytest

from app.search.query import parse
from app.search.questions import Question
from app.search.retriever import Retriever
from app.tabs.evidence import split
from app.tabs.images import Listed
from app.tabs.search.evidence import Hits, bar
from app.tabs.search.view import Result


@pytest.mark.parametrize("spec", ["vse_infty", "avse", "pvse", "mvam+mv_vse"])
@pytest.mark.parametrize("words", ["a red circle", "2: a red circle + a bar - a pink circle"])
def test_words_and_rest_add_up_to_the_score(
    many_retriever: Retriever, spec: str, words: str
) -> None:
    terms, ids = parse(words), (3, 0, 7)
    found = split(many_retriever, terms, spec, ids)
    scores = many_retriever.scores(terms, spec)
    place = {int(image): i for i, image in enumerate(scores.ids)}
    hits = Hits(Question("words", words), spec, ids, ((30, 20), (20, 30), (9, 9)), (0.0,) * 3)
    html = bar(found, hits, many_retriever)
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
