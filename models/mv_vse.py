"""MV-VSE: several views of an image from one set of features, one view of a text.

Zheng Li, Caili Guo, Zerun Feng, Jenq-Neng Hwang, Xijun Xue: Multi-View Visual Semantic Embedding,
IJCAI 2022.

MV-VSE extends a single-view model by K aggregators (Eq. 4), the maximum over views as the score
(Eqs. 5-6), and losses that train every view (`training/objectives/losses.py`). It works with any
aggregator: `aggregator` selects GPO or the average pooling of VSE++. With GPO all views share one
projection, in agreement with the 0.1 M parameters that section 3.2 counts for an aggregator; with
`own_projections` each view has its own, as section 1, step 2 and Eq. (4) suggest. With average
pooling each view always has its own, since averages of one projection would be identical.

The release does not use GPO: its views are K linear maps with max pooling, and its text embedding
is the last state of a forward GRU, as in `aggregator="released"` with the text encoder "gru".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from polyview.models.evidence import Parts
from polyview.models.gpo import RankPooling, build_pooling, pooling_arrays
from polyview.models.layers import (
    FeatureProjection,
    cosine_attention,
    l2_normalize,
    last_element,
    last_index,
    place_element,
    require_choice,
    text_projection,
)
from polyview.models.method import Method
from polyview.models.ranking import pool_ranked, split_ranked
from polyview.models.views import NamedArray, Views

# aggregator -> poolings of images and of texts; None selects the text encoder's last state
AGGREGATORS = {"gpo": ("gpo", "gpo"), "mean": ("mean", "mean"), "released": ("max", None)}


@dataclass(frozen=True)
class MVVSEConfig:
    """Arguments of `MVVSE`.

    Attributes:
        embed_dim: width D of the joint space (1,024 in the model that the paper extends).
        views: K, the number of image views (paper: 3; the release's default: 2).
        mlp_dim: hidden width of the residual MLP of `FeatureProjection`; 0 for none.
        aggregator: "gpo", "mean" or "released", see the module docstring.
        released_gpo: use the released form of GPO, see `models/gpo.py`.
        own_projections: give each view a separate projection also with "gpo".
        pad_statistics: see `FeatureProjection`.
        map_text: see `VSEInfinity`.
    """

    embed_dim: int = 1024
    views: int = 3
    mlp_dim: int = 0
    aggregator: str = "gpo"
    released_gpo: bool = False
    own_projections: bool = False
    pad_statistics: bool = False
    map_text: bool = False

    def __post_init__(self) -> None:
        if self.views < 1:
            raise ValueError(f"views must be 1 or more, not {self.views}")
        require_choice("aggregator", self.aggregator, tuple(AGGREGATORS))


class MVVSE(Method):
    """MV-VSE; V = K image views, one text view."""

    title = "MV-VSE"
    paper = "Li et al., IJCAI 2022"
    attention_is = "cosine between each cell's projected feature and the view's embedding"
    attention_sums_to_one = False
    config_type = MVVSEConfig

    def __init__(self, image_dim: int, text_dim: int, config: MVVSEConfig) -> None:
        super().__init__()
        shares_projection = config.aggregator == "gpo" and not config.own_projections
        widths = image_dim, config.embed_dim, config.mlp_dim
        self.project_image = nn.ModuleList(
            FeatureProjection(*widths, pad_statistics=config.pad_statistics)
            for _ in range(1 if shares_projection else config.views)
        )
        self.project_text = text_projection(text_dim, config.embed_dim, always=config.map_text)
        image_pooling, text_pooling = AGGREGATORS[config.aggregator]
        self.pool_image = nn.ModuleList(
            build_pooling(image_pooling, released=config.released_gpo) for _ in range(config.views)
        )
        self.pool_text: RankPooling | None = None
        if text_pooling:
            self.pool_text = build_pooling(text_pooling, released=config.released_gpo)

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        if side == "text":
            words = self.project_text(features)  # (B, M, D)
            pool = last_element if self.pool_text is None else self.pool_text
            pooled = pool(words, mask)  # (B, D)
            view = l2_normalize(pooled)[:, None]  # (B, 1, D)
            return Views(view, cosine_attention(words, view, mask) if attention else None)
        projected = [project(features, mask) for project in self.project_image]  # (B, N, D) each
        embeddings = l2_normalize(self._aggregate(pool_ranked, projected, mask))  # (B, K, D)
        if not attention:
            return Views(embeddings)
        # one group of all views if they share a projection, otherwise a group for each view
        groups = embeddings.chunk(len(projected), dim=1)
        maps = [cosine_attention(*pair, mask) for pair in zip(projected, groups, strict=True)]
        return Views(embeddings, torch.cat(maps, dim=1))  # (B, K, N)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        if side == "image":
            projected = [project(features, mask) for project in self.project_image]
            return Parts.of(self._aggregate(split_ranked, projected, mask)).unit()
        words = self.project_text(features)  # (B, M, D)
        if self.pool_text is None:
            parts = place_element(last_element(words, mask), last_index(mask), mask.shape[1])
        else:
            parts = self.pool_text.parts(words, mask)
        return Parts.of(parts[:, None]).unit()

    def inside(self, images: Views, texts: Views | None = None, /, **_: object) -> list[NamedArray]:
        """See `Method.inside`: coefficients of the K image poolings and the text pooling."""
        return pooling_arrays(images, texts, self.pool_image, [self.pool_text])

    def _aggregate(
        self, pool: Callable[..., Tensor], projected: list[Tensor], mask: Tensor
    ) -> Tensor:
        """Calls `pool` (`pool_ranked` or `split_ranked`) with K poolings' coefficients, Eq. (4).

        `projected` holds one projection (B, N, D) for all K views, or one for each view.
        """
        sizes = mask.sum(dim=1)  # (B,)
        theta = [cast("RankPooling", pooling).coefficients(sizes) for pooling in self.pool_image]
        weights = torch.stack(theta, dim=2).chunk(len(projected), dim=2)  # (B, max_size, 1 or K)
        inputs = zip(projected, weights, strict=True)
        return torch.cat([pool(values, mask, weight) for values, weight in inputs], dim=1)
