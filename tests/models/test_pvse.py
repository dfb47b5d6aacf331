"""PVSE: PIE-Nets, global features, ablations and scores against loops."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models import Views
from models.layers import l2_normalize
from models.pvse import PVSE, LastStates, PIENet, order_scores
from tests import reference

MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.fixture
def local() -> torch.Tensor:
    torch.manual_seed(6)
    return torch.randn(2, 6, 10)


def test_pie_net_equals_the_loop(local: torch.Tensor) -> None:
    net = PIENet(10, 8, 3)
    nn.init.normal_(net.norm.weight)
    whole = torch.randn(2, 8)
    with torch.no_grad():
        embeddings, _, attention = net(local, whole, MASK)
        for b in range(2):
            expected = reference.pie_net(net, local[b, MASK[b]], whole[b])
            torch.testing.assert_close(embeddings[b], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(attention.sum(dim=2), torch.ones(2, 3))


def test_last_states_skip_what_the_mask_leaves_out(local: torch.Tensor) -> None:
    for legacy in (False, True):
        states = LastStates(10, 8, legacy)
        dense = local[1:, MASK[1]]
        expected = states(dense, torch.ones(1, 3, dtype=torch.bool))
        torch.testing.assert_close(states(local, MASK)[1:], expected)


def test_last_states_are_those_of_each_direction(local: torch.Tensor) -> None:
    states, legacy = LastStates(10, 8), LastStates(10, 8, legacy=True)
    legacy.load_state_dict(states.state_dict())
    outputs, _ = states.gru(local[:1])  # (1, 6, 4 + 4)
    default = torch.cat([outputs[0, -1, :4], outputs[0, 0, 4:]])
    torch.testing.assert_close(states(local, MASK)[0], default)
    torch.testing.assert_close(legacy(local, MASK)[0], outputs[0, -1])


def test_without_pie_nets_the_global_feature_remains(local: torch.Tensor) -> None:
    method = PVSE(10, 10, 8, views=0)
    assert method.image_global is not None
    assert method.text_global is not None
    images = method.encode_image(local, MASK, attention=True)
    expected = l2_normalize(method.image_global(local[1, MASK[1]].mean(dim=0)))
    torch.testing.assert_close(images.embeddings[1, 0], expected)
    assert images.attention is None
    texts = method.encode_text(local, MASK).embeddings[:, 0]
    torch.testing.assert_close(texts, l2_normalize(method.text_global(local, MASK)))


def test_fusions(local: torch.Tensor) -> None:
    widths = {"residual": 8, "concat": 16, "local": 8}
    for fusion, width in widths.items():
        method = PVSE(10, 10, 8, views=3, fusion=fusion)
        assert method.encode_image(local, MASK).embeddings.shape == (2, 3, width)
    shifted = local + 1.0
    method = PVSE(10, 10, 8, fusion="local")
    assert method.image_net is not None
    _, residual, _ = method.image_net(shifted, None, MASK)
    expected = l2_normalize(method.image_net.norm(residual))
    torch.testing.assert_close(method.encode_image(shifted, MASK).embeddings, expected)


def test_score_is_the_best_of_all_pairs() -> None:
    torch.manual_seed(0)
    images, texts = (Views(l2_normalize(torch.randn(3, 2, 8))) for _ in range(2))
    scores = PVSE(4, 4, 8).score(images, texts)
    best = max(float(v @ t) for v in images.embeddings[1] for t in texts.embeddings[2])
    assert float(scores[1, 2]) == pytest.approx(best, abs=1e-6)


def test_joined_views_score_their_cosine() -> None:
    torch.manual_seed(0)
    images, texts = (Views(l2_normalize(torch.randn(3, 2, 8))) for _ in range(2))
    method = PVSE(4, 4, 8, match="concat")
    joined = torch.cosine_similarity(
        images.embeddings[1].flatten(), texts.embeddings[2].flatten(), 0
    )
    torch.testing.assert_close(method.score(images, texts)[1, 2], joined)
    assert method.row_dim(2, 8) == 16


def test_order_scores_equal_the_loop() -> None:
    torch.manual_seed(0)
    images, texts = torch.rand(2, 3, 5), torch.rand(4, 2, 5)
    scores = order_scores(images, texts)
    assert scores.shape == (3, 2, 2, 4)
    for v in range(3):
        for w in range(2):
            lacking = [
                max(0.0, float(t - x)) for x, t in zip(images[1, v], texts[3, w], strict=True)
            ]
            expected = -(sum(x * x for x in lacking) ** 0.5)
            assert float(scores[v, w, 1, 3]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"views": -1}, "views must be 0 or more"),
        ({"embed_dim": 7}, "embed_dim must be even"),
        ({"fusion": "sum"}, "fusion must be one of residual, concat, local"),
        ({"match": "best"}, "match must be one of max, concat"),
        ({"similarity": "dot"}, "similarity must be one of cosine, order"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, int | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PVSE(4, 4, **arguments)  # type: ignore[arg-type]
