"""The single-vector baseline that all five papers start from.

Fartash Faghri, David J. Fleet, Jamie Ryan Kiros, Sanja Fidler: VSE++: Improving Visual-Semantic
Embeddings with Hard Negatives, BMVC 2018, in the set-of-features form that VSE-infinity (section 2)
compares with: a linear map and average pooling on the image side, average pooling of the recurrent
states on the text side. VSE++ itself takes the last state of a GRU; average pooling is the form of
the later papers' tables ("AvgPool [9]").
"""

from __future__ import annotations

from torch import Tensor, nn

from models.evidence import Parts
from models.layers import (
    FeatureProjection,
    l2_normalize,
    masked_mean,
    mean_parts,
    single_view,
    text_projection,
)
from models.method import Method
from models.views import Views


class VSEPP(Method):
    """VSE++ with average pooling on both sides; V = 1.

    Args:
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        embed_dim: D of the joint space.
        mlp_dim: hidden width of the residual MLP of `FeatureProjection`; 0 for none.
        map_text: see `VSEInfinity`.
    """

    title = "VSE++"
    paper = "Faghri et al., BMVC 2018"
    attention_is = (
        "each cell's share of the average: how much its projected feature adds to the embedding"
    )

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 1024,
        mlp_dim: int = 0,
        map_text: bool = False,
    ) -> None:
        super().__init__()
        self.project_image = FeatureProjection(image_dim, embed_dim, mlp_dim)
        self.project_text: nn.Module = text_projection(text_dim, embed_dim, always=map_text)

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_image`."""
        return _average(self.project_image(features, mask), mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_text`."""
        return _average(self.project_text(features), mask, attention)

    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.image_parts`."""
        return Parts.of(mean_parts(self.project_image(features, mask), mask)[:, None]).unit()

    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.text_parts`."""
        return Parts.of(mean_parts(self.project_text(features), mask)[:, None]).unit()


def _average(features: Tensor, mask: Tensor, attention: bool) -> Views:
    """Averages (B, N, D) over each set; shares as in `GPO.forward`, with equal weights."""
    mean = masked_mean(features, mask)  # (B, D)
    shares = None
    if attention:
        gained = (features @ mean[..., None]).squeeze(-1)  # (B, N)
        gained = gained.clamp_min(0.0).masked_fill(~mask, 0.0)
        shares = gained / gained.sum(dim=1, keepdim=True).clamp_min(1e-12)
    return single_view(l2_normalize(mean), shares)
