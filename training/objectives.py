"""Objectives: which losses a method trains with. One entry a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import torch
from torch import Tensor

from models import Method, Views
from training.losses import (
    Cost,
    Hinge,
    Softmax,
    hinge_triplet,
    info_nce,
    multiple_instance,
    same_image,
)
from training.multiview_losses import (
    best_view_loss,
    each_view_loss,
    released_losses,
    upper_bound_loss,
)
from training.regularizers import (
    attention_overlap,
    dimension_wise,
    gram_diversity,
    maximum_mean_discrepancy,
)


class Objective(Protocol):
    """Turns a batch's views into named loss terms; the trainer sums them."""

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


@dataclass(frozen=True)
class Triplet:
    """Hinge triplet loss with hardest negatives, summed over the batch.

    Attributes:
        margin: alpha (0.2 in VSE++, VSE-infinity, MV-VSE and AVSE).
        summed_epochs: first epochs that sum over all negatives, the releases' "mean warm-up".
        cost: "triplet", or "softmax" for InfoNCE's cross-entropy in place of hinges, times the
            temperature, which keeps its size near that of hinges.
        temperature: of the softmax.
    """

    margin: float = 0.2
    summed_epochs: int = 1
    cost: str = "triplet"
    temperature: float = 0.05

    def __post_init__(self) -> None:
        """Refuses a margin outside (0, 2], negative epochs, and other costs."""
        _require(0 < self.margin <= 2, "margin", self.margin, "above 0 and at most 2")
        _require(self.summed_epochs >= 0, "summed_epochs", self.summed_epochs, "0 or more")
        _require(self.cost in ("triplet", "softmax"), "cost", self.cost, "triplet or softmax")
        _require(self.temperature > 0, "temperature", self.temperature, "above 0")

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        positives = same_image(image_ids, image_ids)
        scores = method.score(images, texts)
        if self.cost == "softmax":
            loss = best_view_loss(scores[None], positives, Softmax(self.temperature)).sum()
        else:
            hardest = epoch >= self.summed_epochs
            loss = hinge_triplet(scores, positives, self.margin, hardest=hardest)
        if not torch.isfinite(loss):
            raise ValueError(f"the {self.cost} loss is not finite; lower optimizer.learning_rate")
        return {self.cost: loss}


@dataclass(frozen=True)
class MultiView(Triplet):
    """MV-VSE's loss, Eq. (15), and the others of its Table 3; summed over the batch.

    Attributes:
        loss: "mix" (Eq. 15), "max" (Eq. 9), "avg" (Eq. 8), "up" (Eq. 10), "rough" (Eq. 13), or
            "released": what the authors published, with the weights in the other order.
        lam: lambda of Eq. (15) (paper: 0.7).
    """

    loss: str = "mix"
    lam: float = 0.7

    def __post_init__(self) -> None:
        """Refuses unknown losses and numbers that make no sense."""
        super().__post_init__()
        losses = ("mix", "max", "avg", "up", "rough", "released")
        _require(self.loss in losses, "loss", self.loss, f"one of {', '.join(losses)}")
        _require(0 <= self.lam <= 1, "lam", self.lam, "0 to 1")

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        cost: Cost = Hinge(self.margin, epoch >= self.summed_epochs)
        if self.cost == "softmax":
            cost = Softmax(self.temperature)
        positives = same_image(image_ids, image_ids)
        given = method.view_scores(images, texts), positives, cost
        if self.loss == "released":
            upper, lower = released_losses(*given)
            return {"upper": self.lam * upper, "lower": (1 - self.lam) * lower}
        if self.loss == "avg":
            return {"avg": each_view_loss(*given).sum()}
        share = {"mix": self.lam, "max": 1.0}.get(self.loss, 0.0)
        terms = {}
        if share:
            terms["max"] = share * best_view_loss(*given).sum()
        if share < 1:
            up = upper_bound_loss(*given, rough=self.loss == "rough").sum()
            terms["up"] = (1 - share) * up  # Eq. (15)
        return terms


