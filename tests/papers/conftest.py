"""Views of a random batch, and the loss terms of a method's objective."""

from typing import Any

import torch
from torch import Tensor

from polyview import models
from polyview.models import Method, Views
from polyview.models.views import NamedArray
from polyview.training.objectives import build_objective
from polyview.training.objectives.losses import Hinge, pair_costs

IDS = torch.tensor([0, 1, 2, 1])
BATCH = len(IDS)
Made = tuple[Method, Views, Views]
Terms = dict[str, Tensor]


def views_of(name: str, **arguments: Any) -> Made:
    """Returns a method in training mode, and its views of a batch of images and texts."""
    torch.manual_seed(0)
    method = models.build(name, 12, 10, {"embed_dim": 8, **arguments}).train()
    mask = torch.ones(BATCH, 6, dtype=torch.bool)
    images = method.encode_image(torch.randn(BATCH, 6, 12), mask)
    return method, images, method.encode_text(torch.randn(BATCH, 6, 10), mask)


def terms_of(name: str, epoch: int = 5, made: Made | None = None, **settings: Any) -> Terms:
    """Returns the loss terms of `made`, by default `views_of(name)`."""
    return build_objective(name, settings)(*(made or views_of(name)), IDS, epoch)


def by_name(arrays: list[NamedArray]) -> dict[str, NamedArray]:
    return {array.name: array for array in arrays}


def hinge_triplet(scores: Tensor, own: Tensor, margin: float, *, hardest: bool = True) -> Tensor:
    return pair_costs(scores, own, Hinge(margin, hardest)).sum()
