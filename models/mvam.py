"""MVAM: view codes attend to an encoder's features; the views are joined to one vector.

Wanqing Cui, Rui Cheng, Jiafeng Guo, Xueqi Cheng: MVAM: Multi-View Attention Method for Fine-grained
Image-Text Matching, arXiv 2402.17237, 2025.

It adds m learnable view codes to each side: each is the query of an attention over the features
(Eqs. 7-8), and the m results are concatenated (Eq. 9). With one code it is the paper's baseline of
attention pooling, `BaseAttention`; `BaseSummary` is its other baseline, the projected [CLS] state.
There is no release. The paper leaves open the width of a view; here it is that of its comparison
with an ensemble, 16 views of 64 dimensions for a vector of 1,024, so features are projected to the
width of a view first, as the baseline's are. Eq. (7) has no scale, and neither has this.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from models.layers import FeatureProjection, l2_normalize, single_view, text_projection
from models.method import Method
from models.views import Views


class ViewCodes(nn.Module):
    """Attention of m learnable codes to a set, Eqs. (7)-(8).

    Args:
        views: m.
        dim: D, width of the features and of each view.
    """

    def __init__(self, views: int, dim: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(views, dim) / math.sqrt(dim))

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D), (B, N) -> (B, m, D) views and (B, m, N) attention."""
        scores = (self.codes @ features.mT).masked_fill(~mask[:, None], -torch.inf)  # (B, m, N)
        attention = scores.softmax(dim=2)  # Eq. (7)
        return attention @ features.masked_fill(~mask[..., None], 0.0), attention  # Eq. (8)


class MVAM(Method):
    """MVAM; V = m on both sides, and the m views together have unit length.

    Args:
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        embed_dim: D, width of one view (16 views of 64 make the paper's 1,024).
        views: m (paper: 16).
        mlp_dim: hidden width of the residual MLP of `FeatureProjection`; 0 for none.
        learned_temperature: where a learnable temperature of the contrastive loss starts; 0 for
            none, as in Eq. (5).
    """

    title = "MVAM"
    paper = "Cui et al., arXiv 2402.17237"
    attention_is = "the attention of each view code"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 64,
        views: int = 16,
        mlp_dim: int = 0,
        learned_temperature: float = 0.0,
    ) -> None:
        super().__init__()
        if views < 1:
            raise ValueError(f"views must be 1 or more, not {views}")
        if learned_temperature < 0:
            raise ValueError(f"learned_temperature must be 0 or more, not {learned_temperature}")
        self.row_search = views == 1
        self.project_image = FeatureProjection(image_dim, embed_dim, mlp_dim)
        self.project_text: nn.Module = text_projection(text_dim, embed_dim)
        self.image_codes = ViewCodes(views, embed_dim)
        self.text_codes = ViewCodes(views, embed_dim)
        self.log_temperature: nn.Parameter | None = None
        if learned_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(learned_temperature)))

    def contrastive_temperature(self) -> Tensor | None:
        """See `Method.contrastive_temperature`."""
        return None if self.log_temperature is None else self.log_temperature.exp()

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_image`."""
        return self._join(self.image_codes, self.project_image(features, mask), mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_text`."""
        return self._join(self.text_codes, self.project_text(features), mask, attention)

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """What each view adds to the score: (V, B_img, B_txt)."""
        return torch.einsum("ivd,tvd->vit", images.embeddings, texts.embeddings)

    def score(self, images: Views, texts: Views) -> Tensor:
        """Cosine of the joined views, Eq. (9)."""
        return images.embeddings.flatten(1) @ texts.embeddings.flatten(1).T

    def _join(self, codes: ViewCodes, features: Tensor, mask: Tensor, attention: bool) -> Views:
        views, maps = codes(features, mask)
        joined = l2_normalize(views.flatten(1)).view_as(views)  # (B, m, D), Eq. (9)
        extras = {"attention": maps} if self.training else {}
        return Views(joined, maps if attention else None, extras)


class BaseAttention(MVAM):
    """Attention pooling with one code, MVAM's baseline "+ Attn"; V = 1.

    Args:
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        embed_dim: D (paper: 1,024).
        mlp_dim: see `MVAM`.
        learned_temperature: see `MVAM`.
    """

    title = "Attention pooling"
    paper = "Cui et al., arXiv 2402.17237 (baseline)"
    attention_is = "the attention of the one view code"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 1024,
        mlp_dim: int = 0,
        learned_temperature: float = 0.0,
    ) -> None:
        super().__init__(image_dim, text_dim, embed_dim, 1, mlp_dim, learned_temperature)


class BaseSummary(Method):
    """A linear map and tanh of the encoder's [CLS] state, MVAM's baseline "+ [CLS]"; V = 1.

    For encoders that put such a state first, as transformers do.

    Args:
        image_dim: d of the image encoder.
        text_dim: d of the text encoder.
        embed_dim: D (paper: 1,024).
    """

    title = "[CLS] pooling"
    paper = "Cui et al., arXiv 2402.17237 (baseline)"
    attention_is = "the [CLS] element alone"
    summary_token = True

    def __init__(self, image_dim: int, text_dim: int, embed_dim: int = 1024) -> None:
        super().__init__()
        self.project_image = nn.Linear(image_dim, embed_dim)
        self.project_text = nn.Linear(text_dim, embed_dim)

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_image`."""
        return self._pool(self.project_image, features, mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """See `Method.encode_text`."""
        return self._pool(self.project_text, features, mask, attention)

    def _pool(self, project: nn.Linear, features: Tensor, mask: Tensor, attention: bool) -> Views:
        summary = torch.tanh(project(features[:, 0]))  # (B, D)
        alone = torch.zeros_like(mask, dtype=features.dtype)
        alone[:, 0] = 1.0
        return single_view(l2_normalize(summary), alone if attention else None)
