"""Layers and pure functions that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPS = 1e-8  # added to lengths, to avoid division by 0


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError unless the value of the argument `name` is one of `choices`."""
    if value not in choices:
        raise ValueError(f'{name} must be one of {", ".join(choices)}, not "{value}"')


def l2_normalize(x: Tensor) -> Tensor:
    """Divides `x` by its Euclidean length + EPS along the last axis, as the papers' releases do."""
    return x / (x.norm(dim=-1, keepdim=True) + EPS)


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    """Averages the real elements of sets (B, N, D), mask (B, N) bool, to (B, D)."""
    return features.masked_fill(~mask[..., None], 0.0).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def mean_parts(features: Tensor, mask: Tensor) -> Tensor:
    """Returns the contribution of each element to `masked_mean`: (B, N, D), 0 on padding."""
    return features.masked_fill(~mask[..., None], 0.0) / mask.sum(dim=1)[:, None, None]


def last_index(mask: Tensor) -> Tensor:
    """Returns the index (B,) of each set's last real element in a mask (B, N) bool."""
    indices = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, indices, -1).amax(dim=1)


def last_element(features: Tensor, mask: Tensor) -> Tensor:
    """Returns the last real elements (B, D) of sets (B, N, D), mask (B, N) bool."""
    return features[torch.arange(len(mask), device=mask.device), last_index(mask)]


def place_element(embedding: Tensor, index: Tensor, count: int) -> Tensor:
    """Returns sets (B, `count`, D) that hold `embedding` (B, D) at `index` (B,), 0 elsewhere."""
    return nn.functional.one_hot(index, count)[..., None] * embedding[:, None]


def cosine_attention(features: Tensor, embeddings: Tensor, mask: Tensor) -> Tensor:
    """Returns cosines (B, V, N) of views and elements, 0 on padding (MV-VSE, section 4.4).

    Features (B, N, D) are in the joint space; embeddings (B, V, D) have unit length; the mask is
    (B, N) bool.
    """
    return (embeddings @ l2_normalize(features).mT).masked_fill(~mask[:, None], 0.0)


class FeatureProjection(nn.Module):
    """The linear map to the joint space, optionally with the residual MLP of VSE-infinity.

    For region features the release adds `linear -> batch-norm -> ReLU -> linear` to the linear map.

    Args:
        in_dim: width d of the encoder's features.
        out_dim: width D of the joint space.
        hidden_dim: width of the residual MLP; 0 for the linear map alone.
        pad_statistics: include zero-padded positions in the batch statistics, as the release does.
    """

    def __init__(
        self, in_dim: int, out_dim: int, hidden_dim: int = 0, *, pad_statistics: bool = False
    ) -> None:
        super().__init__()
        self.pad_statistics = pad_statistics
        self.linear = nn.Linear(in_dim, out_dim)
        self.mlp: nn.Sequential | None = None
        if hidden_dim:
            self.mlp = nn.Sequential(
                nn.Linear(in_dim, hidden_dim),
                nn.BatchNorm1d(hidden_dim),
                nn.ReLU(),
                nn.Linear(hidden_dim, out_dim),
            )

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Maps features (B, N, d), mask (B, N), to (B, N, D), 0 on padding."""
        projected = self.linear(features)
        no_padding = bool(mask.all())
        if self.mlp is not None and (self.pad_statistics or no_padding):
            inputs = features if no_padding else features.masked_fill(~mask[..., None], 0.0)
            projected = projected + self.mlp(inputs.flatten(0, 1)).view_as(projected)
        elif self.mlp is not None:
            residual = self.mlp(features[mask])  # (R, D), only the real elements of all sets
            projected = projected.index_put((mask,), residual, accumulate=True)
        # (B, N, D); no copy if there is no padding
        return projected if no_padding else projected.masked_fill(~mask[..., None], 0.0)


def text_projection(text_dim: int, embed_dim: int, *, always: bool = False) -> nn.Module:
    """Builds the map from text features to the joint space.

    The map is linear, as in VSE-infinity with BERT. If both widths are equal and `always` is false,
    it is the identity, as in VSE-infinity with a GRU.
    """
    if text_dim == embed_dim and not always:
        return nn.Identity()
    return nn.Linear(text_dim, embed_dim)


def drop_elements(mask: Tensor, rate: float, *, keep_first: bool = False) -> Tensor:
    """Removes elements from a mask at random: size augmentation (VSE-infinity, section 3.3).

    Each element of the mask (B, N) bool is dropped with probability `rate`, 0 <= rate < 1 (paper:
    0.2), but at least one element of each set remains. `keep_first` always keeps the first element,
    for sets that begin with a summary ([CLS]).
    """
    if rate == 0.0:
        return mask
    draws = torch.rand(mask.shape, device=mask.device)
    if keep_first:
        draws[:, 0] = 1.0  # above every rate and every other draw
    new_mask = mask & (draws >= rate)
    survivors = draws.masked_fill(~mask, -1.0).argmax(dim=1)  # (B,) indices of the largest draws
    rows = torch.arange(len(mask), device=mask.device)
    return new_mask.index_put((rows, survivors), mask.new_tensor(True))
