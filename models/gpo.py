"""Generalized Pooling Operator: a learned weighting of the sorted values of each dimension.

Jiacheng Chen, Hexiang Hu, Hao Wu, Yuning Jiang, Changhu Wang: Learning the Best Pooling Strategy
for Visual Semantic Embedding, CVPR 2021 (VSE-infinity), sections 3.2 and 3.3.

Where the paper and its release differ, the paper is the default and `GPO.released()` the release:

    ==================  ==============================  ==============================
    part                paper                           release
    ==================  ==============================  ==============================
    first position      1                               0
    Eq. (5)'s MLP       linear, ReLU, linear            one linear map without bias
    softmax             plain                           scores divided by 0.1
    ==================  ==============================  ==============================

Both average the BiGRU's two directions, which Eq. (5) leaves open.

`FixedPooling` holds the poolings that GPO generalises, in the same form: weights of sorted values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from polyview.models.gru import bigru_states
from polyview.models.layers import masked_mean, mean_parts, require_choice
from polyview.models.ranking import pool_ranked, split_ranked
from polyview.models.views import NamedArray, Views

POOLINGS = ("gpo", "mean", "max", "kmax")


class RankPooling(nn.Module, ABC):
    """Pools a set of any size into one vector: Eq. (2), whatever the coefficients come from."""

    @abstractmethod
    def coefficients(self, sizes: Tensor) -> Tensor:
        """The pooling coefficients theta of Eq. (3) for sets of the given sizes.

        Args:
            sizes: (B,) integers, each at least 1.

        Returns:
            (B, max(sizes)); row b sums to 1 over its first sizes[b] entries and is 0 after them.
        """

    def pool(self, features: Tensor, mask: Tensor) -> Tensor:
        """Pools each set, Eq. (2): (B, N, D), (B, N) -> (B, D)."""
        theta = self.coefficients(mask.sum(dim=1))  # (B, longest)
        return pool_ranked(features, mask, theta[..., None])[:, 0]  # (B, D)

    def forward(
        self, features: Tensor, mask: Tensor, *, shares: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Pools each set, Eq. (2).

        Args:
            features: (B, N, D).
            mask: (B, N) bool, at least one True in each row, anywhere.
            shares: also compute how much each element contributes.

        Returns:
            (B, D) pooled vectors, and (B, N) shares or None. An element's share is its part of the
            pooled vector's squared length, sum_i theta(rank of n in i) phi_n^i v^i; what pulls the
            other way counts 0, and the shares of a set sum to 1.
        """
        pooled = self.pool(features, mask)  # (B, D)
        if not shares:
            return pooled, None
        parts = self.parts(features, mask)  # (B, N, D)
        gained = (parts @ pooled[..., None]).squeeze(-1).clamp_min(0.0)  # (B, N)
        return pooled, gained / gained.sum(dim=1, keepdim=True).clamp_min(1e-12)

    def parts(self, features: Tensor, mask: Tensor) -> Tensor:
        """What each element brings to the pooled vector: (B, N, D), 0 on padding."""
        theta = self.coefficients(mask.sum(dim=1))  # (B, longest)
        return split_ranked(features, mask, theta[..., None])[:, 0]


class FixedPooling(RankPooling):
    """AvgPool, MaxPool and K-MaxPool, section 3.2: nothing is learned.

    Args:
        kind: "mean", "max" or "kmax", the mean of the K largest values.
        count: K of "kmax"; a smaller set is averaged whole.
    """

    def __init__(self, kind: str, count: int = 20) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"pool_count must be 1 or more, not {count}")
        self.kind, self.count = kind, 1 if kind == "max" else count

    def coefficients(self, sizes: Tensor) -> Tensor:
        used = sizes if self.kind == "mean" else sizes.clamp_max(self.count)  # (B,)
        places = torch.arange(int(sizes.max()), device=sizes.device)
        return (places < used[:, None]) / used[:, None].float()  # (B, longest)

    def pool(self, features: Tensor, mask: Tensor) -> Tensor:
        """See `RankPooling.pool`; an average needs no sort."""
        return masked_mean(features, mask) if self.kind == "mean" else super().pool(features, mask)

    def parts(self, features: Tensor, mask: Tensor) -> Tensor:
        """See `RankPooling.parts`; an average needs no sort."""
        return mean_parts(features, mask) if self.kind == "mean" else super().parts(features, mask)


