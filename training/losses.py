"""Losses: pure functions of scores or embeddings."""

from __future__ import annotations

from torch import Tensor


def same_image(row_ids: Tensor, column_ids: Tensor) -> Tensor:
    """Which image-text pairs belong together, the batch's duplicates of an image included.

    Args:
        row_ids: (B_img,) image ids.
        column_ids: (B_txt,) ids of the images that the texts describe.

    Returns:
        (B_img, B_txt) bool.
    """
    return row_ids[:, None] == column_ids[None, :]


def hinge_triplet(
    scores: Tensor, positives: Tensor, margin: float = 0.2, *, hardest: bool = True
) -> Tensor:
    """Hinge triplet loss over a batch of pairs, summed over the batch and both directions.

    VSE-infinity Eq. (1), MV-VSE Eq. (7), AVSE Eq. (5): [margin - s(x, t) + s(x, t^)]+ with t^ the
    hardest negative text, plus the same with the hardest negative image.

    Args:
        scores: (B, B); pair b stands on the diagonal.
        positives: (B, B) bool, True where image and text belong together: never a negative.
        margin: alpha of Eq. (1).
        hardest: keep only the hardest negative of each row and column, else sum over all.

    Returns:
        The loss, a scalar.

    >>> import torch
    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
    >>> round(hinge_triplet(scores, torch.eye(2).bool()).item(), 4)
    0.6
    """
    own = scores.diagonal()
    texts = (margin - own[:, None] + scores).clamp_min(0.0).masked_fill(positives, 0.0)
    images = (margin - own[None, :] + scores).clamp_min(0.0).masked_fill(positives, 0.0)
    if hardest:
        return texts.amax(dim=1).sum() + images.amax(dim=0).sum()
    return texts.sum() + images.sum()
