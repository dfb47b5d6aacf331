"""The hinge triplet loss, of VSE++ (Faghri et al., BMVC 2018) and VSE-infinity (CVPR 2021)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from models import Method, Views
from training.objectives.losses import Cost, Hinge, Softmax, hinge_triplet, pair_costs, same_image
from training.objectives.objective import Objective


class Triplet(Objective):
    """Hinge triplet loss with hardest negatives, summed over the batch.

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
        """What a pair's own score costs beside its rivals'."""
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
