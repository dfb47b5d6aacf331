"""The parametric aggregators with which VSE-infinity compares GPO.

Jiacheng Chen, Hexiang Hu, Hao Wu, Yuning Jiang, Changhu Wang: Learning the Best Pooling Strategy
for Visual Semantic Embedding, CVPR 2021, section 3.1 and Table 1. The paper gives no equations. The
architectures follow its parameter counts for D = 1,024, and the code of the GCN's authors (Kunpeng
Li, Yulun Zhang, Kai Li, Yuanyuan Li, Yun Fu: Visual Semantic Reasoning for Image-Text Matching,
ICCV 2019):

    ============  ======  ====================================================================
    Seq2Seq       6.3 M   the last state of a GRU over the elements
    SelfAttn      3.2 M   self-attention with a shortcut, then the average (3.1 M in this code)
    GCN+AvgPool   4.2 M   one layer of region relationship reasoning, then the average
    GCN+Seq2Seq   23.1 M  four of these layers, then the GRU
    ============  ======  ====================================================================
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polyview.models.layers import last_element, masked_mean

AGGREGATORS = ("seq2seq", "self_attention", "gcn", "gcn_seq2seq")


class SelfAttention(nn.Module):
    """Scaled dot-product attention with one head (Vaswani et al., NIPS 2017, Eq. 1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Maps features (B, N, D), mask (B, N), to attended values (B, N, D)."""
        scores = self.query(features) @ self.key(features).mT / math.sqrt(features.shape[2])
        weights = scores.masked_fill(~mask[:, None], -torch.inf).softmax(dim=2)  # (B, N, N)
        return weights @ self.value(features)


class GraphConvolution(nn.Module):
    """One layer of VSRN's region relationship reasoning, Eqs. (2)-(3), as in the authors' code.

    Relations are divided by the number of elements. The batch norm ignores padding. Its scale
    starts at 0, so the residual starts at 0.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Maps features (B, N, D), mask (B, N), to residuals (B, N, D), 0 on padding."""
        relations = self.query(features) @ self.key(features).mT  # Eq. (2): (B, N, N)
        relations = relations.masked_fill(~mask[:, None], 0.0) / mask.sum(dim=1)[:, None, None]
        messages = self.output(relations @ self.value(features))  # Eq. (3)
        return torch.zeros_like(messages).index_put((mask,), self.norm(messages[mask]))


class Aggregator(nn.Module):
    """One of `AGGREGATORS`: residual layers over a set, then the average or a GRU's last state."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if kind == "self_attention":
            layers = [SelfAttention(dim)]
        elif kind != "seq2seq":
            layers = [GraphConvolution(dim) for _ in range(1 if kind == "gcn" else 4)]
        self.layers = nn.ModuleList(layers)
        self.gru = nn.GRU(dim, dim, batch_first=True) if kind.endswith("seq2seq") else None

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Aggregates features (B, N, D), mask (B, N), to (B, D); the GRU, if any, skips padding."""
        for layer in self.layers:
            features = features + layer(features, mask)
        if self.gru is None:
            return masked_mean(features, mask)
        order = (~mask).long().argsort(dim=1, stable=True)  # real elements first
        left_aligned = features.gather(1, order[..., None].expand_as(features))
        return last_element(self.gru(left_aligned)[0], mask.gather(1, order))
