"""The view lens: what a score becomes when views count less, or not at all."""

import pytest
import torch

from polyview.models import Method, Views
from polyview.models.mvam import MVAM
from polyview.models.pvse import PVSE
from tests.models import conftest


@torch.no_grad()
def test_weights_multiply_the_cosines_of_views(method: Method) -> None:
    images, texts = conftest.encoded(method, count=4, cells=9, words=9)
    count, plain = images.embeddings.shape[1], method.view_scores(images, texts)
    same = method.weighted(images, torch.ones(count))
    assert torch.equal(method.score(same, texts), method.score(images, texts))
    assert same.attention is not None
    assert images.attention is not None
    assert torch.equal(same.attention, images.attention)
    stays = torch.arange(count) % 2 == 0  # every second view is off, as if it had never been
    scores = method.score(method.weighted(images, stays.float()), texts)
    if method.views_add_up:
        expected = plain[stays].sum(dim=0)
    else:
        expected = method.score(Views(images.embeddings[:, stays]), texts)
    torch.testing.assert_close(scores, expected)
    weights = torch.linspace(0.2, 0.9, count)
    scores = method.score(method.weighted(images, weights), texts)
    if method.views_add_up:
        expected = (weights[:, None, None] * plain).sum(dim=0)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    elif method.row_search:
        cosines = torch.einsum("ivd,twd->itvw", images.embeddings, texts.embeddings)
        expected = (weights[:, None] * cosines).amax(dim=(2, 3))
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)


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
