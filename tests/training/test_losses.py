"""Losses against the loops written from their equations."""

from __future__ import annotations

import pytest
import torch

from tests import reference
from training.losses import hinge_triplet, same_image
from training.objectives import build_objective


@pytest.mark.parametrize("hardest", [True, False])
@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4], [0, 1, 0, 2, 1]])
def test_hinge_triplet_equals_the_loop(hardest: bool, ids: list[int]) -> None:
    torch.manual_seed(0)
    scores = torch.rand(5, 5)
    tensor = torch.tensor(ids)
    loss = hinge_triplet(scores, same_image(tensor, tensor), 0.2, hardest=hardest)
    assert loss.item() == pytest.approx(
        reference.hinge_triplet(scores, ids, 0.2, hardest), abs=1e-5
    )


def test_another_caption_of_the_image_is_no_negative() -> None:
    scores = torch.tensor([[0.5, 0.9], [0.5, 0.9]], requires_grad=True)
    ids = torch.tensor([7, 7])
    loss = hinge_triplet(scores, same_image(ids, ids), 0.2)
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None
    assert scores.grad.abs().sum() == 0


def test_hardest_is_at_most_the_sum() -> None:
    torch.manual_seed(1)
    scores, own = torch.rand(6, 6), torch.eye(6).bool()
    assert hinge_triplet(scores, own, hardest=True) <= hinge_triplet(scores, own, hardest=False)


def test_objectives_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="margin must be above 0"):
        build_objective("vse_infty", {"margin": 0})
    with pytest.raises(ValueError, match='has no "temperature"; it takes margin, summed_epochs'):
        build_objective("vsepp", {"temperature": 0.1})
    with pytest.raises(ValueError, match="has no objective"):
        build_objective("unheard_of", {})
