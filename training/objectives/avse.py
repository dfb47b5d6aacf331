"""AVSE's objective (Liu et al., AAAI 2025): hinges and a dimension-wise regulariser."""

from itertools import combinations

import torch
from pydantic import Field
from torch import Tensor

from polyview.models import Method, Views
from polyview.models.layers import l2_normalize
from polyview.training.objectives.losses import Triplet


class Asymmetric(Triplet):
    """AVSE's objective, Eq. (6): the hinge triplet loss and the dimension-wise regulariser.

    Attributes:
        regulariser: weight of L_reg, the mean of Eq. (4) over pairs of views (1 in Eq. (6)).
        off_diagonal: lambda_1 of Eq. (4) (paper: 0.0051).
        released: use the release's form of the regulariser, see `dimension_wise_regulariser`.
    """

    regulariser: float = Field(default=1.0, ge=0)
    off_diagonal: float = Field(default=0.0051, ge=0)
    released: bool = False

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        terms = super().__call__(method, images, texts, image_ids, epoch)
        groups = images.extras["groups"].unbind(dim=1)  # (B, D) each
        if self.regulariser and len(groups) > 1:
            losses = [
                dimension_wise_regulariser(first, second, self.off_diagonal, released=self.released)
                for first, second in combinations(groups, 2)
            ]
            terms["regulariser"] = self.regulariser * torch.stack(losses).mean()
        return terms


def dimension_wise_regulariser(
    first: Tensor, second: Tensor, off_diagonal: float = 0.0051, *, released: bool = False
) -> Tensor:
    """Returns AVSE's dimension-wise regulariser of two views (B, D), Eqs. (3)-(4); a scalar.

    `off_diagonal` is lambda_1. `released` also divides the correlations by B, as the release does,
    which keeps the diagonal far below its target of 1.
    """
    correlation = l2_normalize(first.T) @ l2_normalize(second.T).T  # Eq. (3): (D, D)
    if released:
        correlation = correlation / len(first)
    diagonal = correlation.diagonal()
    off_diagonal_sum = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + off_diagonal * off_diagonal_sum  # Eq. (4)
