"""Evidence of answers adds up to what a search finds, and lies where the words' objects are."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.app.explain.evidence import Explained, explain
from polyview.app.search.answers import parse
from polyview.app.search.ranking import Term
from polyview.app.search.retriever import Retriever
from polyview.app.settings import BUNDLED
from polyview.export.methods import Methods
from polyview.export.pack.gallery import GalleryInfo, load_gallery
from polyview.export.pack.reading import load_info
from polyview.export.runtime import Runtime
from polyview.models.clip import CLIP
from polyview.models.evidence import Parts

SCENES = BUNDLED / "scenes"
TEXT = "a dog is higher in the picture than a top hat"
QUERIES = (TEXT, "2: a dog + grass - 0.5: people", "dog + dog")
IMAGES = [303, 951, 0, 303]


def sums(results: Explained) -> np.ndarray:
    """What the terms' evidence adds up to: (n,), or (n, V)."""
    return sum(
        (
            term.base.astype(np.float64)
            + term.whole_sentence.sum((-2, -1), dtype=np.float64)
            + term.cells.sum((-3, -2, -1), dtype=np.float64)
            for term in results.terms
        ),
        np.zeros_like(results.scores),
    )


def own_scores(retriever: Retriever, query: str, spec: str) -> np.ndarray:
    """The scores of `IMAGES`, by the methods themselves."""
    names, scores = spec.split("+"), np.zeros(len(IMAGES))
    for name in names:
        method = retriever.methods[name]
        for row, image_id in enumerate(IMAGES):
            image = retriever.views([image_id], name)
            for term in parse(query):
                score = float(method.score(image, retriever.views(term.words, name)))
                scores[row] += term.weight * score / len(names)
    return scores


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("spec", [*load_info(SCENES).methods, "vse_infty+pvse", "mvam+avse+vsepp"])
def test_evidence_adds_up_to_the_score(scenes: Retriever, spec: str, query: str) -> None:
    results = explain(scenes, parse(query), spec, IMAGES)
    np.testing.assert_allclose(
        results.scores, own_scores(scenes, query, spec), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(sums(results), results.scores, rtol=1e-4, atol=1e-6)
    assert results.grid == (7, 7)
    for term in results.terms:
        assert list(term.words) == scenes.read(term.term.words).words
        assert term.cells.shape == (len(IMAGES), 7, 7, len(term.words))
        np.testing.assert_array_equal(term.cells[0], term.cells[3])
    assert len(results.terms) == (3 if "people" in query else 1)


@pytest.mark.parametrize("name", load_info(SCENES).methods)
def test_evidence_of_views_adds_up_to_their_scores(scenes: Retriever, name: str) -> None:
    results = explain(scenes, [Term(TEXT)], name, IMAGES, per_view=True)
    text = scenes.views(TEXT, name)
    for row, image_id in enumerate(IMAGES):
        expected = scenes.methods[name].view_scores(scenes.views([image_id], name), text)[:, 0, 0]
        np.testing.assert_allclose(results.scores[row], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sums(results), results.scores, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mv_vse", "avse"])
def test_a_picture_and_words_are_explained_as_one_question(scenes: Retriever, name: str) -> None:
    terms = [Term(image=scenes.open(303), weight=2.0), Term("snow")]
    results = explain(scenes, terms, name, [303, 12])
    query, words = results.terms
    assert query.words == ()
    assert query.cells.shape == (2, 7, 7, 49)
    assert words.words == ("snow",)
    np.testing.assert_allclose(sums(results), results.scores, rtol=1e-4, atol=1e-6)


def _two_things(gallery: GalleryInfo, retriever: Retriever) -> list[tuple[int, str, str]]:
    """Scenes with two things that are there once and have a name of one known word."""
    results = []
    known = set(retriever.runtime.reader.words())
    for image_id, image in enumerate(gallery.images[:120]):
        names = [entry.name for entry in image.objects]
        single = [name for name in names if names.count(name) == 1 and name in known]
        if len(single) > 1:
            results.append((image_id, single[0], single[1]))
    return results


@pytest.mark.parametrize(("name", "share"), [("vse_infty", 0.95), ("mv_vse", 0.95), ("avse", 0.9)])
def test_a_word_is_found_where_its_object_is(scenes: Retriever, name: str, share: float) -> None:
    gallery = load_gallery(SCENES)
    hits = []
    for image_id, *names in _two_things(gallery, scenes):
        results = explain(scenes, [Term(f"a {names[0]} and a {names[1]}")], name, [image_id])
        (term,) = results.terms
        for entry in names:
            row, column = divmod(int(term.cells[0, ..., term.words.index(entry)].argmax()), 7)
            boxes = [t.box for t in gallery.images[image_id].objects if t.name == entry]
            left, top, right, bottom = (7 * side for side in boxes[0])
            hits.append(left < column + 1 and column < right and top < row + 1 and row < bottom)
    assert len(hits) > 100
    print(np.mean(hits), len(hits))
    assert np.mean(hits) > share


def test_a_summary_has_no_place_but_adds_up(scenes: Retriever) -> None:
    """An encoder's [CLS] stands before the cells; it is no cell, and belongs to the base."""
    method = CLIP(4, 4, 4).eval()
    images, text = (Parts.of(torch.randn(2, 1, 1 + 4, 4)).unit() for _ in range(2))
    runtime = SimpleNamespace(regions=None, grid=(2, 2))
    runtime.on_grid = lambda values: Runtime.on_grid(cast("Runtime", runtime), values)
    pretended = SimpleNamespace(
        methods=Methods({"clip": method}, scenes.info),
        runtime=runtime,
        reads_sets=False,
        grid=runtime.grid,
        subject=lambda term: term.image,
        parts=lambda subject, _: text if isinstance(subject, Image.Image) else images,
    )
    term = Term(image=Image.new("RGB", (2, 2)))
    results = explain(cast("Retriever", pretended), [term], "clip", [0, 1])
    (seen,) = results.terms
    rows = torch.einsum("bnd,bmd->bnm", images.rows[:, 0], text.rows[:, 0])
    np.testing.assert_allclose(seen.cells.reshape(2, 4, 4), rows[:, 1:5, 1:5], atol=1e-6)
    np.testing.assert_allclose(seen.whole_sentence.reshape(2, 4), rows[:, 1:5, 0], atol=1e-6)
    np.testing.assert_allclose(seen.base, rows[:, 0].sum(1), atol=1e-6)
    np.testing.assert_allclose(sums(results), rows.sum((1, 2)), atol=1e-6)


def test_terms_that_cancel_out_have_no_evidence(scenes: Retriever) -> None:
    results = explain(scenes, parse("dog - dog"), "vsepp", [3])
    assert results.terms == ()
    assert results.scores.tolist() == [0.0]


@pytest.mark.parametrize(
    ("query", "spec", "images", "per_view", "sentence"),
    [
        ("a dog", "nope", [0], False, "no method"),
        ("a dog", "vsepp+mvam", [0], True, "one at a time"),
        ("a dog", "vsepp", [1000], False, "no image 1000"),
        ("?", "vsepp", [0], False, "word"),
    ],
)
def test_nonsense_gets_a_sentence(
    scenes: Retriever, query: str, spec: str, images: list[int], per_view: bool, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        explain(scenes, [Term(query)], spec, images, per_view=per_view)
