"""Ranking losses against the loops written from their equations."""

import pytest
import torch

from polyview.training.objectives.losses import hinge_triplet, info_nce, same_image
from polyview.training.objectives.pvse import multiple_instance
from tests.golden.loading import grad


def test_another_caption_of_the_image_is_no_negative() -> None:
    ids = torch.tensor([7, 7])
    own = same_image(ids, ids)
    temperature = torch.tensor(0.1, requires_grad=True)
    for loss_of in (
        lambda s: hinge_triplet(s, own, 0.2),
        lambda s: multiple_instance(s, own, 0.2, released=True),
        lambda s: info_nce(s, own, temperature),
    ):
        scores = torch.tensor([[0.5, 0.9], [0.5, 0.9]], requires_grad=True)
        loss = loss_of(scores)
        loss.backward()
        assert loss.item() == 0
        assert grad(scores).abs().sum() == 0
    assert grad(temperature) == 0


def test_info_nce_is_a_cross_entropy_and_its_temperature_can_be_learned() -> None:
    torch.manual_seed(3)
    scores = torch.rand(6, 6)
    values, grads = [], []
    for kind in ("ours", "torch"):
        temperature = torch.tensor(0.3, requires_grad=True)
        if kind == "ours":
            loss = info_nce(scores, torch.eye(6).bool(), temperature)
        else:
            logits, own = scores / temperature, torch.arange(6)
            rows = torch.nn.functional.cross_entropy(logits, own)
            loss = (rows + torch.nn.functional.cross_entropy(logits.T, own)) / 2
        loss.backward()
        values.append(loss.item())
        grads.append(grad(temperature).item())
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    assert grads[0] == pytest.approx(grads[1], abs=1e-5)
