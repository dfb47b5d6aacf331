"""Sinkhorn normalisation of block affinities with a dustbin (AVSE, section 3.2).

Each pair of an image and a text has a small p x q matrix of block affinities, and there are many
pairs, so the C pairs are on the last, contiguous axis: (p, q, C).

The paper prints the second marginal as (1_p, p); it must be (1_q, p), as in the release.
"""

from __future__ import annotations

import torch
from torch import Tensor

# the product of two exponentials of this number is far below float32's maximum
_LARGEST_EXPONENT = 30.0
# relative change, about float32's precision; further iterations change the plan even less
_TOLERANCE = 1e-6


def match_blocks(
    affinity: Tensor, dustbin: Tensor, iterations: int = 20, temperature: float = 1.0
) -> Tensor:
    """Returns the Sinkhorn plan (p, q, C) without its dustbins, A* of Eq. (2).

    Affinities are cosines, so their exponentials are small and can be scaled directly. At low
    temperatures, where exponentials would overflow, `log_plan` is used. Iterations end when the
    scales change by less than float32's precision, after about five at temperature 1.

    Args:
        affinity: (p, q, C) cosines of the blocks of C pairs, Eq. (1).
        dustbin: the learnable z, a scalar.
        iterations: maximum number of scalings of rows and columns, c of section 3.2 (paper: 20).
        temperature: divisor of affinities and z (the paper has none, so 1).
    """
    if (1.0 + float(dustbin.detach().abs())) / temperature > _LARGEST_EXPONENT:
        return log_plan(affinity, dustbin, iterations, temperature)[:-1, :-1].exp()
    p, q, pair_count = affinity.shape
    kernel = (affinity / temperature).exp()  # (p, q, C)
    bin_kernel = (dustbin / temperature).exp()
    kernel_rows, kernel_columns = kernel.unbind(0), kernel.unbind(1)  # (q, C), (p, C) each
    column_scales = affinity.new_ones(q, pair_count)
    column_bin = affinity.new_ones(pair_count)  # scale of the dustbin's column
    for _ in range(iterations):
        row_scales = _inverse_sum(kernel_columns, column_scales, bin_kernel * column_bin)  # (p, C)
        row_bin = q / (bin_kernel * (column_scales.sum(dim=0) + column_bin))  # (C,)
        last_scales = column_scales
        column_scales = _inverse_sum(kernel_rows, row_scales, bin_kernel * row_bin)  # (q, C)
        column_bin = p / (bin_kernel * (row_scales.sum(dim=0) + row_bin))
        min_ratio, max_ratio = torch.aminmax(column_scales.detach() / last_scales.detach())
        if float(max_ratio) - 1.0 < _TOLERANCE and 1.0 - float(min_ratio) < _TOLERANCE:
            break
    return kernel * row_scales[:, None] * column_scales


def _inverse_sum(terms: tuple[Tensor, ...], weights: Tensor, offset: Tensor) -> Tensor:
    """Returns 1 / (`offset` + sum_k weights[k] * terms[k]), (n, C), with one allocation."""
    total = torch.addcmul(offset, terms[0], weights[0])
    for term, weight in zip(terms[1:], weights.unbind(0)[1:], strict=True):
        total.addcmul_(term, weight)
    return total.reciprocal_()


def log_plan(
    affinity: Tensor, dustbin: Tensor, iterations: int = 20, temperature: float = 1.0
) -> Tensor:
    """Returns the logarithm of the plan with dustbins, computed in the log domain.

    Arguments are those of `match_blocks`, but all `iterations` are always run. The exponential of
    the result (p + 1, q + 1, C) has the column sums (1, ..., 1, p) and, when converged, the row
    sums (1, ..., 1, q).
    """
    p, q, pair_count = affinity.shape
    z = dustbin.to(affinity.dtype)
    log_kernel = torch.cat([affinity, z.expand(p, 1, pair_count)], dim=1)
    log_kernel = torch.cat([log_kernel, z.expand(1, q + 1, pair_count)]) / temperature
    log_row_sums = z.new_tensor([1.0] * p + [q]).log()[:, None]  # (p + 1, 1)
    log_column_sums = z.new_tensor([1.0] * q + [p]).log()[:, None]  # (q + 1, 1)
    column_logs = log_kernel.new_zeros(q + 1, pair_count)  # logarithms of the columns' scales
    for _ in range(iterations):
        row_logs = log_row_sums - (log_kernel + column_logs).logsumexp(dim=1)  # (p + 1, C)
        log_products = log_kernel + row_logs[:, None]
        column_logs = log_column_sums - log_products.logsumexp(dim=0)  # (q + 1, C)
    return log_kernel + row_logs[:, None] + column_logs
