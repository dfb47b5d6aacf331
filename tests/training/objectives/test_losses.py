"""Ranking losses against the loops written from their equations."""

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
