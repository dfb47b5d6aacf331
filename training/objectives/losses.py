"""Ranking losses of a batch's scores, and the objectives of VSE++, VSE-infinity and MV-VSE.

Each loss is built on a cost, `Hinge` or `Softmax`. A cost compares the score of a matching pair
("own") with the scores of its negatives ("rivals"). All losses of MV-VSE work with both costs.
Other captions of the same image are never negatives.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyview.models import Method, Views
from polyview.training.settings import Settings

# maps own scores (..., B) and rivals' scores (..., B, B) to costs (..., B, M), M for each pair
Cost = Callable[[Tensor, Tensor], Tensor]

_FINAL_SHARPNESS = 40.0  # inverse temperature at the end of `MultiView.anneal_epochs`


@dataclass(frozen=True)
class Hinge:
    """The hinge [margin - own + rival]+ of VSE-infinity, Eq. (1).

    With `hardest`, only the hardest negative counts (M = 1), otherwise all negatives do (M = B).
    """

    margin: float = 0.2
    hardest: bool = True

    def __call__(self, own: Tensor, rivals: Tensor) -> Tensor:
        """Returns costs (..., B, M) of own scores (..., B) and rivals' scores (..., B, B)."""
        if self.hardest:
            rivals = rivals.amax(dim=-1, keepdim=True)
        return (self.margin - own[..., None] + rivals).clamp_min(0.0)


@dataclass(frozen=True)
class Softmax:
    """t log(1 + sum exp((margin - own + rival) / t)): a smooth maximum of 0 and all hinges.

    Without a margin and divided by the temperature t, this is the cross-entropy of InfoNCE. With a
    margin, it is the "unified loss" of MV-VSE's release, where t is 0.01.
    """

    temperature: float | Tensor = 0.05
    margin: float = 0.0

    def __call__(self, own: Tensor, rivals: Tensor) -> Tensor:
        """Returns costs (..., B, 1) of own scores (..., B) and rivals' scores (..., B, B)."""
        is_inf = rivals == -torch.inf  # replaced before the division, to avoid a NaN gradient
        gaps = (self.margin - own[..., None] + rivals.masked_fill(is_inf, 0.0)) / self.temperature
        gaps = gaps.masked_fill(is_inf, -torch.inf)
        gaps = torch.cat([torch.zeros_like(gaps[..., :1]), gaps], dim=-1)
        return self.temperature * gaps.logsumexp(dim=-1, keepdim=True)


def same_image(image_ids: Tensor) -> Tensor:
    """Returns the mask (B, B) of pairs with equal image ids (B,)."""
    return image_ids[:, None] == image_ids


def own_scores(scores: Tensor) -> Tensor:
    """Returns the scores (..., B) of matching pairs: the diagonal of (..., B, B)."""
    return scores.diagonal(dim1=-2, dim2=-1)


