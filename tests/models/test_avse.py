"""AVSE: grouping, blocks and scores."""

from __future__ import annotations

import pytest
import torch

from models import Views
from models.avse import AVSE
from tests import reference

SIZES = torch.tensor([40, 1, 11])
MASK = torch.arange(40) < SIZES[:, None]


@pytest.fixture
def features() -> torch.Tensor:
    torch.manual_seed(8)
    return torch.randn(3, 40, 10)


def test_groups_have_the_papers_sizes(features: torch.Tensor) -> None:
    method = AVSE(10, 8, 8)
    for training, share in ((True, 0.75), (False, 0.9)):
        groups = method.train(training).groups(features, MASK)
        expected = (share * SIZES).round().clamp_min(1).long()
        assert torch.equal(groups.sum(dim=2), expected.expand(2, 3))
        assert not (groups & ~MASK).any()


def test_training_groups_are_drawn_anew(features: torch.Tensor) -> None:
    method = AVSE(10, 8, 8).train()
    torch.manual_seed(0)
    draws = torch.stack([method.groups(features, MASK) for _ in range(200)]).float()
    shares = draws.mean(dim=0)[:, 0]  # of the set of 40
    assert float((shares - 0.75).abs().max()) < 0.15
    assert not torch.equal(draws[0, 0], draws[0, 1])


def test_test_groups_follow_the_elements_and_leave_out_different_ones(
    features: torch.Tensor,
) -> None:
    method = AVSE(10, 8, 8).eval()
    groups = method.groups(features, MASK)
    assert torch.equal(groups, method.groups(features, MASK))
    assert torch.equal(groups, AVSE(10, 8, 16).eval().groups(features, MASK))
    order = torch.randperm(40)
    assert torch.equal(method.groups(features[:, order], MASK[:, order]), groups[..., order])
    left_out = MASK & ~groups
    assert not (left_out[0] & left_out[1]).any()


@pytest.mark.parametrize("match", ["sinkhorn", "maxsim"])
@pytest.mark.parametrize("iterations", [1, 20])
def test_scores_equal_the_loop(match: str, iterations: int) -> None:
    torch.manual_seed(1)
    method = AVSE(10, 8, 8, block_dim=4, views=3, match=match, iterations=iterations)
    if method.dustbin is not None:
        method.dustbin.data.fill_(0.2)
    images, texts = torch.randn(3, 3, 8), torch.randn(4, 1, 8)
    views = Views(method._unit_blocks(images)), Views(method._unit_blocks(texts))
    scores = method.score(*views).detach()
    for i in range(3):
        for t in range(4):
            z = None if method.dustbin is None else 0.2
            blocks = images[i].view(-1, 4), texts[t].view(-1, 4)
            expected = reference.block_score(*blocks, z, iterations)
            assert float(scores[i, t]) == pytest.approx(expected, abs=1e-5)


def test_many_pairs_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    method = AVSE(10, 8, 8)
    images, texts = (
        Views(method._unit_blocks(torch.randn(n, v, 8))) for n, v in ((150, 2), (7, 1))
    )
    whole = method.score(images, texts)
    monkeypatch.setattr("models.avse._PAIRS", 20)
    monkeypatch.setattr("models.avse._IMAGES", 8)
    torch.testing.assert_close(method.score(images, texts), whole)


def test_a_view_scores_at_most_the_whole(features: torch.Tensor) -> None:
    method = AVSE(10, 8, 8).eval()
    images = method.encode_image(features, MASK)
    texts = method.encode_text(torch.randn(4, 5, 8), torch.ones(4, 5, dtype=torch.bool))
    assert (method.view_scores(images, texts) <= method.score(images, texts) + 1e-6).all()


def test_the_dustbin_is_there_only_for_sinkhorn() -> None:
    assert AVSE(10, 8, 8).dustbin is not None
    assert AVSE(10, 8, 8, match="maxsim").dustbin is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_dim": 3}, "block_dim 3 does not divide embed_dim 8"),
        ({"train_share": 0.0}, "train_share must be above 0"),
        ({"test_share": 1.5}, "test_share must be above 0 and at most 1, not 1.5"),
        ({"match": "hungarian"}, "match must be one of sinkhorn, maxsim"),
        ({"iterations": 0}, "iterations 0 must be 1 or more"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AVSE(10, 8, 8, **arguments)  # type: ignore[arg-type]
