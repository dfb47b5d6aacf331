"""VSE-infinity's Table 1 aggregators: element after element, and their sizes."""

import pytest
import torch
from torch import Tensor, nn

from polyview.models.aggregators import AGGREGATORS, Aggregator, GraphConvolution, SelfAttention
from polyview.models.views import lengths_to_mask
from polyview.models.vse_infty import VSEInfinity

DIM = 6
SIZES = (5, 1, 3)


def trained(kind: str) -> Aggregator:
    """An aggregator in eval mode whose batch norms have statistics and weights."""
    torch.manual_seed(2)
    module = Aggregator(kind, DIM)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
            part.running_mean = torch.randn(part.num_features)
            part.running_var = torch.rand(part.num_features) + 0.5
    return module.eval()


def graph_layer(layer: GraphConvolution, x: Tensor) -> Tensor:
    """VSRN's release on one set (N, D): v + BN(W (R g(v))), R = theta(v) phi(v)^T / N."""
    read = torch.zeros_like(x)
    for n in range(len(x)):
        for m in range(len(x)):
            relation = layer.query(x[n]) @ layer.key(x[m]) / len(x)
            read[n] += relation * layer.value(x[m])
    norm = layer.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    normal = (layer.output(read) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return x + normal * norm.weight + norm.bias


def attention(layer: SelfAttention, x: Tensor) -> Tensor:
    """x_n + sum_m softmax_m(q_n k_m / sqrt(D)) v_m on one set (N, D)."""
    parts = layer.query(x)[None], layer.key(x)[None], layer.value(x)[None]
    return x + nn.functional.scaled_dot_product_attention(*parts)[0]


def written_out(aggregator: Aggregator, x: Tensor) -> Tensor:
    """One set (N, D) without padding."""
    for layer in aggregator.layers:
        if isinstance(layer, SelfAttention):
            x = attention(layer, x)
        else:
            assert isinstance(layer, GraphConvolution)
            x = graph_layer(layer, x)
    if aggregator.gru is None:
        return x.mean(dim=0)
    states: Tensor = aggregator.gru(x[None])[0]  # (1, N, D)
    return states[0, -1]


@pytest.mark.parametrize("kind", AGGREGATORS)
@torch.no_grad()
def test_aggregators_equal_loops_whatever_the_padding(kind: str) -> None:
    aggregator = trained(kind)
    features, mask = torch.randn(3, 5, DIM), lengths_to_mask(torch.tensor(SIZES), 5)
    mask[2] = torch.tensor([True, False, True, False, True])  # size augmentation drops anywhere
    pooled = aggregator(features.masked_fill(~mask[..., None], 1e3), mask)
    for row in range(3):
        expected = written_out(aggregator, features[row, mask[row]])
        torch.testing.assert_close(pooled[row], expected, rtol=1e-4, atol=1e-5)
    assert VSEInfinity(DIM, DIM, DIM, pooling=kind).order_matters == ("seq2seq" in kind)


@pytest.mark.parametrize(
    ("kind", "millions"),
    [("seq2seq", 6.3), ("self_attention", 3.1), ("gcn", 4.2), ("gcn_seq2seq", 23.1)],
)
def test_sizes_are_those_of_table_1(kind: str, millions: float) -> None:
    """The self-attention of the paper has 3.2 million."""
    with torch.device("meta"):
        aggregator = Aggregator(kind, 1024)
    count = sum(parameter.numel() for parameter in aggregator.parameters())
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize("kind", AGGREGATORS)
def test_gradients_reach_every_parameter_once_the_shortcut_is_left(kind: str) -> None:
    aggregator = trained(kind).train()
    features, mask = torch.randn(4, 5, DIM), torch.ones(4, 5, dtype=torch.bool)
    (aggregator(features, mask) * torch.randn(4, DIM)).sum().backward()
    silent = [n for n, p in aggregator.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in silent if not name.endswith("output.bias")] == []  # before a norm
