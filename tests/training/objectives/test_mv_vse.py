"""MV-VSE's losses against loops, and what the paper says of them."""

from __future__ import annotations

import pytest
import torch

from tests import reference
from training.objectives.losses import Cost, Hinge, Softmax, hinge_triplet, same_image
from training.objectives.mv_vse import (
    best_view_loss,
    each_view_loss,
    released_losses,
    upper_bound_loss,
)

COSTS = [Hinge(0.2), Hinge(0.2, hardest=False), Softmax(0.1), Softmax(0.05, 0.2)]


def scores_of(seed: int, views: int = 3, batch: int = 6) -> torch.Tensor:
    return torch.rand(views, batch, batch, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 1, 1], [4, 4, 4, 4, 4, 4]])
def test_hinge_forms_equal_the_loop(ids: list[int]) -> None:
    scores, tensor, cost = scores_of(0), torch.tensor(ids), Hinge(0.2)
    own = same_image(tensor, tensor)
    expected = reference.view_losses(scores, ids, 0.2)
    got = {
        "max": best_view_loss(scores, own, cost),
        "avg": each_view_loss(scores, own, cost),
        "up": upper_bound_loss(scores, own, cost),
        "rough": upper_bound_loss(scores, own, cost, rough=True),
    }
    for name, loss in got.items():
        assert loss.tolist() == pytest.approx(expected[name], abs=1e-5), name


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_equation_14(cost: Cost, seed: int) -> None:
    scores, own = scores_of(seed), torch.eye(6).bool()
    best = best_view_loss(scores, own, cost)
    up = upper_bound_loss(scores, own, cost)
    rough = upper_bound_loss(scores, own, cost, rough=True)
    assert (best <= up + 1e-5).all()
    assert (up <= rough + 1e-6).all()


def test_up_is_tighter_than_rough_somewhere() -> None:
    own, cost = torch.eye(6).bool(), Hinge(0.2)
    gaps = [
        upper_bound_loss(s, own, cost, rough=True) - upper_bound_loss(s, own, cost)
        for s in map(scores_of, range(20))
    ]
    assert max(float(gap.max()) for gap in gaps) > 0.1


@pytest.mark.parametrize("cost", COSTS)
def test_the_upper_bound_moves_all_views_and_the_maximum_one(cost: Cost) -> None:
    own = torch.eye(4).bool()
    # every constraint is broken, and each pair's own best view is the second
    base = torch.full((3, 4, 4), 0.5)
    base[:, range(4), range(4)] = torch.tensor([0.1, 0.3, 0.2])[:, None]
    moved = {}
    for name, loss in (("max", best_view_loss), ("up", upper_bound_loss)):
        scores = base.clone().requires_grad_()
        loss(scores, own, cost).sum().backward()
        assert scores.grad is not None
        moved[name] = scores.grad[:, range(4), range(4)].abs().sum(dim=1) > 0
    assert moved["max"].tolist() == [False, True, False]
    assert moved["up"].tolist() == [True, True, True]


def test_a_satisfied_view_frees_the_others() -> None:
    own = torch.eye(2).bool()
    scores = torch.tensor([[[0.9, 0.1], [0.1, 0.9]], [[0.2, 0.1], [0.1, 0.2]]], requires_grad=True)
    upper_bound_loss(scores, own, Hinge(0.2)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.abs().sum() == 0
    assert float(upper_bound_loss(scores, own, Hinge(0.2), rough=True).detach().sum()) > 0


@pytest.mark.parametrize("hardest", [True, False])
def test_with_one_view_all_are_the_plain_loss(hardest: bool) -> None:
    scores, own, cost = scores_of(3, views=1), torch.eye(6).bool(), Hinge(0.2, hardest)
    plain = hinge_triplet(scores[0], own, hardest=hardest)
    for loss in (best_view_loss, each_view_loss, upper_bound_loss):
        torch.testing.assert_close(loss(scores, own, cost).sum(), plain)
    upper, lower = released_losses(scores, own, cost)
    torch.testing.assert_close(upper, plain / 12)
    torch.testing.assert_close(lower, plain / 12)


def test_the_released_second_term_is_below_the_first() -> None:
    for seed in range(10):
        scores, own, cost = scores_of(seed), torch.eye(6).bool(), Hinge(0.2)
        upper, lower = released_losses(scores, own, cost)
        best = best_view_loss(scores, own, cost).mean() / 2
        assert lower <= best + 1e-6
        assert best <= upper + 1e-6
