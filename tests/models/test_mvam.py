"""MVAM and its baselines against loops."""

from __future__ import annotations

import pytest
import torch

from models.mvam import MVAM, BaseAttention, BaseSummary, ViewCodes
from tests import reference

MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.fixture
def features() -> torch.Tensor:
    torch.manual_seed(9)
    return torch.randn(2, 6, 8)


def test_codes_attend_like_the_loop(features: torch.Tensor) -> None:
    codes = ViewCodes(3, 8)
    with torch.no_grad():
        views, attention = codes(features, MASK)
        for b in range(2):
            expected, weights = reference.attend(codes.codes, features[b, MASK[b]])
            torch.testing.assert_close(views[b], expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(attention[b][:, MASK[b]], weights, rtol=1e-5, atol=1e-6)


def test_score_is_the_cosine_of_the_joined_views(features: torch.Tensor) -> None:
    method = MVAM(8, 8, 5, views=3)
    images, texts = method.encode_image(features, MASK), method.encode_text(features, MASK)
    raw = method.image_codes(method.project_image(features, MASK), MASK)[0]
    other = method.text_codes(method.project_text(features), MASK)[0]
    expected = torch.cosine_similarity(raw[0].flatten(), other[1].flatten(), dim=0)
    torch.testing.assert_close(method.score(images, texts)[0, 1], expected)
    parts = method.view_scores(images, texts)
    torch.testing.assert_close(parts.sum(dim=0), method.score(images, texts))


def test_codes_may_meet_the_features_before_the_projection(features: torch.Tensor) -> None:
    method = MVAM(8, 8, 5, views=3, code_space="encoder")
    views = method.encode_image(features, MASK, attention=True)
    assert views.attention is not None
    for b in range(2):
        real = features[b, MASK[b]]
        raw, weights = reference.attend(method.image_codes.codes, real)
        torch.testing.assert_close(views.attention[b][:, MASK[b]], weights, rtol=1e-5, atol=1e-6)
        pooled = method.project_image(raw[None], torch.ones(1, 3, dtype=torch.bool))[0]
        expected = pooled / pooled.norm()
        torch.testing.assert_close(views.embeddings[b], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="code_space must be one of view, encoder"):
        MVAM(8, 8, code_space="pixel")


def test_the_default_makes_the_papers_vector(features: torch.Tensor) -> None:
    assert MVAM(8, 8).encode_image(features, MASK).embeddings.flatten(1).shape == (2, 1024)
    assert BaseAttention(8, 8).encode_image(features, MASK).embeddings.shape == (2, 1, 1024)


def test_views_are_searched_joined(features: torch.Tensor) -> None:
    method = MVAM(8, 8)
    views = method.encode_image(features, MASK).embeddings
    assert method.row_search
    assert method.row_dim(*views.shape[1:]) == views[0].numel()


def test_summary_pooling_reads_the_first_element_only(features: torch.Tensor) -> None:
    method = BaseSummary(8, 8, 5)
    other = features.clone()
    other[:, 1:] = 7.0
    first, second = (method.encode_image(x, MASK).embeddings for x in (features, other))
    assert torch.equal(first, second)
    expected = torch.tanh(method.project_image(features[:, 0]))
    torch.testing.assert_close(first[:, 0], torch.nn.functional.normalize(expected, dim=1))


def test_temperature_is_learned_on_demand() -> None:
    assert MVAM(8, 8).log_temperature is None
    learned = MVAM(8, 8, learned_temperature=0.07).log_temperature
    assert learned is not None
    assert learned.exp().item() == pytest.approx(0.07)
    with pytest.raises(ValueError, match="learned_temperature must be 0 or more"):
        MVAM(8, 8, learned_temperature=-1.0)
    with pytest.raises(ValueError, match="views must be 1 or more"):
        MVAM(8, 8, views=0)
