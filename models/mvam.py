"""MVAM: view codes attend to an encoder's features; the views are concatenated.

Wanqing Cui, Rui Cheng, Jiafeng Guo, Xueqi Cheng: MVAM: Multi-View Attention Method for Fine-grained
Image-Text Matching, arXiv 2402.17237, 2025.

Each side has m learnable view codes. Each code is the query of an attention over the features (Eqs.
7-8), and the m results are concatenated (Eq. 9). The authors have not released code. The paper does
not state the width of a view. As in its comparison with an ensemble, the default is 16 views of 64
dimensions, 1,024 in all, so features are projected to the width of a view before pooling, as in the
baseline `BaseAttention`. Eq. (7) has no scale factor, so none is applied.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polyview.models.evidence import Parts
from polyview.models.layers import (
    FeatureProjection,
    l2_normalize,
    place_element,
    require_choice,
    text_projection,
)
from polyview.models.method import Method
from polyview.models.views import NamedArray, Views

CODE_SPACES = ("view", "encoder")


class ViewCodes(nn.Module):
    """Attention of m = `views` learnable codes of width `dim` to a set, Eqs. (7)-(8)."""

    def __init__(self, views: int, dim: int) -> None:
        super().__init__()
        codes = torch.empty(views, dim)
        if not codes.is_meta:  # on "meta", drawing values would import much more of torch
            codes.normal_().div_(math.sqrt(dim))
        self.codes = nn.Parameter(codes)

    def forward(self, features: Tensor, mask: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Pools a set into views (B, m, D), one for each code; also returns attention (B, m, N).

        Codes attend to features (B, N, dim), mask (B, N). Views are averages of values (B, N, D).
        """
        scores = (self.codes @ features.mT).masked_fill(~mask[:, None], -torch.inf)  # (B, m, N)
        attention = scores.softmax(dim=2)  # Eq. (7)
        return attention @ values.masked_fill(~mask[..., None], 0.0), attention  # Eq. (8)


