"""VSE-infinity: a linear map (with an optional MLP) and GPO on both sides; and VSE++.

Jiacheng Chen, Hexiang Hu, Hao Wu, Yuning Jiang, Changhu Wang: Learning the Best Pooling Strategy
for Visual Semantic Embedding, CVPR 2021.

VSE-infinity extends VSE++ by a learned pooling (`models/gpo.py`) and size augmentation (the setting
`size_augmentation` of training, 0.2 in section 3.3). The release uses a residual MLP for region
features, which the paper does not mention, so `mlp_dim` defaults to 0.

VSE++ (Fartash Faghri, David J. Fleet, Jamie Ryan Kiros, Sanja Fidler: VSE++: Improving
Visual-Semantic Embeddings with Hard Negatives, BMVC 2018) is the baseline of VSE-infinity
(section 2), "AvgPool [9]": average pooling on both sides. The original embeds a text as the last
state of a GRU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyview.models.aggregators import AGGREGATORS, Aggregator
from polyview.models.evidence import Parts
from polyview.models.gpo import POOLINGS, RankPooling, build_pooling, pooling_arrays
from polyview.models.layers import FeatureProjection, l2_normalize, require_choice, text_projection
from polyview.models.method import Method
from polyview.models.views import NamedArray, Views


class VSEInfinity(Method):
    """VSE-infinity; V = 1.

    Args:
        embed_dim: width D of the joint space (paper: 1,024).
        mlp_dim: hidden width of the residual MLP; 0 for none.
        released_gpo: use the released form of GPO, see `models/gpo.py`.
        pad_statistics: see `FeatureProjection`.
        pooling: the pooling of images: "gpo"; one of the fixed poolings of Table 1, "mean", "max"
            and "kmax"; or one of `models/aggregators.py`.
        text_pooling: the pooling of texts, with the same choices.
        pool_count: K of "kmax" (20 is the paper's best for grid features).
        map_text: map texts linearly to the joint space even if their features already have its
            width, so that the text side has trained weights over a frozen encoder.
    """

    title = "VSE∞"
    paper = "Chen et al., CVPR 2021"
    attention_is = "each cell's share of the pooled vector, by the coefficients of the pooling"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 1024,
        mlp_dim: int = 0,
        released_gpo: bool = False,
        pad_statistics: bool = False,
        pooling: str = "gpo",
        text_pooling: str = "gpo",
        pool_count: int = 20,
        map_text: bool = False,
    ) -> None:
        super().__init__()
        widths = image_dim, embed_dim, mlp_dim
        self.project_image = FeatureProjection(*widths, pad_statistics=pad_statistics)
        self.project_text: nn.Module = text_projection(text_dim, embed_dim, always=map_text)
        for name, kind in (("pooling", pooling), ("text_pooling", text_pooling)):
            require_choice(name, kind, POOLINGS + AGGREGATORS)
        self.pool_image, self.pool_text = (
            Aggregator(kind, embed_dim)
            if kind in AGGREGATORS
            else build_pooling(kind, pool_count, released=released_gpo)
            for kind in (pooling, text_pooling)
        )
        self.order_matters = pooling.endswith("seq2seq")

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        """See `Method.encode`; an aggregator has no attention."""
        pooling, projected = self._project(side, features, mask)
        pooled = pooling(projected, mask)  # Eq. (2)
        shares = None
        if attention and not isinstance(pooling, Aggregator):
            shares = pooling.shares(projected, mask, pooled)[:, None]  # (B, 1, N)
        return Views(l2_normalize(pooled)[:, None], shares)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.split`; an aggregator's vector is attributed to the set as a whole."""
        pooling, projected = self._project(side, features, mask)
        if isinstance(pooling, Aggregator):
            embedding = pooling(projected, mask)[:, None]  # (B, 1, D)
            return Parts.of(torch.zeros_like(projected)[:, None], whole=embedding).unit()
        return Parts.of(pooling.parts(projected, mask)[:, None]).unit()

    def _project(
        self, side: str, features: Tensor, mask: Tensor
    ) -> tuple[RankPooling | Aggregator, Tensor]:
        """Returns the side's pooling, and its features projected to the joint space, (B, N, D)."""
        if side == "image":
            return self.pool_image, self.project_image(features, mask)
        return self.pool_text, self.project_text(features)

    def inside(self, images: Views, texts: Views | None = None, /, **_: object) -> list[NamedArray]:
        """See `Method.inside`: the coefficients of GPO on both sides, section 5.3."""
        return pooling_arrays(images, texts, [self.pool_image], [self.pool_text])


class VSEPP(VSEInfinity):
    """VSE++ with average pooling on both sides; V = 1. For arguments see `VSEInfinity`."""

    title = "VSE++"
    paper = "Faghri et al., BMVC 2018"
    attention_is = "each cell's share of the average of projected features"

    def __init__(
        self, image_dim: int, text_dim: int, embed_dim: int = 1024, map_text: bool = False
    ) -> None:
        sizes = image_dim, text_dim, embed_dim
        super().__init__(*sizes, pooling="mean", text_pooling="mean", map_text=map_text)
