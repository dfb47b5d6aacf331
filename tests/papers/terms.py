"""What a method makes of random features: views, named arrays, the terms of its objective."""

from typing import Any

import torch

from polyview import models
from polyview.models import Method, Views
from polyview.models.views import NamedArray
from polyview.training.objectives import build_objective
from polyview.training.objectives.losses import Hinge, pair_costs
from tests.models import conftest

IDS = torch.tensor([0, 1, 2, 1])
BATCH = len(IDS)


def views_of(name: str, **arguments: Any) -> tuple[Method, Views, Views]:
    """A method in training mode with the views of a batch."""
    torch.manual_seed(0)
    method = models.build(name, 12, 10, {"embed_dim": 8, **arguments}).train()
    mask = torch.ones(BATCH, 6, dtype=torch.bool)
    images = method.encode_image(torch.randn(BATCH, 6, 12), mask)
    return method, images, method.encode_text(torch.randn(BATCH, 6, 10), mask)


def terms_of(name: str, epoch: int = 5, **arguments: Any) -> dict[str, torch.Tensor]:
    """The terms of a method's objective with other arguments than its defaults."""
    return build_objective(name, arguments)(*views_of(name), IDS, epoch)


def encoded(method: Method, words: int = 6) -> tuple[Views, Views]:
    """One image and one text, with attention, by a method in eval mode."""
    return conftest.encoded(method, count=1, cells=20, words=words)


def by_name(arrays: list[NamedArray]) -> dict[str, NamedArray]:
    """Arrays by their names."""
    return {array.name: array for array in arrays}


def hinge_triplet(
    scores: torch.Tensor, positives: torch.Tensor, margin: float, *, hardest: bool = True
) -> torch.Tensor:
    """The hinge triplet loss, summed over pairs and both directions."""
    return pair_costs(scores, positives, Hinge(margin, hardest)).sum()
