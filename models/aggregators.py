"""The aggregators with many parameters that VSE-infinity compares pooling with.

Jiacheng Chen, Hexiang Hu, Hao Wu, Yuning Jiang, Changhu Wang: Learning the Best Pooling Strategy
for Visual Semantic Embedding, CVPR 2021, section 3.1 and Table 1. The paper does not write them
out. Its parameter counts for D = 1,024 and the release of the GCN (Kunpeng Li, Yulun Zhang, Kai Li,
Yuanyuan Li, Yun Fu: Visual Semantic Reasoning for Image-Text Matching, ICCV 2019) give their forms:

    ============  ======  ====================================================================
    Seq2Seq       6.3 M   the last state of a GRU over the elements
    SelfAttn      3.2 M   self-attention with a shortcut (3.1 M here), then the average
    GCN+AvgPool   4.2 M   one layer of region relationship reasoning, then the average
    GCN+Seq2Seq   23.1 M  four such layers, then the GRU
    ============  ======  ====================================================================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from models.evidence import Parts
from models.gpo import positive_shares
from models.layers import last_element, masked_mean, mean_parts


class Aggregator(nn.Module, ABC):
    """Turns a set of any size into one vector of the same width."""

    @abstractmethod
    def forward(
        self, features: Tensor, mask: Tensor, *, shares: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Aggregates each set, with the arguments and results of `RankPooling.forward`.

        Returns:
            (B, D), and (B, N) shares; None where elements bring nothing alone.
        """

    @abstractmethod
    def split(self, features: Tensor, mask: Tensor) -> Parts:
        """See `RankPooling.split`; relations between the elements of this set are held."""


class Seq2Seq(Aggregator):
    """The last state of a GRU that reads the elements in their order.

    Args:
        dim: D.
        layers: of `GraphConvolution` before the GRU.
    """

    def __init__(self, dim: int, layers: int = 0) -> None:
        super().__init__()
        self.graph = nn.ModuleList(GraphConvolution(dim) for _ in range(layers))
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def forward(
        self, features: Tensor, mask: Tensor, *, shares: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """See `Aggregator.forward`: no element has a share of a state."""
        del shares
        for layer in self.graph:
            features = features + layer(features, mask)
        order = (~mask).long().argsort(dim=1, stable=True)  # real elements first
        dense = features.gather(1, order[..., None].expand_as(features))
        return last_element(self.gru(dense)[0], mask.gather(1, order)), None

    def split(self, features: Tensor, mask: Tensor) -> Parts:
        """See `Aggregator.split`: elements make the state only together."""
        state = self(features, mask)[0][:, None]  # (B, 1, D)
        return Parts.of(torch.zeros_like(features)[:, None], whole=state)


class Related(Aggregator):
    """The average of elements to which a function of their relations is added.

    Args:
        relation: `SelfAttention` or `GraphConvolution`.
    """

    def __init__(self, relation: SelfAttention | GraphConvolution) -> None:
        super().__init__()
        self.relation = relation

    def forward(
        self, features: Tensor, mask: Tensor, *, shares: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        pooled = masked_mean(features + self.relation(features, mask), mask)  # (B, D)
        if not shares:
            return pooled, None
        return pooled, positive_shares(self.split(features, mask).rows[:, 0, :-2], pooled)

    def split(self, features: Tensor, mask: Tensor) -> Parts:
        brought, constant = self.relation.columns(features, mask)  # (B, N, D), (D,)
        return Parts.of(mean_parts(features + brought, mask)[:, None], constant=constant)


class SelfAttention(nn.Module):
    """Scaled dot-product attention with one head (Vaswani et al., NIPS 2017, Eq. 1).

    Args:
        dim: D.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D), (B, N) -> (B, N, D), what each element reads."""
        return self._relations(features, mask) @ self.value(features)

    def columns(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | float]:
        """What each element gives to all that read it, (B, N, D), and what nobody gives."""
        read = self._relations(features, mask).masked_fill(~mask[..., None], 0.0).sum(dim=1)
        return read[..., None] * self.value(features), 0.0

    def _relations(self, features: Tensor, mask: Tensor) -> Tensor:
        """How much row n reads of element m: (B, N, N)."""
        scores = self.query(features) @ self.key(features).mT / math.sqrt(features.shape[2])
        return scores.masked_fill(~mask[:, None], -torch.inf).softmax(dim=2)


class GraphConvolution(nn.Module):
    """One layer of VSRN's region relationship reasoning, Eqs. (2)-(3), as released.

    The relations are divided by the number of elements. The batch norm starts at 0, so that the
    layer starts as its shortcut; its statistics are those of real elements.

    Args:
        dim: D.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D), (B, N) -> (B, N, D), what each element reads; 0 on padding."""
        read = self.output(self._relations(features, mask) @ self.value(features))
        return torch.zeros_like(read).index_put((mask,), self.norm(read[mask]))

    def columns(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See `SelfAttention.columns`; in eval mode, where the batch norm is affine."""
        read = self._relations(features, mask).masked_fill(~mask[..., None], 0.0).sum(dim=1)
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()  # (D,)
        given = (read[..., None] * self.value(features)) @ self.output.weight.T
        return scale * given, scale * (self.output.bias - norm.running_mean) + norm.bias

    def _relations(self, features: Tensor, mask: Tensor) -> Tensor:
        """How much row n reads of element m: (B, N, N)."""
        scores = self.query(features) @ self.key(features).mT  # Eq. (2)
        return scores.masked_fill(~mask[:, None], 0.0) / mask.sum(dim=1)[:, None, None]


AGGREGATORS = ("seq2seq", "self_attention", "gcn", "gcn_seq2seq")


def build_aggregator(kind: str, dim: int) -> Aggregator:
    """An aggregator of Table 1 by name, one of `AGGREGATORS`, for features of width D."""
    if kind == "seq2seq":
        return Seq2Seq(dim)
    if kind == "gcn_seq2seq":
        return Seq2Seq(dim, layers=4)
    return Related(SelfAttention(dim) if kind == "self_attention" else GraphConvolution(dim))
