"""Queries of one or several terms, compared with the scores of the methods."""

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyview.app.api.search import parse
from polyview.app.gallery.index import Gallery, subsample
from polyview.app.refusal import Refusal
from polyview.app.search import retriever as module
from polyview.app.search.retriever import Retriever, Term, combine_terms
from polyview.export.pack.calibration import Calibration
from polyview.export.pack.schema import Metrics
from polyview.export.runtime import Methods, Runtime
from tests.app.conftest import IMAGES, find


def test_wrong_queries(retriever: Retriever) -> None:
    wrong: list[tuple[str, Any, int, str]] = [
        (" \n ", "vsepp", 3, "the text is empty"),
        ("a bar", "nope", 3, 'no method "nope" in this pack; choose one of vsepp, vse_infty'),
        ("a bar", ["vsepp"], 3, "there is no method"),
        ("a bar", "vsepp+nothing", 3, "there is no method"),
        ("a bar", "vsepp+vsepp", 3, "twice"),
        ("a bar", "+", 3, "there is no method"),
        ("a bar", "vsepp", 0, "k must be at least 1, not 0"),
    ]
    for text, spec, k, sentence in wrong:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            find(retriever, text, spec, k)


def test_algebra_of_scores(retriever: Retriever) -> None:
    def scores(text: str, spec: str) -> np.ndarray:
        return retriever.scores(parse(text), spec).values

    for spec in ("vsepp", "vsepp+vse_infty"):
        circle, bar = scores("a red circle", spec), scores("a bar", spec)
        both = scores("2: a red circle - a bar", spec)
        np.testing.assert_allclose(both, 2 * circle - bar, atol=1e-6)
        twice = scores("a red circle + a red circle", spec)
        np.testing.assert_allclose(twice, 2 * circle, rtol=1e-6)
        assert not scores("a red circle - a red circle", spec).any()
        parts = [scores("a red circle", name) for name in spec.split("+")]
        np.testing.assert_allclose(circle, np.mean(parts, axis=0), atol=1e-6)


def test_equal_images_are_one_term(retriever: Retriever) -> None:
    image, other = Image.new("RGB", (4, 4)), Image.new("RGB", (4, 4))
    own = [Term(image=retriever.image(i)) for i in (3, 3, 4)]
    terms = combine_terms([Term(image=image), Term(image=other), *own, Term(image=image)])
    assert [term.weight for term in terms] == [2, 1, 2, 1]
    assert combine_terms(parse("0.1: a + 0.2: a - 0.3: a")) == []  # sums are rounded