class GPO(RankPooling):
    """Pools by coefficients that a small recurrent network learns to generate.

    Args:
        position_dim: width of the positional encoding, Eq. (4).
        hidden_dim: width of each direction of the BiGRU, Eq. (5).
        temperature: divides the scores before the softmax.
        first_position: the index given to the largest value.
        mlp: whether Eq. (5)'s MLP has a hidden layer.
    """

    def __init__(
        self,
        position_dim: int = 32,
        hidden_dim: int = 32,
        temperature: float = 1.0,
        first_position: int = 1,
        mlp: bool = True,
    ) -> None:
        super().__init__()
        if position_dim < 2 or position_dim % 2:
            raise ValueError(f"GPO's position_dim must be even and at least 2, not {position_dim}")
        if temperature <= 0:
            raise ValueError(f"GPO's temperature must be positive, not {temperature}")
        self.position_dim = position_dim
        self.temperature = temperature
        self.first_position = first_position
        self.gru = nn.GRU(position_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.score: nn.Module = nn.Linear(hidden_dim, 1, bias=False)
        if mlp:
            hidden = nn.Linear(hidden_dim, hidden_dim)
            self.score = nn.Sequential(hidden, nn.ReLU(), nn.Linear(hidden_dim, 1))
        # coefficients by size, and the weights that generated them; replaced as a whole, so that
        # threads never mix coefficients of two states of the weights
        self._cache: tuple[object, dict[int, Tensor]] = (None, {})

    @classmethod
    def released(cls) -> GPO:
        """The operator as the authors published it."""
        return cls(temperature=0.1, first_position=0, mlp=False)

    def coefficients(self, sizes: Tensor) -> Tensor:
        """See `RankPooling.coefficients`; generates once for each distinct size of the batch.

        Coefficients depend on the size and the weights alone. Without gradients they are cached by
        size until the weights change.
        """
        distinct, rows = sizes.unique(return_inverse=True)  # (S,), (B,)
        if torch.is_grad_enabled() or torch.is_autocast_enabled(sizes.device.type):
            self._cache = (None, {})  # fused optimisers change weights without a new version
            return self._generate(distinct)[rows]  # (B, longest)
        weights = tuple((weight.data_ptr(), weight._version) for weight in self.parameters())
        cache = self._cache
        if cache[0] != weights:
            cache = self._cache = (weights, {})
        cached, required = cache[1], distinct.tolist()
        new = [size for size in required if size not in cached]
        if new:
            generated = self._generate(torch.tensor(new, device=sizes.device))  # (S', longest)
            cached.update((size, row[:size]) for size, row in zip(new, generated, strict=True))
        theta = nn.utils.rnn.pad_sequence([cached[size] for size in required], batch_first=True)
        return theta[rows]  # (B, longest)

    def _generate(self, distinct: Tensor) -> Tensor:
        """Coefficients (S, longest) of distinct sizes (S,) in ascending order."""
        longest = int(distinct[-1])
        positions = self._encode_positions(longest, distinct.device)  # (longest, p)
        inputs = positions.expand(len(distinct), -1, -1)  # (S, longest, p)
        states = bigru_states(self.gru, inputs, distinct)  # (S, longest, 2 h)
        forward, backward = states.chunk(2, dim=-1)  # (S, longest, h) each
        scores = self.score((forward + backward) / 2).squeeze(-1)  # Eq. (5): (S, longest)
        index = torch.arange(longest, device=distinct.device)
        scores = scores.masked_fill(index >= distinct[:, None], -torch.inf)
        return (scores / self.temperature).softmax(dim=-1)

    def _encode_positions(self, count: int, device: torch.device) -> Tensor:
        """Trigonometric encoding of `count` positions, Eq. (4): (count, position_dim)."""
        k = torch.arange(count, device=device, dtype=torch.float32) + self.first_position
        j = torch.arange(0, self.position_dim, 2, device=device, dtype=torch.float32)
        w = torch.exp(-math.log(10000.0) * j / self.position_dim)  # w_j
        angles = k[:, None] * w  # (count, p / 2)
        encoded = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        return encoded.to(next(self.gru.parameters()).dtype)


def build_pooling(kind: str, count: int = 20, *, released: bool = False) -> RankPooling:
    """A pooling by name.

    Args:
        kind: one of `POOLINGS`.
        count: K of "kmax".
        released: build "gpo" as the release does.
    """
    require_choice("pooling", kind, POOLINGS)
    if kind != "gpo":
        return FixedPooling(kind, count)
    return GPO.released() if released else GPO()


def pooling_arrays(
    images: Views,
    texts: Views | None,
    image_poolings: Iterable[nn.Module],
    text_poolings: Iterable[nn.Module],
    image_share: float = 1.0,
) -> list[NamedArray]:
    """The coefficients theta of Eq. (3), "image_pooling" and "text_pooling"; section 5.3.

    Args:
        images: one image with its attention, whose width is the size N of its set.
        texts: one text with its attention, or None.
        image_poolings: of the image side; those that are no GPO are left out.
        text_poolings: of the text side.
        image_share: which share of the image's set is pooled at once.
    """
    arrays = []
    for name, views, poolings, share in (
        ("image_pooling", images, image_poolings, image_share),
        ("text_pooling", texts, text_poolings, 1.0),
    ):
        learned = [pooling for pooling in poolings if isinstance(pooling, GPO)]
        if learned and views is not None and views.attention is not None:
            count = max(1, round(share * views.attention.shape[-1]))
            size = torch.tensor([count], device=views.embeddings.device)
            theta = torch.cat([pooling.coefficients(size) for pooling in learned])  # (L, N)
            arrays.append(NamedArray(name, theta, ("view", "rank")))
    return arrays
