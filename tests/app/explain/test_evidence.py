"""Evidence adds up to the scores of a search, and is located at the words' objects."""

import numpy as np
import pytest

from polyview.app.api.search import parse
from polyview.app.explain.evidence import QueryEvidence, explain
from polyview.app.search.retriever import Retriever, Term
from polyview.app.settings import BUNDLED
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import read_info

SCENES = BUNDLED / "scenes"
TEXT = "a dog is higher in the picture than a top hat"
# queries, and the number of terms with a nonzero weight
QUERIES = {TEXT: 1, "2: a dog + grass - 0.5: people": 3, "dog + dog": 1, "dog - dog": 0}
IMAGES = [303, 0, 303]


def sums(results: QueryEvidence) -> np.ndarray:
    """The sums of the evidence: (n,), or (n, V) per view."""
    whole, cells = results.whole_sentence.sum((-2, -1)), results.cells.sum((-3, -2, -1))
    return np.asarray(results.base + whole + cells)


@pytest.mark.parametrize("spec", [*read_info(SCENES).methods, "mvam+avse+vsepp"])
def test_evidence_adds_up_to_the_score(scenes: Retriever, spec: str) -> None:
    names = spec.split("+")
    for query, count in QUERIES.items():
        results, expected = explain(scenes, parse(query), spec, IMAGES), np.zeros(len(IMAGES))
        for name in names:
            for term in parse(query):
                text, images = scenes.views(term.words, name), scenes.views(IMAGES, name)
                scores = scenes.methods[name].score(images, text)[:, 0].numpy()
                expected += term.weight * scores / len(names)
        np.testing.assert_allclose(results.scores, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(sums(results), results.scores, rtol=1e-4, atol=1e-6)
        assert results.grid == (7, 7)
        words = [scenes.tokenize(term.words).words for term in results.terms]
        assert list(results.words) == [word for part in words for word in part]
        assert [term.count for term in results.terms] == list(map(len, words))
        assert results.cells.shape == (len(IMAGES), 7, 7, len(results.words))
        np.testing.assert_array_equal(results.cells[0], results.cells[2])
        assert len(results.terms) == count


@pytest.mark.parametrize("name", read_info(SCENES).methods)
def test_evidence_of_views_adds_up_to_their_scores(scenes: Retriever, name: str) -> None:
    results = explain(scenes, [Term(TEXT)], name, IMAGES, per_view=True)
    text = scenes.views(TEXT, name)
    for row, image_id in enumerate(IMAGES):
        expected = scenes.methods[name].view_scores(scenes.views([image_id], name), text)[:, 0, 0]
        np.testing.assert_allclose(results.scores[row], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sums(results), results.scores, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="choose one of them"):
        explain(scenes, [Term(TEXT)], "vsepp+mvam", IMAGES, per_view=True)


@pytest.mark.parametrize("name", ["mv_vse", "avse"])
def test_evidence_of_an_image_and_words(scenes: Retriever, name: str) -> None:
    terms = [Term(image=scenes.image(303).decode(), weight=2.0), Term("snow")]
    results = explain(scenes, terms, name, [303, 12])
    assert [(term.words, term.count) for term in results.terms] == [("", 0), ("snow", 1)]
    assert results.words == ("",) * 49 + ("snow",)
    assert results.cells.shape == (2, 7, 7, 50)
    np.testing.assert_allclose(sums(results), results.scores, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "share"), [("mv_vse", 0.95), ("avse", 0.9)])
def test_evidence_of_a_word_is_at_its_object(scenes: Retriever, name: str, share: float) -> None:
    """In scenes with two unique objects whose names are one known word."""
    known, hits = scenes.runtime.reader.words, []
    for image_id, image in enumerate(load_gallery(SCENES).images[:40]):
        names = [entry.name for entry in image.objects]
        boxes = {e.name: e.box for e in image.objects if names.count(e.name) == 1}
        pair = [entry for entry in boxes if entry in known][:2]
        if len(pair) < 2:
            continue
        results = explain(scenes, [Term(f"a {pair[0]} and a {pair[1]}")], name, [image_id])
        for entry in pair:
            place = int(results.cells[0, ..., results.words.index(entry)].argmax())
            row, column = divmod(place, 7)
            left, top, right, bottom = (7 * side for side in boxes[entry])
            hits.append(left < column + 1 and column < right and top < row + 1 and row < bottom)
    assert len(hits) > 35
    assert np.mean(hits) > share
