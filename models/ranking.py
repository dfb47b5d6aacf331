"""Pooling by rank: the values of each dimension are sorted and weighted by their ranks.

Sorting takes most of the time of a GPO step. Three measures make it several times faster than
`Tensor.sort` along the set's axis: the set is moved to the contiguous axis; on the CPU a value and
its index are packed into one float64, for NumPy's vectorised sort of plain numbers; and batches are
split into slices that fit in a core's cache and reuse scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_VALUES_PER_SLICE = 1 << 17  # number of values in a slice of a batch: 1 MiB as float64


def rank_descending(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts the values of each dimension and set in descending order, without gradients.

    Features (B, N, D) must be finite; the mask is (B, N) bool. Returns sorted values (B, D, N)
    and the index (B, D, N) of each value in its set. Padding ranks last, with the value 0.
    """
    batch, count, dim = features.shape
    ranked = features.new_empty(batch, dim, count, requires_grad=False)
    index_type = torch.int16 if count <= torch.iinfo(torch.int16).max else torch.int64
    indices = torch.empty(batch, dim, count, dtype=index_type, device=features.device)
    columns, has_padding = features.detach().mT, not bool(mask.all())
    packs_index = columns.device.type == "cpu" and columns.dtype == torch.float32
    keys = torch.empty(0, dtype=torch.float64)
    for rows in _batch_slices(features):
        padding = ~mask[rows, None] if has_padding else None  # (b, 1, N)
        if packs_index:
            keys = _scratch(keys, columns[rows])
            _sort_packed(_transpose(features[rows]), padding, keys, ranked[rows], indices[rows])
        else:
            lowest = torch.finfo(columns.dtype).min
            keys = columns[rows] if padding is None else columns[rows].masked_fill(padding, lowest)
            ranked[rows], indices[rows] = keys.sort(dim=-1, descending=True)
        if padding is not None:
            set_sizes = (~padding).sum(dim=2, keepdim=True)  # (b, 1, 1)
            is_padding = torch.arange(count, device=mask.device) >= set_sizes
            ranked[rows].masked_fill_(is_padding, 0.0)
    return ranked, indices


def _sort_packed(
    columns: Tensor, padding: Tensor | None, keys: Tensor, ranked: Tensor, indices: Tensor
) -> None:
    """Sorts `columns` (b, D, N) float32 into `ranked` and `indices`, largest first, padding last.

    `keys` is float64 scratch memory. Each key holds a value and, in its 29 unused bits, the index.
    """
    count = columns.shape[-1]
    index_mask = (1 << max(count - 1, 1).bit_length()) - 1
    keys.copy_(columns).neg_()  # NumPy sorts in ascending order
    if padding is not None:
        keys.masked_fill_(padding, torch.finfo(torch.float32).max)
    bits = keys.view(torch.int64).bitwise_or_(torch.arange(count))  # shares memory with `keys`
    np.asarray(keys).sort(axis=-1)
    ranked.copy_(keys).neg_()
    indices.copy_(bits).bitwise_and_(index_mask)


def _transpose(sets: Tensor) -> Tensor:
    """Transposes sets (b, N, D) to contiguous (b, D, N), without gradients.

    Each set is read as a pixel with N D channels. On a CPU, `channel_shuffle` with N groups
    transposes them with vector instructions, several times as fast as `sets.mT.contiguous()`.
    """
    batch, count, dim = sets.shape
    pixels = sets.detach().reshape(1, batch, 1, count * dim).permute(0, 3, 1, 2)  # (1, N D, b, 1)
    transposed = nn.functional.channel_shuffle(pixels, count)  # (1, D N, b, 1)
    return transposed.permute(0, 2, 3, 1).reshape(batch, dim, count)


def pool_ranked(features: Tensor, mask: Tensor, theta: Tensor) -> Tensor:
    """Returns V weighted sums (B, V, D) of each set's sorted values, VSE-infinity Eq. (2).

    Features are (B, N, D). The mask (B, N) bool has at least one True in each row, at any position.
    `theta` (B, L, V) holds the weights of the ranks, 0 beyond a set's size; L is the largest size.
    """
    pooled: Tensor = _RankedPool.apply(features, mask, theta)
    return pooled


def split_ranked(features: Tensor, mask: Tensor, theta: Tensor) -> Tensor:
    """Splits the output of `pool_ranked` into elements' contributions (B, V, N, D) at fixed ranks.

    Arguments are those of `pool_ranked`. Contributions are 0 on padding, and their sum over
    elements is the pooled vector.
    """
    order = rank_descending(features, mask)[1].long()  # (B, D, N)
    weights = nn.functional.pad(theta.mT, (0, order.shape[2] - theta.shape[1]))  # (B, V, N)
    weights = weights.to(features.dtype)
    element_weights = [
        torch.zeros_like(order, dtype=weights.dtype).scatter_(2, order, row.expand_as(order))
        for row in weights.split(1, dim=1)  # (B, 1, N) each
    ]
    zero_padded = features.masked_fill(~mask[..., None], 0.0)
    return torch.stack(element_weights, dim=1).mT * zero_padded[:, None]


class _RankedPool(torch.autograd.Function):
    """Computes `pool_ranked`; its backward pass scatters gradients slice by slice."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, mask: Tensor, theta: Tensor) -> Tensor:
        ranked, indices = rank_descending(features, mask)
        theta = theta.to(features.dtype)
        ctx.save_for_backward(ranked, indices, theta)
        return torch.bmm(theta.mT, ranked[..., : theta.shape[1]].mT)  # Eq. (2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        """Returns the gradients of `features` and `theta`."""
        ranked, indices, theta = ctx.saved_tensors
        batch, dim, count = ranked.shape
        grad = grad.to(ranked.dtype)  # autocast may have pooled in another dtype
        weights = nn.functional.pad(theta.mT, (0, count - theta.shape[1]))  # (B, V, N)
        # for V = 1, torch.mul computes the same outer product several times as fast as torch.bmm
        multiply = torch.mul if theta.shape[2] == 1 else torch.bmm
        feature_grads = ranked.new_empty(batch, count, dim)
        order = indices.new_empty(0, dtype=torch.int64)
        ranked_grads, column_grads = ranked.new_empty(0), ranked.new_empty(0)
        for rows in _batch_slices(feature_grads):
            batch_indices = indices[rows]  # (b, D, N)
            order, ranked_grads, column_grads = (
                _scratch(buffer, batch_indices) for buffer in (order, ranked_grads, column_grads)
            )
            order.copy_(batch_indices)
            multiply(grad[rows].mT, weights[rows], out=ranked_grads)  # (b, D, N), by rank
            feature_grads[rows] = column_grads.scatter_(-1, order, ranked_grads).mT
        return feature_grads, None, (grad @ ranked[..., : theta.shape[1]]).mT


def _batch_slices(features: Tensor) -> Iterator[slice]:
    """Yields slices of the batch (B, N, D) that fit in a core's cache; on a GPU, a single slice."""
    batch, count, dim = features.shape
    size = max(1, _VALUES_PER_SLICE // (count * dim)) if features.device.type == "cpu" else batch
    for start in range(0, batch, size):
        yield slice(start, start + size)


def _scratch(buffer: Tensor, like: Tensor) -> Tensor:
    """Returns contiguous memory with the shape of `like`; reuses `buffer` if it is large enough."""
    if buffer.numel() >= like.numel():
        return buffer.flatten()[: like.numel()].view(like.shape)
    return buffer.new_empty(like.shape, device=like.device)
