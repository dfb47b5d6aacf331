"""DivE's objective (Kim et al., CVPR 2023): PVSE's, with slots that repel each other."""

import torch
from pydantic import Field
from torch import Tensor

from models.layers import l2_normalize
from training.objectives.pvse import Polysemous


class RepellingSlots(Polysemous):
    """The triplet loss over smooth-Chamfer similarities, section 3.4, with both regularisers.

    Attributes:
        margin: of the triplet loss (the release's value).
        diversity: weight of `slot_uniformity` (paper: 0.01).
        discrepancy: weight of the maximum mean discrepancy (paper: 0.01).
        hardest: only hardest negatives.
        released: see `Polysemous`; DivE's release has PVSE's forms.
    """

    margin: float = Field(default=0.1, gt=0, le=2)
    diversity: float = Field(default=0.01, ge=0)
    discrepancy: float = Field(default=0.01, ge=0)
    hardest: bool = True
    released: bool = True

    def redundancy(self, residuals: Tensor) -> Tensor:
        """See `Polysemous.redundancy`."""
        return slot_uniformity(residuals)


def slot_uniformity(residuals: Tensor) -> Tensor:
    """How near each other the slots of a set are: the mean of exp(-2 |x - y|^2) over their pairs.

    Args:
        residuals: (B, K, D) slots, without the global feature; only their directions count.

    Returns:
        The mean over the batch, a scalar in 0..1; 0 for one slot.
    """
    count = residuals.shape[1]
    first, second = torch.triu_indices(count, count, 1, device=residuals.device)
    if not len(first):
        return residuals.new_zeros(())
    unit = l2_normalize(residuals)
    gaps = (unit[:, first] - unit[:, second]).square().sum(dim=2)  # (B, pairs)
    return torch.exp(-2 * gaps).mean()
