"""MV-VSE's objective (Li et al., IJCAI 2022): how K views enter a ranking loss (section 3.3).

The paper writes its losses for the hinge triplet loss and says that others can be rewritten
likewise; here the cost is an argument. The functions return the loss of each pair, (B,), both
directions added, for the caller to sum or average.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from models import Method, Views
from training.objectives.losses import Cost, Triplet, own_scores, pair_costs, rivals, same_image

_SHARPEST = 40.0  # of `anneal_epochs`, which the last of them comes near


class MultiView(Triplet):
    """Eq. (15), and the other losses of Table 3; summed over the batch.

    Attributes:
        loss: "mix" (Eq. 15), "max" (Eq. 9), "avg" (Eq. 8), "up" (Eq. 10), "rough" (Eq. 13), or
            "released": what the authors published, with the weights in the other order.
        lam: lambda of Eq. (15) (paper: 0.7).
        anneal_epochs: first epochs in which all views of an image share its score, by a softmax
            that sharpens from the mean to the maximum, so that views that begin at random all
            learn before they compete; not in the paper.
    """

    loss: Literal["mix", "max", "avg", "up", "rough", "released"] = "mix"
    lam: float = Field(default=0.7, ge=0, le=1)
    anneal_epochs: int = Field(default=0, ge=0)

    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """See `Objective`."""
        positives = same_image(image_ids, image_ids)
        given = method.view_scores(images, texts), positives, self.cost_at(epoch)
        if epoch < self.anneal_epochs:
            shared = shared_scores(given[0], _SHARPEST * epoch / self.anneal_epochs)
            return {"shared": pair_costs(shared, *given[1:]).sum()}
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


def shared_scores(view_scores: Tensor, sharpness: float) -> Tensor:
    """Scores to which all views contribute: sum over k of softmax(sharpness s)_k s_k.

    Args:
        view_scores: (K, B, B).
        sharpness: 0 gives the mean over views; the higher, the nearer to the maximum.

    Returns:
        (B, B).
    """
    return ((sharpness * view_scores).softmax(dim=0) * view_scores).sum(dim=0)


def best_view_loss(view_scores: Tensor, positives: Tensor, cost: Cost) -> Tensor:
    """L_MV-Max, Eq. (9): the cost of the best views' scores s*.

    Args:
        view_scores: (K, B, B) score of each image view with each text.
        positives: (B, B) bool, never negatives.
        cost: for example `Hinge(margin)`, with which this is L_MV-Max-Tri.

    Returns:
        (B,).
    """
    return pair_costs(view_scores.amax(dim=0), positives, cost)  # of s*, Eq. (6)


def each_view_loss(view_scores: Tensor, positives: Tensor, cost: Cost) -> Tensor:
    """L_MV-Avg, Eq. (8): the mean of the views' own costs; see `best_view_loss`."""
    return pair_costs(view_scores, positives, cost).mean(dim=0)


def upper_bound_loss(
    view_scores: Tensor, positives: Tensor, cost: Cost, *, rough: bool = False
) -> Tensor:
    """L_MV-Up, Eqs. (10)-(12): every view against the best views' negatives.

    A constraint counts only while all views break it. With a cost that is never 0, such as
    `Softmax`, every constraint counts.

    Args:
        view_scores: (K, B, B).
        positives: (B, B) bool.
        cost: see `best_view_loss`.
        rough: leave the indicator out: L_MV-Up-Rough, Eq. (13).

    Returns:
        (B,).
    """
    own = own_scores(view_scores)  # (K, B)
    total = own.new_zeros(own.shape[1])
    for left in rivals(view_scores.amax(dim=0), positives):
        costs = cost(own, left)  # (K, B, M)
        if not rough:
            costs = costs * (costs > 0).all(dim=0)  # Eqs. (11)-(12)
        total = total + costs.mean(dim=0).sum(dim=-1)  # Eq. (10)
    return total


def released_losses(view_scores: Tensor, positives: Tensor, cost: Cost) -> tuple[Tensor, Tensor]:
    """The two terms of MV-VSE's release, averaged over the batch and both directions.

    It weighs the first by 0.7 and the second by 0.3. With `Hinge` they are its "triplet" loss, with
    `Softmax` and a margin its "unified" one.

    Args:
        view_scores: (K, B, B).
        positives: (B, B) bool; the release excludes only the pair itself.
        cost: see `best_view_loss`.

    Returns:
        Its upper bound, which is Eq. (13), and its lower bound in place of Eq. (9): the best view's
        own score against each view's negatives, averaged over the views.
    """
    upper = upper_bound_loss(view_scores, positives, cost, rough=True)
    own = own_scores(view_scores).amax(dim=0).expand(len(view_scores), -1)  # (K, B)
    lower = torch.stack([cost(own, r).sum(dim=-1) for r in rivals(view_scores, positives)])
    return upper.mean() / 2, lower.sum(dim=0).mean() / 2
