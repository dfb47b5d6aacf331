"""The view lens: what a score becomes when views count less, or not at all."""

import pytest
import torch

from polyview.models import Method, Views
from polyview.models.mvam import MVAM
from polyview.models.pvse import PVSE
from tests.models import conftest


def encoded(method: Method) -> tuple[Views, Views]:
    return conftest.encoded(method, count=4, cells=9, words=9)


@torch.no_grad()
def test_all_weights_at_one_change_nothing(method: Method) -> None:
    images, texts = encoded(method)
    same = method.weighted(images, torch.ones(images.embeddings.shape[1]))
    assert torch.equal(method.score(same, texts), method.score(images, texts))
    assert same.attention is not None
    assert images.attention is not None
    assert torch.equal(same.attention, images.attention)


@torch.no_grad()
def test_views_switched_off_are_as_if_they_had_never_been(method: Method) -> None:
    images, texts = encoded(method)
    count = images.embeddings.shape[1]
    weights = (torch.arange(count) % 2 == 0).float()  # every second view is off
    scores = method.score(method.weighted(images, weights), texts)
    stays = weights.bool()
    if method.views_add_up:
        expected = method.view_scores(images, texts)[stays].sum(dim=0)
    else:
        expected = method.score(Views(images.embeddings[:, stays]), texts)
    torch.testing.assert_close(scores, expected)


@torch.no_grad()
def test_a_weight_multiplies_the_cosines_of_its_view(method: Method) -> None:
    images, texts = encoded(method)
    count = images.embeddings.shape[1]
    weights = torch.linspace(0.2, 0.9, count)
    scores = method.score(method.weighted(images, weights), texts)
    for i in range(4):
        for t in range(4):
            pairs = images.embeddings[i] @ texts.embeddings[t].T  # (V, W)
            if method.views_add_up:
                parts = method.view_scores(images, texts)[:, i, t]
                assert float(scores[i, t]) == pytest.approx(float(weights @ parts), abs=1e-5)
            elif method.row_search:
                best = max(float(w * pair.max()) for w, pair in zip(weights, pairs, strict=True))
                assert float(scores[i, t]) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.0, 0.0], "every view is switched off; leave at least one on"),
        ([1.0], "2 views need 2 weights"),
        ([1.0, 1.5], "a view's weight must be 0 to 1"),
        ([1.0, -0.5], "a view's weight must be 0 to 1"),
        ([1.0, float("nan")], "a view's weight must be 0 to 1"),
    ],
)
def test_nonsense_is_refused(weights: list[float], message: str) -> None:
    for method in (PVSE(8, 8, 4), MVAM(8, 8, 4, views=2)):
        with pytest.raises(ValueError, match=message):
            method.weighted(Views(torch.randn(1, 2, 4)), torch.tensor(weights))
