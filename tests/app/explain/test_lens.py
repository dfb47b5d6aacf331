"""The view lens ranks as scoring each image by itself does, and says what moved."""

import pytest
import torch

from polyview.app.explain.views import search_weighted
from polyview.app.search.retriever import Retriever
from polyview.models import Views
from tests.app.conftest import find
from tests.app.many import ADDED

TEXT = "a red circle beside a blue bar"
WEIGHTS = {
    "vse_infty": [0.5],
    "mv_vse": [0.0, 1.0, 0.7],
    "pvse": [0.3, 1.0],
    "avse": [1.0, 0.0],
    "mvam": [0.0, 0.5] * 8,
}


def scored_alone(retriever: Retriever, name: str, weights: list[float]) -> dict[int, float]:
    """Each image's score, one image at a time, from its views as they are stored."""
    method, query = retriever.methods[name], retriever.views(TEXT, name)
    ids = retriever.gallery(name).ids()
    views = retriever.gallery(name).views(ids)
    scores = {}
    for image_id, rows in zip(ids.tolist(), views.embeddings, strict=True):
        lensed = [w * row for w, row in zip(weights, rows, strict=True)]
        if not method.views_add_up:
            lensed = [row for w, row in zip(weights, lensed, strict=True) if w]
        scores[image_id] = float(method.score(Views(torch.stack(lensed)[None]), query))
    return scores


@pytest.mark.parametrize("name", WEIGHTS)
@torch.inference_mode()
def test_ranks_are_those_of_the_weighted_scores(many_retriever: Retriever, name: str) -> None:
    results = search_weighted(many_retriever, TEXT, name, WEIGHTS[name], 7)
    alone = scored_alone(many_retriever, name, WEIGHTS[name])
    order = sorted(alone, key=lambda i: -alone[i])
    assert [hit.image_id for hit in results.hits] == order[:7]
    plain = find(many_retriever, TEXT, name, 1000)
    before = [hit.image_id for hit in plain]
    for hit in results.hits:
        assert hit.score == pytest.approx(alone[hit.image_id], abs=1e-5)
        assert hit.before == before.index(hit.image_id) + 1
    assert results.stayed == len(set(order[:7]) & set(before[:7]))
    assert results.searched == len(before)
    if name in ADDED:  # with every view on nothing moves
        results = search_weighted(many_retriever, TEXT, name, [1.0] * ADDED[name]["views"], 5)
        assert all(hit.rank == hit.before for hit in results.hits)
        assert [hit.model_copy(update={"before": None}) for hit in results.hits] == plain[:5]
        assert results.stayed == 5


@torch.inference_mode()
def test_winning_views_keep_their_numbers(many_retriever: Retriever) -> None:
    method = many_retriever.methods["mv_vse"]
    ids = many_retriever.gallery("mv_vse").ids().tolist()
    views = many_retriever.gallery("mv_vse").views(ids)
    scores = method.view_scores(views, many_retriever.views(TEXT, "mv_vse"))[..., 0]  # (3, N)
    results = search_weighted(many_retriever, TEXT, "mv_vse", [1.0, 0.0, 1.0], 24)
    won = {hit.image_id: hit.view for hit in results.hits}
    for column, image_id in enumerate(ids):
        assert won[image_id] == (0 if scores[0, column] >= scores[2, column] else 2)
    only = search_weighted(many_retriever, TEXT, "mv_vse", [0.0, 0.0, 1.0], 24)
    assert {hit.view for hit in only.hits} == {2}
