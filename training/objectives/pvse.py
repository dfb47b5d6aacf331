"""PVSE's objective (Song and Soleymani, CVPR 2019): multiple instances, diversity, discrepancy."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from polyview.models import Method, Views
from polyview.models.layers import l2_normalize
from polyview.training.objectives import losses
from polyview.training.objectives.losses import Triplet


class Polysemous(Triplet):
    """PVSE's objective, Eq. (5).

    Attributes:
        margin: rho (the paper tries 0.1 to 1; the release's default is 0.1).
        diversity: lambda_1 (the paper tries 0.1, 0.01 and 0.001).
        discrepancy: lambda_2 (the paper tries the same values).
        relative: weight diversity and discrepancy losses L by lambda L_mil / L, as in Fig. 7.
        hardest: use only the hardest negatives, an option of the release.
        warmup_epochs: number of epochs at the start that use all negatives despite `hardest`.
        released: use the release's forms of all three losses, see the functions below.
        cost, temperature: see `Triplet`; "softmax" is averaged over the batch.
    """

    margin: float = Field(default=0.1, gt=0, le=2)
    diversity: float = Field(default=0.01, ge=0)
    discrepancy: float = Field(default=0.01, ge=0)
    relative: bool = False
    hardest: bool = False
    released: bool = False

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        scores, positives = method.score(images, texts), losses.same_image(image_ids)
        if self.cost == "softmax":
            cost = losses.Softmax(self.temperature)
            ranking_loss = losses.pair_costs(scores, positives, cost).mean()
        else:
            hardest = self.hardest and epoch >= self.warmup_epochs
            options = {"released": self.released, "hardest": hardest}
            ranking_loss = multiple_instance(scores, positives, self.margin, **options)
        terms = {"mil": ranking_loss}
        if self.diversity and "residuals" in images.extras:  # absent if K = 0
            sides = (images.extras["residuals"], texts.extras["residuals"])
            first, second = (gram_diversity(side, released=self.released) for side in sides)
            terms["diversity"] = self._weigh(self.diversity, first + second, ranking_loss)
        if self.discrepancy:
            embeddings = images.embeddings, texts.embeddings
            mmd = maximum_mean_discrepancy(*embeddings, released=self.released)
            terms["discrepancy"] = self._weigh(self.discrepancy, mmd, ranking_loss)
        return terms

    def _weigh(self, weight: float, loss: Tensor, ranking_loss: Tensor) -> Tensor:
        """Multiplies a loss by its weight, and if `relative` scales it to the ranking loss."""
        if not self.relative:
            return weight * loss
        return weight * (ranking_loss / loss.clamp_min(1e-12)).detach() * loss


def multiple_instance(
    scores: Tensor,
    positives: Tensor,
    margin: float = 0.1,
    *,
    released: bool = False,
    hardest: bool = False,
) -> Tensor:
    """Returns PVSE's loss L_mil of scores (B, B), section 3.4; a scalar.

    A score is the best of K x K pairs of views. The paper compares each image with its negative
    texts and divides the sum over all B x B pairs by B^2. The sum includes the matching pairs,
    which add margin / B. The release (`released`) also compares each text with its negative images,
    and omits the matching pairs. `hardest`, an option of the release, uses only the hardest
    negatives and divides by B. `positives` (B, B) bool are never negatives; `margin` is rho.
    """
    cost = losses.Hinge(margin, hardest)
    if released:
        loss = losses.pair_costs(scores, positives, cost).sum()
    else:
        loss = cost(losses.own_scores(scores), losses.rival_scores(scores, positives)[0]).sum()
        loss = loss + (0.0 if hardest else margin * len(scores))  # of matching pairs
    return loss / (len(scores) if hardest else scores.numel())


def gram_diversity(residuals: Tensor, *, released: bool = False) -> Tensor:
    """Returns PVSE's diversity loss of K residuals of width H (B, K, H), Eq. (7); a scalar.

    The loss is the mean over the batch. `released` uses the Frobenius norm, not the paper's 2-norm.
    """
    unit = l2_normalize(residuals)
    view_count = residuals.shape[1]
    gram = unit @ unit.mT - torch.eye(view_count, dtype=unit.dtype, device=unit.device)  # (B, K, K)
    if released:
        norm = gram.flatten(1).norm(dim=1)
    else:
        norm = torch.linalg.eigvalsh(gram).abs().amax(dim=1)
    return norm.mean() / view_count**2  # Eq. (7)


def maximum_mean_discrepancy(
    images: Tensor, texts: Tensor, gamma: float = 0.5, *, released: bool = False
) -> Tensor:
    """Returns PVSE's domain discrepancy loss L_mmd between views (B, K, D), section 3.4; a scalar.

    The loss is at least 0, up to rounding. The kernel is exp(-gamma ||x - y||^2), or with
    `released` exp(-gamma ||x - y||); gamma is 0.5 in the release. `pdist` subtracts rows instead of
    expanding the square, which would be inaccurate for nearly equal rows. It never holds all
    differences in memory.
    """
    rows = torch.cat([images.flatten(0, 1), texts.flatten(0, 1)])  # (2 B K, D)
    count = len(rows) // 2
    distances = F.pdist(rows)
    kernel = torch.exp(-gamma * (distances if released else distances.square()))
    sign = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
    sign[count:] = -1.0  # texts
    first, second = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    kernel_sum = (sign[first] * sign[second] * kernel).sum()
    return 2 * (count + kernel_sum) / count**2  # each row paired with itself adds 1