class MVAM(Method):
    """MVAM; V = m on both sides; the concatenated views have unit length.

    Args:
        embed_dim: D, width of one view (16 views of 64 make the paper's 1,024); 0 pools the
            encoders' features without a projection, which requires the same d on both sides, as in
            CLIP's joint space.
        views: m, the number of view codes (paper: 16).
        learned_temperature: initial value of the contrastive loss's learned temperature; 0 if it
            is not learned, as in Eq. (5).
        code_space: "encoder" compares codes of width d with the encoder's features (section 3.3);
            "view" compares codes of width D with the projected features.
        map_text: see `VSEInfinity`; section 4.3 maps both sides.
    """

    title = "MVAM"
    paper = "Cui et al., arXiv 2402.17237"
    attention_is = "the attention of each view code"
    views_add_up = True
    view_scores_are = "the contribution of each view to the score"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 64,
        views: int = 16,
        learned_temperature: float = 0.0,
        code_space: str = "encoder",
        map_text: bool = True,
    ) -> None:
        super().__init__()
        require_choice("code_space", code_space, CODE_SPACES)
        if views < 1:
            raise ValueError(f"views must be 1 or more, not {views}")
        if learned_temperature < 0:
            raise ValueError(f"learned_temperature must be 0 or more, not {learned_temperature}")
        if not embed_dim and image_dim != text_dim:
            raise ValueError(
                "embed_dim 0 skips the projections, so both encoders must have the same width, not "
                f"{image_dim} and {text_dim}"
            )
        self.project_image: nn.Module = nn.Identity()
        self.project_text: nn.Module = nn.Identity()
        if embed_dim:
            self.project_image = FeatureProjection(image_dim, embed_dim)
            self.project_text = text_projection(text_dim, embed_dim, always=map_text)
        self.code_space = code_space
        before_projection = code_space == "encoder" or not embed_dim
        self.image_codes = ViewCodes(views, image_dim if before_projection else embed_dim)
        self.text_codes = ViewCodes(views, text_dim if before_projection else embed_dim)
        self.log_temperature: nn.Parameter | None = None
        if learned_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(learned_temperature)))

    def contrastive_temperature(self) -> Tensor | None:
        return None if self.log_temperature is None else self.log_temperature.exp()

    @torch.no_grad()
    def clamp_temperature(self) -> None:
        """See `Method.clamp_temperature`: at least 0.01, as CLIP's logit scale is at most 100."""
        if self.log_temperature is not None:
            self.log_temperature.clamp_(min=-math.log(100))

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        _, views, maps = self._attend(side, features, mask)
        embeddings = l2_normalize(views.flatten(1)).view_as(views)  # (B, m, D), Eq. (9)
        extras = {"attention": maps} if self.training else {}
        return Views(embeddings, maps if attention else None, extras)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.split`: the terms of the sum in Eq. (8)."""
        values, _, maps = self._attend(side, features, mask)
        values = values.masked_fill(~mask[..., None], 0.0)
        parts = Parts.of(maps[..., None] * values[:, None])  # (B, m, N, D)
        return parts.unit(maps.shape[1] * values.shape[2])

    def score(self, images: Views, texts: Views) -> Tensor:
        """Returns the cosines (B_img, B_txt) of the concatenated views, Eq. (9)."""
        return images.embeddings.flatten(1) @ texts.embeddings.flatten(1).T

    def inside(self, images: Views, texts: Views | None = None, /, **_: object) -> list[NamedArray]:
        """See `Method.inside`: cosines of pairs of view codes (Eq. 7), and the spread of attention.

        "attention_spread" is the entropy of each view's attention divided by that of uniform
        attention, for images and for texts; the diversity loss (Eq. 10) lowers it.
        """
        arrays = []
        if images.embeddings.shape[1] > 1:
            for name in ("image_codes", "text_codes"):
                codes = l2_normalize(getattr(self, name).codes)  # (m, dim)
                arrays.append(NamedArray(name, codes @ codes.T, ("view", "view")))
        spreads = []
        for views in (images, texts):
            if views is not None and views.attention is not None:
                max_entropy = math.log(max(2, views.attention.shape[-1]))  # above 0
                spreads.append(torch.special.entr(views.attention[0]).sum(dim=-1) / max_entropy)
        if spreads:
            arrays.append(NamedArray("attention_spread", torch.stack(spreads), ("side", "view")))
        return arrays

    def _attend(self, side: str, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns projected features (B, N, D), views (B, m, D) and attention (B, m, N)."""
        project, codes = getattr(self, f"project_{side}"), getattr(self, f"{side}_codes")
        takes_mask = isinstance(project, FeatureProjection)
        values = project(features, mask) if takes_mask else project(features)
        return values, *codes(values if self.code_space == "view" else features, mask, values)


class BaseAttention(MVAM):
    """Attention pooling with one code, MVAM's baseline "+ Attn"; V = 1. Arguments: see `MVAM`."""

    title = "Attention pooling"
    paper = "Cui et al., arXiv 2402.17237 (baseline)"
    attention_is = "the attention of the only view code"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 1024,
        learned_temperature: float = 0.0,
        map_text: bool = True,
    ) -> None:
        # section 4.3: features are projected before attention
        super().__init__(image_dim, text_dim, embed_dim, 1, learned_temperature, "view", map_text)


class BaseSummary(Method):
    """Maps the [CLS] state linearly to `embed_dim` and applies tanh: "+ [CLS]" of MVAM; V = 1."""

    title = "[CLS] pooling"
    paper = "Cui et al., arXiv 2402.17237 (baseline)"
    attention_is = "1 at the [CLS] element and 0 elsewhere"
    summary_token = True

    def __init__(self, image_dim: int, text_dim: int, embed_dim: int = 1024) -> None:
        super().__init__()
        self.project_image = nn.Linear(image_dim, embed_dim)
        self.project_text = nn.Linear(text_dim, embed_dim)

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        summary_map = torch.zeros_like(mask, dtype=features.dtype)[:, None]  # (B, 1, N)
        summary_map[..., 0] = 1.0
        embedding = l2_normalize(self._summary(side, features))[:, None]  # (B, 1, D)
        return Views(embedding, summary_map if attention else None)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        first = torch.zeros_like(mask[:, 0], dtype=torch.int64)  # (B,)
        parts = place_element(self._summary(side, features), first, mask.shape[1])
        return Parts.of(parts[:, None]).unit()

    def _summary(self, side: str, features: Tensor) -> Tensor:
        """Returns the embedding (B, D) of each set's first element, before normalisation."""
        return torch.tanh(getattr(self, f"project_{side}")(features[:, 0]))
