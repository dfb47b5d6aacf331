"""Pooling by rank: values and gradients against torch.sort."""

import pytest
import torch
from torch import Tensor

from polyview.models.ranking import pool_ranked, rank_descending
from polyview.models.views import lengths_to_mask


def sorted_pool(features: Tensor, mask: Tensor, theta: Tensor) -> Tensor:
    ranked = features.masked_fill(~mask[..., None], -torch.inf).sort(dim=1, descending=True).values
    ranked = ranked[:, : theta.shape[1]].masked_fill(theta.sum(dim=2)[..., None] == 0, 0.0)
    return torch.einsum("bnd,bnv->bvd", ranked, theta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 64, 65])
def test_pooling_and_its_gradients(size: int, dtype: torch.dtype) -> None:
    lengths = torch.tensor([size, 1, (size + 1) // 2])
    mask = lengths_to_mask(lengths, size)
    theta = torch.rand(3, size, 2, dtype=dtype) * mask[..., None]
    features = torch.randn(3, size, 40, dtype=dtype)
    upstream = torch.randn(3, 2, 40, dtype=dtype)
    grads = []
    for pool in (pool_ranked, sorted_pool):
        values = [x.clone().requires_grad_() for x in (features, theta)]
        pooled = pool(values[0], mask, values[1])
        (pooled * upstream).sum().backward()
        grads.append([pooled, *(x.grad for x in values)])
    plain = pool_ranked(features, mask, theta)  # a different code path, without gradients
    torch.testing.assert_close(plain, sorted_pool(features, mask, theta), rtol=1e-4, atol=1e-4)
    for got, want in zip(*grads, strict=True):
        if got.shape == theta.shape:  # the weights of absent ranks are not used
            got, want = got * mask[..., None], want * mask[..., None]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_indices_are_the_positions_of_ranked_values() -> None:
    features = torch.randn(2, 9, 5)
    features[:, 3] = features[:, 7]  # equal values have different indices
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 2] = False
    ranked, indices = rank_descending(features, mask)
    order = indices.long()
    assert torch.equal(order.sort(dim=-1).values, torch.arange(9).expand(2, 5, 9))
    assert torch.equal(features.mT.gather(2, order)[0], ranked[0])
    assert (ranked[0].diff(dim=-1) <= 0).all()
    assert (order[1, :, -1] == 2).all()
    assert (ranked[1, :, -1] == 0).all()
    # extreme values
    values = torch.tensor([1e-38, -1e-38, 0.0, -0.0, 3e38, -3e38, 1.0, 1.0 + 2**-23])
    ranked, _ = rank_descending(values[None, :, None], torch.ones(1, 8, dtype=torch.bool))
    assert torch.equal(ranked[0, 0], values.sort(descending=True).values)
