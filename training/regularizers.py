"""Regularising losses: pure functions of embeddings, residuals or attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.layers import l2_normalize


def gram_diversity(residuals: Tensor, *, released: bool = False) -> Tensor:
    """One side of PVSE's diversity loss, Eq. (7): the redundancy of the K residuals.

    Args:
        residuals: (B, K, H) locally-guided residuals.
        released: the Frobenius norm of the release in place of the paper's 2-norm.

    Returns:
        The mean over the batch, a scalar.
    """
    unit = l2_normalize(residuals)
    views = residuals.shape[1]
    gram = unit @ unit.mT - torch.eye(views, dtype=unit.dtype, device=unit.device)  # (B, K, K)
    if released:
        norm = gram.flatten(1).norm(dim=1)
    else:
        norm = torch.linalg.eigvalsh(gram).abs().amax(dim=1)
    return norm.mean() / views**2  # Eq. (7)


def maximum_mean_discrepancy(
    images: Tensor, texts: Tensor, gamma: float = 0.5, *, released: bool = False
) -> Tensor:
    """PVSE's domain discrepancy loss L_mmd, section 3.4, with a radial basis function kernel.

    Distances are taken from differences: the expanded square is wrong for nearly equal rows. Each
    pair of rows is visited once, and no array of differences is built.

    Args:
        images: (B, K, D).
        texts: (B, K, D).
        gamma: of the kernel exp(-gamma ||x - y||^2).
        released: exp(-gamma ||x - y||), as in the release.

    Returns:
        A scalar, at least 0 up to rounding.
    """
    rows = torch.cat([images.flatten(0, 1), texts.flatten(0, 1)])  # (2 B K, D)
    count = len(rows) // 2
    distances = F.pdist(rows)
    kernel = torch.exp(-gamma * (distances if released else distances.square()))
    side = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
    side[count:] = -1.0
    first, second = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    across = (side[first] * side[second] * kernel).sum()
    return 2 * (count + across) / count**2  # each row with itself adds 1


def dimension_wise(
    first: Tensor, second: Tensor, off_diagonal: float = 0.0051, *, released: bool = False
) -> Tensor:
    """AVSE's dimension-wise regularising loss, Eqs. (3)-(4).

    Args:
        first: (B, D) embeddings of one view.
        second: (B, D) embeddings of another.
        off_diagonal: lambda_1.
        released: also divide the correlations by B, as the release does; the diagonal then cannot
            come near its target 1.

    Returns:
        The loss, a scalar.
    """
    correlation = l2_normalize(first.T) @ l2_normalize(second.T).T  # Eq. (3): (D, D)
    if released:
        correlation = correlation / len(first)
    diagonal = correlation.diagonal()
    others = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + off_diagonal * others  # Eq. (4)


def attention_overlap(attention: Tensor, *, square_root: bool = False) -> Tensor:
    """One side of MVAM's diversity loss, Eqs. (10)-(11).

    Args:
        attention: (B, m, N) attention of the m view codes.
        square_root: compare the roots of the weights, Eq. (11), else the weights, Eq. (10).

    Returns:
        The mean over the batch, a scalar.
    """
    weights = attention.clamp_min(1e-20).sqrt() if square_root else attention
    target = torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
    return (weights @ weights.mT - target).square().sum(dim=(1, 2)).mean()
