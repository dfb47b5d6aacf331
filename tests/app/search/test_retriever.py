"""Questions: the answers are the method's own scores, and nonsense gets a sentence."""

import re
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.app.gallery.index import Gallery
from polyview.app.gallery.scan import from_pack
from polyview.app.search import ranking
from polyview.app.search.hits import NotReadyError
from polyview.app.search.query import parse
from polyview.app.search.retriever import Retriever
from polyview.export.methods import Methods
from polyview.export.pack.calibration import Calibration
from polyview.export.pack.schema import Metrics
from polyview.export.runtime import Runtime
from tests.app.conftest import IMAGES, find, maps_of

METHODS = ("vsepp", "vse_infty")


@pytest.mark.parametrize("method", METHODS)
def test_hits_are_the_methods_own_ranking(retriever: Retriever, method: str) -> None:
    runtime = retriever.runtime
    images = [retriever.open(i) for i in range(IMAGES)]
    views = runtime.image_views(runtime.image_features(images), method)
    texts = runtime.text_views(["a red circle"], method)
    scores = runtime.methods[method].score(views, texts)[:, 0]
    hits = find(retriever, "a red circle", method, 5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    expected = scores.topk(5).values
    torch.testing.assert_close(torch.tensor([h.score for h in hits]), expected, atol=1e-5, rtol=0)
    for hit in hits:
        assert hit.score == pytest.approx(float(scores[hit.image_id]), abs=1e-5)
        assert hit.file == f"images/test-{hit.image_id:06}.webp"


@pytest.mark.parametrize(
    ("text", "method", "k", "sentence"),
    [
        ("", "vsepp", 3, "the query is empty"),
        (" \n ", "vsepp", 3, "the query is empty"),
        ("a" * 10_001, "vsepp", 3, "has 10,001 characters; use at most 10,000"),
        ("a bar", "nope", 3, 'no method "nope" in this pack; choose one of vsepp, vse_infty'),
        ("a bar", ["vsepp"], 3, "there is no method"),
        ("a bar", "vsepp", 0, "k must be a whole number of at least 1, not 0"),
    ],
)
def test_nonsense(retriever: Retriever, text: str, method: str, k: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        find(retriever, text, method, k)


@pytest.mark.parametrize("method", METHODS)
def test_the_heatmap_is_the_methods_attention(retriever: Retriever, method: str) -> None:
    maps = maps_of(retriever, 4, method)
    rows, columns = retriever.info.image_encoder.grid
    assert maps.shape == (1, rows, columns)
    assert (maps >= 0).all()
    assert maps.sum() == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(maps, maps_of(retriever, retriever.open(4), method), atol=1e-6)
    assert np.abs(maps - maps_of(retriever, 5, method)).max() > 1e-6


def test_questions_before_the_first_picture_get_a_sentence(
    runtime: Runtime, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_PATIENCE", 0.01)
    retriever = Retriever(runtime, from_pack(tiny_pack), tmp_path)
    with pytest.raises(NotReadyError, match=f"reading images: 0 of {IMAGES}"):
        find(retriever, "a bar", "vsepp", 1)


def test_questions_wait_for_the_gallery(runtime: Runtime, tiny_pack: Path, tmp_path: Path) -> None:
    retriever = Retriever(runtime, from_pack(tiny_pack), tmp_path)
    threading.Timer(0.3, retriever.index.start).start()
    assert len(find(retriever, "a bar", "vsepp", 99)) == IMAGES


def test_the_best_measured_methods_come_first(retriever: Retriever) -> None:
    info = retriever.info
    measured = Metrics("test", "a command", "a machine", 1, {"rsum": 400.0})
    precise = replace(measured, values={"rsum": 390.0, "t2i_rprecision": 50.0})

    def methods(**metrics: Metrics) -> Methods:
        printed = {name: replace(info.methods[name], metrics=of) for name, of in metrics.items()}
        return Methods(retriever.methods, replace(info, methods={**info.methods, **printed}))

    assert retriever.methods.best == methods().best == "vse_infty"
    assert methods(vsepp=measured).best == "vsepp"
    assert methods(vsepp=measured, vse_infty=precise).best == "vse_infty"
    assert methods().title("vsepp+vse_infty") == "VSE++ + VSE\N{INFINITY}"


def test_many_threads_get_the_same_answers(retriever: Retriever) -> None:
    queries = [f"a {colour} {shape}" for colour in ("red", "blue") for shape in ("circle", "bar")]
    alone = {query: find(retriever, query, "vse_infty", 5) for query in queries}
    wrong: list[str] = []

    def ask(query: str) -> None:
        for _ in range(10):
            if find(retriever, query, "vse_infty", 5) != alone[query]:
                wrong.append(query)

    threads = [threading.Thread(target=ask, args=(query,)) for query in queries * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("spec", ["vse_infty", "mv_vse", "vse_infty+mv_vse"])
@pytest.mark.parametrize("text", ["a red circle", "2: a red circle - a bar"])
def test_some_images_are_ranked_exactly(views_retriever: Retriever, spec: str, text: str) -> None:
    only = set(range(1, IMAGES, 3))
    everything = views_retriever.search(parse(text), spec, IMAGES)
    within = views_retriever.search(parse(text), spec, 5, only)
    expected = [hit for hit in everything.hits if hit.image_id in only][:5]
    assert [hit.image_id for hit in within.hits] == [hit.image_id for hit in expected]
    assert [hit.view for hit in within.hits] == [hit.view for hit in expected]
    assert [hit.rank for hit in within.hits] == [1, 2, 3, 4, 5]
    assert [hit.score for hit in within.hits] == pytest.approx([hit.score for hit in expected])
    assert (within.searched, everything.searched) == (len(only), IMAGES)
    none = views_retriever.search(parse(text), spec, 3, set())
    assert (none.hits, none.searched) == ([], 0)


def test_a_sample_stands_for_the_gallery(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(retriever.methods))
    gallery, index = retriever.gallery(name), retriever.index
    text = retriever.views("a red circle", name)
    _, values = gallery.scores(text)
    sampled = ranking.Ranking(index).sample(name, text, set(range(0, IMAGES, 3)))
    np.testing.assert_allclose(sampled, values[::3], atol=1e-6)
    assert len(ranking.Ranking(index).sample(name, text, set())) == 0
    assert gallery.shape is not None
    monkeypatch.setattr(ranking, "_SAMPLE_BYTES", 3 * 4 * gallery.shape[0] * gallery.shape[1])
    sampled = ranking.Ranking(index).sample(name, text, None)
    np.testing.assert_allclose(sampled, values[:: IMAGES // 3], atol=1e-6)


@pytest.mark.parametrize(("count", "most", "left"), [(0, 3, 0), (3, 3, 3), (4, 3, 2), (10, 3, 3)])
def test_a_subsample_is_even(count: int, most: int, left: int) -> None:
    assert len(ranking.subsample(np.arange(count), most)) == left


def test_hits_and_confidence_are_the_same_by_all_scores_and_by_a_search(
    views_retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small galleries are scored whole; larger ones are searched, and their sample scored."""
    fitted = Calibration((0.5,) * 7, (0.1,) * 4, (0.3,) * 5, "val", "command", "hardware", 0)
    methods = dict(views_retriever.info.methods)
    methods["mv_vse"] = replace(methods["mv_vse"], calibration=fitted)
    info = replace(views_retriever.info, methods=methods)
    monkeypatch.setattr(views_retriever, "info", info)
    whole = find(views_retriever, "a red circle", "mv_vse", 5)
    monkeypatch.setattr(Gallery, "local", False)  # none is scored whole
    apart = find(views_retriever, "a red circle", "mv_vse", 5)
    assert [(h.image_id, h.view) for h in whole] == [(h.image_id, h.view) for h in apart]
    assert [h.probability for h in apart] == pytest.approx([h.probability for h in whole])


def test_questions_share_the_processors_and_give_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_TORCH_THREADS", 4)
    before = torch.get_num_threads()
    try:
        with ranking.shared_processors(ranking.MANY):
            assert torch.get_num_threads() == 4
            with ranking.shared_processors(ranking.MANY):  # another question
                assert torch.get_num_threads() == 2
            with suppress(ValueError), ranking.shared_processors(1):
                assert torch.get_num_threads() == 1
                raise ValueError
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
