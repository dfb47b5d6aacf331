"""Objectives: which losses a method trains with. One entry a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from models import Method, Views
from training.losses import hinge_triplet, same_image


class Objective(Protocol):
    """Turns a batch's views into named loss terms; the trainer sums them."""

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """Computes the terms.

        Args:
            method: gives the scores.
            images: views of B images.
            texts: views of B texts; text b belongs to image b.
            image_ids: (B,) ids, equal where the batch holds an image twice.
            epoch: counted from 0.
        """


@dataclass(frozen=True)
class Triplet:
    """Hinge triplet loss with hardest negatives.

    Attributes:
        margin: alpha (0.2 in VSE++, VSE-infinity, MV-VSE and AVSE).
        summed_epochs: first epochs that sum over all negatives, the releases' "mean warm-up".
    """

    margin: float = 0.2
    summed_epochs: int = 1

    def __post_init__(self) -> None:
        """Refuses a margin outside (0, 2] and negative epochs."""
        if not 0 < self.margin <= 2:
            raise ValueError(f"objective.margin must be above 0 and at most 2, not {self.margin}")
        if self.summed_epochs < 0:
            raise ValueError(f"objective.summed_epochs must be 0 or more, not {self.summed_epochs}")

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        positives = same_image(image_ids, image_ids)
        scores = method.score(images, texts)
        hardest = epoch >= self.summed_epochs
        loss = hinge_triplet(scores, positives, self.margin, hardest=hardest)
        if not torch.isfinite(loss):
            raise ValueError("the triplet loss is not finite; lower optimizer.learning_rate")
        return {"triplet": loss}


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "vsepp": Triplet,
    "vse_infty": Triplet,
}


def build_objective(method: str, arguments: dict[str, Any]) -> Objective:
    """Builds a method's objective from its named arguments.

    Raises:
        ValueError: the method has no objective, or the objective has no such argument.
    """
    if method not in OBJECTIVES:
        raise ValueError(f'method "{method}" has no objective; add one in training/objectives.py')
    known = inspect.signature(OBJECTIVES[method]).parameters
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(
            f'objective of "{method}" has no "{unknown[0]}"; it takes {", ".join(known)}'
        )
    return OBJECTIVES[method](**arguments)
