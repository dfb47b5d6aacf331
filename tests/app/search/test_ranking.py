"""A sample of the gallery stands for all of it when hits are judged."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from polyview.app.gallery.index import Gallery
from polyview.app.search import ranking as ranking_module
from polyview.app.search.hits import Scores
from polyview.app.search.query import Term
from polyview.app.search.ranking import Ranking, among, spread
from polyview.app.search.retriever import Retriever
from polyview.export.pack.calibration import Calibration


def test_a_sample_is_bounded_in_bytes_and_kept(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(retriever.methods))
    gallery, ranking = retriever.gallery(name), Ranking(retriever.index)
    assert gallery.shape is not None
    each = 4 * gallery.shape[0] * gallery.shape[1]
    monkeypatch.setattr("polyview.app.search.ranking._SAMPLE_BYTES", 3 * each)
    text = retriever.views("a red circle", name)
    scores, count = ranking.sample(name, text, None)
    assert count == len(gallery) > 3
    assert 1 <= len(scores) <= 3
    monkeypatch.setattr(type(gallery), "views", None)  # not read again
    again, _ = ranking.sample(name, text, None)
    np.testing.assert_array_equal(again, scores)


def test_only_what_is_searched_is_sampled(retriever: Retriever) -> None:
    name = next(iter(retriever.methods))
    gallery, text = retriever.gallery(name), retriever.views("a red circle", name)
    ids, values = gallery.scores(text)
    only = set(ids[::3].tolist())
    scores, count = Ranking(retriever.index).sample(name, text, only)
    assert count == len(only)
    np.testing.assert_allclose(scores, among(Scores(ids, values), only).values, atol=1e-6)
    none, count = Ranking(retriever.index).sample(name, text, set())
    assert (len(none), count) == (0, 0)


def test_hits_and_what_they_are_judged_by_are_the_same_by_all_scores_and_by_a_search(
    views_retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small galleries are scored whole; larger ones are searched, and their sample scored."""
    fitted = Calibration((0.5,) * 7, (0.1,) * 4, (0.3,) * 5, "val", "command", "hardware", 0)
    methods = dict(views_retriever.info.methods)
    methods["mv_vse"] = replace(methods["mv_vse"], calibration=fitted)
    info = replace(views_retriever.info, methods=methods)
    monkeypatch.setattr(views_retriever, "info", info)
    asked = [Term("a red circle")], "mv_vse", 5
    whole = views_retriever.search(*asked)
    monkeypatch.setattr(Gallery, "local", False)  # none is scored whole
    monkeypatch.setattr("polyview.app.search.retriever.spread", None)  # which all scores go through
    apart = views_retriever.search(*asked)
    assert [(hit.image_id, hit.view) for hit in whole.hits] == [
        (hit.image_id, hit.view) for hit in apart.hits
    ]
    assert whole.judgement is not None
    assert apart.judgement is not None
    assert apart.judgement.hits == pytest.approx(whole.judgement.hits)
    assert apart.judgement.probability == pytest.approx(whole.judgement.probability)


@pytest.mark.parametrize(("count", "most", "left"), [(0, 3, 0), (3, 3, 3), (4, 3, 2), (10, 3, 3)])
def test_spread(count: int, most: int, left: int) -> None:
    assert len(spread(np.arange(count), most)) == left


def test_questions_share_the_processors_and_give_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking_module, "_TORCH_THREADS", 4)
    barrier, left_by_other = threading.Barrier(2), list[int]()

    def ask() -> None:
        with ranking_module.shared_processors(ranking_module.MANY):
            barrier.wait()
            barrier.wait()  # both are being answered
        left_by_other.append(torch.get_num_threads())

    before, other = torch.get_num_threads(), threading.Thread(target=ask)
    other.start()
    barrier.wait()
    try:
        with ranking_module.shared_processors(ranking_module.MANY):
            assert torch.get_num_threads() == 2
            barrier.wait()
        other.join()
        with pytest.raises(ValueError, match="mistake"), ranking_module.shared_processors(1):
            raise ValueError("mistake")
        with ranking_module.shared_processors(ranking_module.MANY - 1):
            assert torch.get_num_threads() == 1
        with ranking_module.shared_processors(ranking_module.MANY):
            assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert left_by_other == [4]
