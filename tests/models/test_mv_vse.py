"""MV-VSE: its views, score and aggregators against loops."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from models import Views
from models.gpo import GPO
from models.layers import l2_normalize
from models.mv_vse import MVVSE
from tests import reference


@pytest.fixture
def features() -> torch.Tensor:
    torch.manual_seed(4)
    return torch.randn(2, 6, 10)


MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.mark.parametrize("own", [False, True])
def test_views_equal_the_loop(features: torch.Tensor, own: bool) -> None:
    method = MVVSE(10, 8, 8, own_projections=own)
    assert len(method.project_image) == (3 if own else 1)
    with torch.no_grad():
        views = method.encode_image(features, MASK).embeddings
        for b in range(2):
            for k, pool in enumerate(method.pool_image):
                projected = method.project_image[k if own else 0](features, MASK)
                pooled = reference.gpo_pool(cast("GPO", pool), projected[b, MASK[b]])
                expected = l2_normalize(pooled)
                torch.testing.assert_close(views[b, k], expected, rtol=1e-5, atol=1e-6)


def test_score_is_the_best_view(features: torch.Tensor) -> None:
    method = MVVSE(10, 8, 8).requires_grad_(False)
    images = method.encode_image(features, MASK)
    texts = Views(l2_normalize(torch.randn(3, 1, 8)))
    for i in range(2):
        for t in range(3):
            best = max(float(v @ texts.embeddings[t, 0]) for v in images.embeddings[i])
            assert float(method.score(images, texts)[i, t]) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(
    ("aggregator", "pool"),
    [("mean", lambda x: x.mean(dim=0)), ("released", lambda x: x.amax(dim=0))],
)
def test_other_aggregators(features: torch.Tensor, aggregator: str, pool: object) -> None:
    method = MVVSE(10, 8, 8, views=2, aggregator=aggregator)
    views = method.encode_image(features, MASK).embeddings
    for k, project in enumerate(method.project_image):
        projected = project(features, MASK)
        expected = l2_normalize(pool(projected[1, MASK[1]]))  # type: ignore[operator]
        torch.testing.assert_close(views[1, k], expected)
    assert not torch.allclose(views[:, 0], views[:, 1])


def test_the_released_text_is_its_last_word() -> None:
    words = torch.randn(2, 6, 8)
    text = MVVSE(10, 8, 8, aggregator="released").encode_text(words, MASK).embeddings
    torch.testing.assert_close(text[:, 0], l2_normalize(words[[0, 1], [5, 3]]))


def test_attention_is_the_cosine_of_each_cell(features: torch.Tensor) -> None:
    method = MVVSE(10, 8, 8, views=2)
    views = method.encode_image(features, MASK, attention=True)
    projected = method.project_image[0](features, MASK)
    assert views.attention is not None
    for k in range(2):
        for n in (0, 2, 3):
            cosine = torch.cosine_similarity(projected[1, n], views.embeddings[1, k], dim=0)
            torch.testing.assert_close(views.attention[1, k, n], cosine)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"views": 0}, "views must be 1 or more, not 0"),
        ({"aggregator": "max"}, 'must be one of gpo, mean, released, not "max"'),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, int | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MVVSE(10, 8, 8, **arguments)  # type: ignore[arg-type]
