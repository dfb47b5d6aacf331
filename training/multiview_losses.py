"""MV-VSE's losses: how K views of an image enter a ranking loss (section 3.3).

The paper writes them for the hinge triplet loss and says that others can be rewritten likewise;
here the cost is an argument. All return the loss of each pair, (B,), both directions added, for
the caller to sum or average.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.losses import Cost, own_scores, rivals


def best_view_loss(view_scores: Tensor, positives: Tensor, cost: Cost) -> Tensor:
    """L_MV-Max, Eq. (9): the cost of the best views' scores s*.

    Args:
        view_scores: (K, B, B) score of each image view with each text.
        positives: (B, B) bool, never negatives.
        cost: for example `Hinge(margin)`, with which this is L_MV-Max-Tri.

    Returns:
        (B,).
    """
    best = view_scores.amax(dim=0)  # s*, Eq. (6)
    own = own_scores(best)  # (B,)
    return torch.stack([cost(own, r).sum(dim=-1) for r in rivals(best, positives)]).sum(dim=0)


def each_view_loss(view_scores: Tensor, positives: Tensor, cost: Cost) -> Tensor:
    """L_MV-Avg, Eq. (8): the mean of the views' own costs; see `best_view_loss`."""
    own = own_scores(view_scores)  # (K, B)
    costs = [cost(own, r).sum(dim=-1) for r in rivals(view_scores, positives)]
    return torch.stack(costs).sum(dim=0).mean(dim=0)


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


def mixed_loss(view_scores: Tensor, positives: Tensor, cost: Cost, lam: float = 0.7) -> Tensor:
    """L_MV-VSE, Eq. (15): lam L_MV-Max + (1 - lam) L_MV-Up; see `best_view_loss`."""
    best = best_view_loss(view_scores, positives, cost)
    return lam * best + (1 - lam) * upper_bound_loss(view_scores, positives, cost)


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