@dataclass(frozen=True)
class Polysemous:
    """PVSE's objective, Eq. (5).

    Attributes:
        margin: rho (the paper tries 0.1 to 1; the release's default is 0.1).
        diversity: lambda_1 (the paper tries 0.1, 0.01 and 0.001).
        discrepancy: lambda_2 (likewise).
        relative: weigh a term by lambda L_mil / L, as in the paper's Fig. 7.
        hardest: only hardest negatives, an option of the release.
        summed_epochs: first epochs with all negatives although `hardest` is set.
        released: the release's forms of all three losses, see `training/losses.py` and
            `training/regularizers.py`.
        gamma: of the kernel of the discrepancy (the release's value).
    """

    margin: float = 0.1
    diversity: float = 0.01
    discrepancy: float = 0.01
    relative: bool = False
    hardest: bool = False
    summed_epochs: int = 1
    released: bool = False
    gamma: float = 0.5

    def __post_init__(self) -> None:
        """Refuses numbers that make no sense."""
        _require(0 < self.margin <= 2, "margin", self.margin, "above 0 and at most 2")
        _require(self.diversity >= 0, "diversity", self.diversity, "0 or more")
        _require(self.discrepancy >= 0, "discrepancy", self.discrepancy, "0 or more")
        _require(self.summed_epochs >= 0, "summed_epochs", self.summed_epochs, "0 or more")
        _require(self.gamma > 0, "gamma", self.gamma, "above 0")

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        scores, positives = method.score(images, texts), same_image(image_ids, image_ids)
        hardest = self.hardest and epoch >= self.summed_epochs
        form = {"released": self.released, "hardest": hardest}
        ranking = multiple_instance(scores, positives, self.margin, **form)
        terms = {"mil": ranking}
        if self.diversity and "residuals" in images.extras:  # K = 0 has none
            sides = (images.extras["residuals"], texts.extras["residuals"])
            first, second = (gram_diversity(side, released=self.released) for side in sides)
            terms["diversity"] = self._weigh(self.diversity, first + second, ranking)
        if self.discrepancy:
            embeddings = images.embeddings, texts.embeddings
            mmd = maximum_mean_discrepancy(*embeddings, self.gamma, released=self.released)
            terms["discrepancy"] = self._weigh(self.discrepancy, mmd, ranking)
        return terms

    def _weigh(self, weight: float, term: Tensor, ranking: Tensor) -> Tensor:
        if not self.relative:
            return weight * term
        return weight * (ranking / term.clamp_min(1e-12)).detach() * term


@dataclass(frozen=True)
class Asymmetric(Triplet):
    """AVSE's objective, Eq. (6): the hinge triplet loss and the dimension-wise regulariser.

    Attributes:
        regulariser: weight of L_reg (1 in Eq. 6); over more than two views, its mean over pairs.
        off_diagonal: lambda_1 of Eq. (4) (paper: 0.0051).
        released: the release's form of the regulariser, see `dimension_wise`.
    """

    regulariser: float = 1.0
    off_diagonal: float = 0.0051
    released: bool = False

    def __post_init__(self) -> None:
        """Refuses numbers that make no sense."""
        super().__post_init__()
        _require(self.regulariser >= 0, "regulariser", self.regulariser, "0 or more")
        _require(self.off_diagonal >= 0, "off_diagonal", self.off_diagonal, "0 or more")

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        terms = super().__call__(method, images, texts, image_ids, epoch)
        groups = images.extras["groups"].unbind(dim=1)  # (B, D) each
        if self.regulariser and len(groups) > 1:
            losses = [
                dimension_wise(first, second, self.off_diagonal, released=self.released)
                for first, second in combinations(groups, 2)
            ]
            terms["regulariser"] = self.regulariser * torch.stack(losses).mean()
        return terms


@dataclass(frozen=True)
class Contrastive:
    """InfoNCE, MVAM Eqs. (5)-(6), for the paper's baselines.

    Attributes:
        temperature: divides the scores; 1 is Eq. (5). A method's learned temperature goes before.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Refuses a temperature that is not positive."""
        _require(self.temperature > 0, "temperature", self.temperature, "above 0")

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        del epoch  # the objective stays the same
        learned = method.contrastive_temperature()
        temperature = self.temperature if learned is None else learned
        positives = same_image(image_ids, image_ids)
        return {"contrastive": info_nce(method.score(images, texts), positives, temperature)}


@dataclass(frozen=True)
class DiverseContrastive(Contrastive):
    """MVAM's objective, Eq. (13).

    Attributes:
        diversity: beta (paper: 10).
        square_root: compare the roots of attention weights, Eq. (11), the paper's variant.
    """

    diversity: float = 10.0
    square_root: bool = False

    def __post_init__(self) -> None:
        """Refuses numbers that make no sense."""
        super().__post_init__()
        _require(self.diversity >= 0, "diversity", self.diversity, "0 or more")

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        terms = super().__call__(method, images, texts, image_ids, epoch)
        if self.diversity:
            sides = (images.extras["attention"], texts.extras["attention"])
            first, second = (attention_overlap(s, square_root=self.square_root) for s in sides)
            terms["diversity"] = self.diversity * (first + second)  # Eqs. (12)-(13)
        return terms


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "vsepp": Triplet,
    "vse_infty": Triplet,
    "mv_vse": MultiView,
    "pvse": Polysemous,
    "avse": Asymmetric,
    "mvam": DiverseContrastive,
    "base_attn": Contrastive,
    "base_cls": Contrastive,
}


def build_objective(method: str, arguments: dict[str, Any]) -> Objective:
    """Builds a method's objective from its named arguments.

    Raises:
        ValueError: the method has no objective, or the objective has no such argument.
    """
    if method not in OBJECTIVES:
        raise ValueError(
            f'method "{method}" has no objective, so it cannot be trained: use ready-made weights '
            "(for CLIP: python -m export.clip), or add one in training/objectives.py"
        )
    known = inspect.signature(OBJECTIVES[method]).parameters
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(
            f'objective of "{method}" has no "{unknown[0]}"; it takes {", ".join(known)}'
        )
    return OBJECTIVES[method](**arguments)


def _require(holds: bool, name: str, value: object, range_: str) -> None:
    if not holds:
        raise ValueError(f"objective.{name} must be {range_}, not {value}")