def test_image_is_encoded_once(many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = [Term(image=many_retriever.image(i).decode(), weight=i) for i in (1, 2)]
    spec = "avse+mvam+pvse"
    scores = [many_retriever.scores(terms, name).values for name in spec.split("+")]
    calls, encode = list[str](), Runtime.image_features

    def count(runtime: Runtime, images: Any, name: str) -> torch.Tensor:
        calls.append(name)
        return encode(runtime, images, name)

    monkeypatch.setattr(Runtime, "image_features", count)
    both = many_retriever.scores(terms, spec).values
    np.testing.assert_allclose(both, np.mean(scores, axis=0), atol=1e-6)
    assert len(calls) == 2 * len({many_retriever.runtime.image_encoder_of(n) for n in calls})


def test_the_best_measured_methods_come_first(retriever: Retriever) -> None:
    info = retriever.info
    measured = Metrics("test", "a command", "a machine", 1, {"rsum": 400.0})
    better = replace(measured, values={"rsum": 410.0})
    for metrics, best in (
        ({}, "vse_infty"),
        ({"vsepp": measured}, "vsepp"),
        ({"vsepp": measured, "vse_infty": better}, "vse_infty"),
    ):
        entries = {name: replace(info.methods[name], metrics=of) for name, of in metrics.items()}
        methods = Methods(retriever.methods, replace(info, methods={**info.methods, **entries}))
        assert methods.best == best


def test_a_view_wins_where_all_terms_agree(many_retriever: Retriever) -> None:
    terms, method = parse("a + picture of a pink bar"), many_retriever.methods["pvse"]
    results = many_retriever.search(terms, "pvse", IMAGES)
    images = many_retriever.index.images["pvse"].views(range(IMAGES))
    expected = []
    for term in terms:
        scores = method.view_scores(images, many_retriever.views(term.words, "pvse"))
        expected.append(scores[..., 0].argmax(dim=0).tolist())
    agreed = 0
    for hit in results.hits:
        won = [views[hit.image_id] for views in expected]
        assert hit.view == (won[0] if won[0] == won[1] else None)
        agreed += won[0] == won[1]
    assert 0 < agreed < IMAGES


def test_an_ensemble_finds_captions(many_retriever: Retriever) -> None:
    image, totals = Term(image=many_retriever.image(3).decode()), Counter[tuple[str, int]]()
    both = many_retriever.search([image], "vse_infty+mv_vse", 1, caption_count=5).captions
    for name in ("vse_infty", "mv_vse"):
        for hit in many_retriever.search([image], name, 1, caption_count=1000).captions:
            totals[hit.text, hit.image_id] += hit.score / 2  # type: ignore[assignment]
    best = [score for _, score in totals.most_common(5)]
    assert [hit.score for hit in both] == pytest.approx(best, abs=1e-6)
    assert [totals[hit.text, hit.image_id] for hit in both] == pytest.approx(best, abs=1e-6)


def test_queries_wait(unread: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as brief:
        brief.setattr(module, "_WAIT_SECONDS", 0.01)
        brief.setattr(module, "_SHORT_WAIT_SECONDS", 0.01)
        with pytest.raises(Refusal, match=f"reading images: 0 of {IMAGES}"):
            find(unread, "a bar", "vsepp", 1)
    threading.Timer(0.3, unread.index.start).start()
    assert len(find(unread, "a bar", "vsepp", 99)) == IMAGES


def test_many_threads_get_the_same_answers(retriever: Retriever) -> None:
    queries = [f"a {colour} {shape}" for colour in ("red", "blue") for shape in ("circle", "bar")]

    def ask(query: str) -> str:
        return str(find(retriever, query, "vse_infty", 5))

    alone = list(map(ask, queries))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, 20 * queries)) == 20 * alone


@pytest.mark.parametrize("spec", ["mv_vse", "vse_infty+mv_vse"])
@pytest.mark.parametrize("text", ["a red circle", "2: a red circle - a bar"])
def test_some_images_are_ranked_exactly(many_retriever: Retriever, spec: str, text: str) -> None:
    only = set(range(1, IMAGES, 3))
    everything = many_retriever.search(parse(text), spec, IMAGES)
    within = many_retriever.search(parse(text), spec, 5, only)
    expected = [hit for hit in everything.hits if hit.image_id in only][:5]
    assert [(h.image_id, h.view) for h in within.hits] == [(h.image_id, h.view) for h in expected]
    assert [hit.rank for hit in within.hits] == [1, 2, 3, 4, 5]
    assert [hit.score for hit in within.hits] == pytest.approx([hit.score for hit in expected])
    assert (within.searched, everything.searched) == (len(only), IMAGES)
    none = many_retriever.search(parse(text), spec, 3, set())
    assert (none.hits, none.searched) == ([], 0)


@pytest.mark.parametrize("only", [None, set(range(0, IMAGES, 3))])
def test_probabilities_are_the_same_by_scores_and_by_search(
    many_retriever: Retriever, monkeypatch: pytest.MonkeyPatch, only: set[int] | None
) -> None:
    """Small galleries are scored completely; larger ones are searched, and a sample is scored."""
    fitted = Calibration((0.5,) * 7, (0.1,) * 4, (0.3,) * 5, "val", "command", "hardware", 0)
    methods = dict(many_retriever.info.methods)
    methods["mv_vse"] = replace(methods["mv_vse"], calibration=fitted)
    info = replace(many_retriever.info, methods=methods)
    monkeypatch.setattr(many_retriever, "info", info)
    terms = [Term("a red circle")]
    whole = many_retriever.search(terms, "mv_vse", 5, only).hits
    monkeypatch.setattr(Gallery, "local", False)  # so that no gallery is scored completely
    apart = many_retriever.search(terms, "mv_vse", 5, only).hits
    assert [(h.image_id, h.view) for h in whole] == [(h.image_id, h.view) for h in apart]
    assert [h.probability for h in apart] == pytest.approx([h.probability for h in whole])
    sampled = [len(subsample(np.arange(count), 3)) for count in (0, 3, 4, 10)]
    assert sampled == [0, 3, 2, 3]