def rival_scores(scores: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scores (..., B, B) with -inf at `positives` (B, B), for both directions.

    The rows of the first result belong to images, and the rows of the second belong to texts.
    """
    negatives = scores.masked_fill(positives, -torch.inf)
    return negatives, negatives.mT


def pair_costs(scores: Tensor, positives: Tensor, cost: Cost, own: Tensor | None = None) -> Tensor:
    """Returns the cost (..., B) of each pair against its negatives, summed over both directions.

    Matching pairs are on the diagonal of `scores` (..., B, B); `own` (..., B) can replace the
    diagonal. `positives` (B, B) bool are never negatives; the papers' releases exclude only the
    pair itself, `torch.eye(B)`. With `Hinge`, this is the triplet loss of VSE-infinity Eq. (1),
    MV-VSE Eq. (7) and AVSE Eq. (5). It adds [margin - s(x, t) + s(x, t^)]+ for the hardest negative
    text t^ and the same term for the hardest negative image.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
    >>> pair_costs(scores, torch.eye(2).bool(), Hinge(0.2)).tolist()
    [0.10000002384185791, 0.5]
    """
    own = own_scores(scores) if own is None else own
    rival_texts, rival_images = rival_scores(scores, positives)
    return cost(own, rival_texts).sum(dim=-1) + cost(own, rival_images).sum(dim=-1)


def info_nce(scores: Tensor, positives: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Returns the in-batch contrastive loss, MVAM Eqs. (5)-(6); a scalar.

    The loss is the mean over the batch and both directions. Matching pairs are on the diagonal of
    `scores` (B, B). Other captions of the same image (`positives`) are left out of the denominator.
    The temperature divides the scores and may be learned; the paper's loss has no temperature.
    """
    costs = pair_costs(scores, positives, Softmax(temperature))
    return costs.mean() / (2 * temperature)  # Eq. (6)


class Objective(Settings):
    """Computes the loss of a batch of views; the fields are a recipe's table `[objective]`."""

    @abstractmethod
    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """Returns the named loss terms of B pairs; the loss is their sum.

        Text b belongs to image b. The views have the extras that the method adds in training.
        `image_ids` (B,) are equal for pairs of the same image. The epoch counts from 0.
        """


class Triplet(Objective):
    """The hinge triplet loss with hardest negatives, summed over the batch.

    From VSE++ (Faghri et al., BMVC 2018) and VSE-infinity (Chen et al., CVPR 2021).

    Attributes:
        margin: alpha (0.2 in VSE++, VSE-infinity, MV-VSE and AVSE).
        warmup_epochs: number of epochs at the start that sum over all negatives, "mean warm-up" in
            VSE-infinity's release (1 there); not in the papers.
        cost: "triplet", or "softmax" for InfoNCE's cross-entropy in place of hinges, multiplied by
            the temperature, so that the loss is about as large as with hinges.
        temperature: temperature of "softmax".
    """

    margin: float = Field(default=0.2, gt=0, le=2)
    warmup_epochs: int = Field(default=0, ge=0)
    cost: Literal["triplet", "softmax"] = "triplet"
    temperature: float = Field(default=0.05, gt=0)

    def cost_at(self, epoch: int) -> Cost:
        """Returns the cost to use in an epoch, counted from 0."""
        if self.cost == "softmax":
            return Softmax(self.temperature)
        return Hinge(self.margin, epoch >= self.warmup_epochs)

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        positives = same_image(image_ids)
        costs = pair_costs(method.score(images, texts), positives, self.cost_at(epoch))
        return {self.cost: costs.sum()}


class MultiView(Triplet):
    """MV-VSE's Eq. (15), and the other losses of the paper's Table 3, for K views.

    Li et al., IJCAI 2022, section 3.3. The paper defines the losses for the hinge triplet loss and
    notes that other losses can be adapted; here `cost` selects hinges or the softmax.

    Attributes:
        loss: "mix" (Eq. 15), "max" (Eq. 9), "avg" (Eq. 8), "up" (Eq. 10) or "rough" (Eq. 13), all
            summed over the batch, or "released", an average that exchanges `lam` and 1 - `lam`.
        lam: lambda of Eq. (15) (paper: 0.7).
        anneal_epochs: number of epochs at the start in which the score of an image is a
            softmax-weighted mean of its view scores. The mean sharpens towards the maximum, so that
            all views learn from their random weights before they compete; not in the paper.
    """

    loss: Literal["mix", "max", "avg", "up", "rough", "released"] = "mix"
    lam: float = Field(default=0.7, ge=0, le=1)
    anneal_epochs: int = Field(default=0, ge=0)

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        positives = same_image(image_ids)
        view_scores, cost = method.view_scores(images, texts), self.cost_at(epoch)  # (K, B, B)
        if epoch < self.anneal_epochs:
            weights = (_FINAL_SHARPNESS * epoch / self.anneal_epochs * view_scores).softmax(dim=0)
            mean_scores = (weights * view_scores).sum(dim=0)  # (B, B)
            return {"shared": pair_costs(mean_scores, positives, cost).sum()}
        if self.loss == "released":
            upper, lower = released_losses(view_scores, positives, cost)
            return {"upper": self.lam * upper, "lower": (1 - self.lam) * lower}
        if self.loss == "avg":
            return {"avg": pair_costs(view_scores, positives, cost).mean(dim=0).sum()}  # Eq. (8)
        max_weight = {"mix": self.lam, "max": 1.0}.get(self.loss, 0.0)
        terms = {}
        if max_weight:
            best_scores = view_scores.amax(dim=0)  # s*, Eq. (6)
            terms["max"] = max_weight * pair_costs(best_scores, positives, cost).sum()  # Eq. (9)
        if max_weight < 1:
            upper = upper_bound_loss(view_scores, positives, cost, rough=self.loss == "rough").sum()
            terms["up"] = (1 - max_weight) * upper  # Eq. (15)
        return terms


def upper_bound_loss(
    view_scores: Tensor, positives: Tensor, cost: Cost, *, rough: bool = False
) -> Tensor:
    """Returns MV-VSE's upper bound L_MV-Up (B,) of view scores (K, B, B), Eqs. (10)-(12).

    Each view's score of a pair is compared with the best view's scores of negatives. A cost counts
    only if it is positive for all views; costs of `Softmax` are always positive. With `rough`,
    every cost counts: L_MV-Up-Rough, Eq. (13).
    """
    own = own_scores(view_scores)  # (K, B)
    total = own.new_zeros(own.shape[1])
    for negatives in rival_scores(view_scores.amax(dim=0), positives):
        costs = cost(own, negatives)  # (K, B, M)
        if not rough:
            costs = costs * (costs > 0).all(dim=0)  # Eqs. (11)-(12)
        total = total + costs.mean(dim=0).sum(dim=-1)  # Eq. (10)
    return total


def released_losses(view_scores: Tensor, positives: Tensor, cost: Cost) -> tuple[Tensor, Tensor]:
    """Returns the two terms of MV-VSE's release, averaged over the batch and both directions.

    The release weights the terms 0.7 and 0.3. With `Hinge`, they are the "triplet" loss of the
    release. With `Softmax` and a margin, they are its "unified" loss. The release's `positives` are
    only the matching pairs.

    Returns:
        The upper bound of Eq. (13), and a lower bound in place of Eq. (9). The lower bound compares
        the best view's score of a pair with each view's negatives; it is the mean over the K views.
    """
    upper = upper_bound_loss(view_scores, positives, cost, rough=True)
    best_scores = own_scores(view_scores).amax(dim=0).expand(len(view_scores), -1)  # (K, B)
    lower = pair_costs(view_scores, positives, cost, best_scores)
    return upper.mean() / 2, lower.mean() / 2
