"""MVAM's objective (arXiv 2402.17237): InfoNCE and a diversity loss on the codes' attention."""

import torch
from pydantic import Field
from torch import Tensor

from polyview.models import Method, Views
from polyview.training.objectives.losses import Objective, info_nce, same_image


class Contrastive(Objective):
    """InfoNCE, MVAM Eqs. (5)-(6), for the paper's baselines.

    Attributes:
        temperature: divides the scores (1 in Eq. (5)), unless the method learns a temperature.
    """

    temperature: float = Field(default=1.0, gt=0)

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        del epoch  # the loss does not depend on the epoch
        learned_temperature = method.contrastive_temperature()
        temperature = self.temperature if learned_temperature is None else learned_temperature
        positives = same_image(image_ids)
        return {"contrastive": info_nce(method.score(images, texts), positives, temperature)}


class DiverseContrastive(Contrastive):
    """MVAM's objective, Eq. (13).

    Attributes:
        diversity: beta, the weight of the diversity loss (paper: 10).
        square_root: compare square roots of attention weights, Eq. (11), the paper's variant.
    """

    diversity: float = Field(default=10.0, ge=0)
    square_root: bool = False

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        terms = super().__call__(method, images, texts, image_ids, epoch)
        if self.diversity:
            sides = (images.extras["attention"], texts.extras["attention"])
            first, second = (attention_overlap(s, square_root=self.square_root) for s in sides)
            terms["diversity"] = self.diversity * (first + second)  # Eqs. (12)-(13)
        return terms


def attention_overlap(attention: Tensor, *, square_root: bool = False) -> Tensor:
    """Returns MVAM's diversity loss of the attention (B, m, N) of m view codes; a scalar.

    The loss is the mean of Eq. (10) over the batch, or of Eq. (11) with `square_root`.
    """
    weights = attention.clamp_min(1e-20).sqrt() if square_root else attention  # sqrt'(0) is inf
    target = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
    return (weights @ weights.mT - target).square().sum(dim=(1, 2)).mean()
