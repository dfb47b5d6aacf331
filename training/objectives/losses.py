"""Ranking losses: functions of a batch's scores, and the objective that VSE++ and VSE-infinity use.

All losses have one building block, the cost of a pair's own score against its rivals' (`Hinge`,
`Softmax`), so that a method's way of choosing scores (`training/objectives/mv_vse.py`) works with
every cost. Another caption of the same image is never a rival.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from models import Method, Views
from training.settings import Settings

# own scores (..., B) and rivals' scores (..., B, B) to costs (..., B, M), one for each constraint
Cost = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Hinge:
    """[margin - own + rival]+, VSE-infinity Eq. (1).

    Attributes:
        margin: alpha.
        hardest: only the hardest rival counts (M = 1), else each one (M = B).
    """

    margin: float = 0.2
    hardest: bool = True

    def __call__(self, own: Tensor, rivals: Tensor) -> Tensor:
        """(..., B), (..., B, B) -> (..., B, M)."""
        if self.hardest:
            rivals = rivals.amax(dim=-1, keepdim=True)
        return (self.margin - own[..., None] + rivals).clamp_min(0.0)


@dataclass(frozen=True)
class Softmax:
    """t log(1 + sum exp((margin - own + rival) / t)): a smooth maximum of 0 and all hinges.

    Divided by t, and without margin, it is the cross-entropy of InfoNCE. With a margin it is the
    "unified loss" of MV-VSE's release (t 0.01 there).

    Attributes:
        temperature: t, a number or a learnable scalar.
        margin: see `Hinge`.
    """

    temperature: float | Tensor = 0.05
    margin: float = 0.0

    def __call__(self, own: Tensor, rivals: Tensor) -> Tensor:
        """(..., B), (..., B, B) -> (..., B, 1)."""
        absent = rivals == -torch.inf  # kept out of the division, whose gradient would be NaN
        gaps = (self.margin - own[..., None] + rivals.masked_fill(absent, 0.0)) / self.temperature
        gaps = gaps.masked_fill(absent, -torch.inf)
        gaps = torch.cat([torch.zeros_like(gaps[..., :1]), gaps], dim=-1)
        return self.temperature * gaps.logsumexp(dim=-1, keepdim=True)


def same_image(row_ids: Tensor, column_ids: Tensor) -> Tensor:
    """Which image-text pairs belong together, the batch's duplicates of an image included.

    Args:
        row_ids: (B_img,) image ids.
        column_ids: (B_txt,) ids of the images that the texts describe.

    Returns:
        (B_img, B_txt) bool.
    """
    return row_ids[:, None] == column_ids[None, :]


def own_scores(scores: Tensor) -> Tensor:
    """The scores of the pairs themselves, (..., B, B) -> (..., B)."""
    return scores.diagonal(dim1=-2, dim2=-1)


def rivals(scores: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Scores with -inf where image and text belong together, for both directions.

    Args:
        scores: (..., B, B).
        positives: (B, B) bool, True where image and text belong together.

    Returns:
        (..., B, B) with a row for each image (its rivals are texts), and with a row for each text.
    """
    left = scores.masked_fill(positives, -torch.inf)
    return left, left.mT


def pair_costs(scores: Tensor, positives: Tensor, cost: Cost) -> Tensor:
    """What each pair costs beside its rivals, both directions added.

    Args:
        scores: (..., B, B).
        positives: (B, B) bool, never rivals.
        cost: for example `Hinge(margin)`.

    Returns:
        (..., B).
    """
    own = own_scores(scores)
    return torch.stack([cost(own, r).sum(dim=-1) for r in rivals(scores, positives)]).sum(dim=0)


def hinge_triplet(
    scores: Tensor, positives: Tensor, margin: float = 0.2, *, hardest: bool = True
) -> Tensor:
    """Hinge triplet loss over a batch of pairs, summed over the batch and both directions.

    VSE-infinity Eq. (1), MV-VSE Eq. (7), AVSE Eq. (5): [margin - s(x, t) + s(x, t^)]+ with t^ the
    hardest negative text, plus the same with the hardest negative image. The releases exclude only
    the pair itself; that is `positives = torch.eye(B)`.

    Args:
        scores: (B, B); pair b stands on the diagonal.
        positives: (B, B) bool, True where image and text belong together: never a negative.
        margin: alpha of Eq. (1).
        hardest: keep only the hardest negative of each row and column, else sum over all.

    Returns:
        The loss, a scalar.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
    >>> round(hinge_triplet(scores, torch.eye(2).bool()).item(), 4)
    0.6
    """
    cost, own = Hinge(margin, hardest), own_scores(scores)
    texts, images = rivals(scores, positives)
    return cost(own, texts).sum() + cost(own, images).sum()


def info_nce(scores: Tensor, positives: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """In-batch contrastive loss, MVAM Eqs. (5)-(6): the mean over the batch and both directions.

    Args:
        scores: (B, B) cosines; pair b stands on the diagonal.
        positives: (B, B) bool; only the pair itself is the positive, its image's other captions are
            left out of the sum.
        temperature: divides the scores; the paper has none, which is 1. May be learnable.

    Returns:
        The loss, a scalar.
    """
    cost, own = Softmax(temperature), own_scores(scores)
    texts, images = rivals(scores, positives)
    return (cost(own, texts) + cost(own, images)).mean() / (2 * temperature)  # Eq. (6)


class Objective(Settings):
    """Turns a batch's views into named loss terms, which are summed; a recipe's `objective`."""

    @abstractmethod
    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """Computes the terms.

        Args:
            method: gives the scores.
            images: views of B images, with the extras that the method gives in training.
            texts: views of B texts; text b belongs to image b.
            image_ids: (B,) ids, equal where the batch holds an image twice.
            epoch: counted from 0.
        """


class Triplet(Objective):
    """The hinge triplet loss with hardest negatives, summed over the batch.

    Of VSE++ (Faghri et al., BMVC 2018) and VSE-infinity (Chen et al., CVPR 2021).

    Attributes:
        margin: alpha (0.2 in VSE++, VSE-infinity, MV-VSE and AVSE).
        warmup_epochs: first epochs that sum over all negatives, "mean warm-up" in VSE-infinity's
            release (1 there); no paper speaks of it.
        cost: "triplet", or "softmax" for InfoNCE's cross-entropy in place of hinges, times the
            temperature, which keeps its size near that of hinges.
        temperature: of the softmax.
    """

    margin: float = Field(default=0.2, gt=0, le=2)
    warmup_epochs: int = Field(default=0, ge=0)
    cost: Literal["triplet", "softmax"] = "triplet"
    temperature: float = Field(default=0.05, gt=0)

    def cost_at(self, epoch: int) -> Cost:
        """The cost of a pair's own score against its rivals' in an epoch, counted from 0."""
        if self.cost == "softmax":
            return Softmax(self.temperature)
        return Hinge(self.margin, epoch >= self.warmup_epochs)

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        positives = same_image(image_ids, image_ids)
        scores = method.score(images, texts)
        if self.cost == "softmax":
            loss = pair_costs(scores, positives, self.cost_at(epoch)).sum()
        else:
            hardest = epoch >= self.warmup_epochs
            loss = hinge_triplet(scores, positives, self.margin, hardest=hardest)
        if not torch.isfinite(loss):
            raise ValueError(f"the {self.cost} loss is not finite; lower optimizer.learning_rate")
        return {self.cost: loss}
