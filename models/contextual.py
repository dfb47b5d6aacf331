"""A transformer over an encoder's features, trained from random weights together with the head.

Wanqing Cui, Rui Cheng, Jiafeng Guo, Xueqi Cheng: MVAM: Multi-View Attention Method for Fine-grained
Image-Text Matching, arXiv 2402.17237, 2025, section 4.3: "the image encoder is a randomly
initialized transformer, which receives outputs from FRCNN and ViT" (regions and patches). Eqs. (1)
and (3) prepend a learned [IMG] or [CLS].

The transformer belongs to the head: it runs in torch and its weights are in `head.safetensors`, so
encoder features can be cached, and packs with precomputed region features need no encoder.

The paper gives no size. The defaults are those of BERT-base, its text encoder. Layer norms precede
attention and MLP, as in ViT, because post-norm layers need a warm-up, which the paper does not use.
No positions are added: regions have none, and other encoders' features already encode positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyview.models.layers import require_choice
from polyview.models.method import Method

CONTEXTS = ("none", "transformer")


@dataclass(frozen=True)
class ContextConfig:
    """Arguments that `models.build` takes for every method.

    Attributes:
        contextual_image: "transformer" for a transformer over the image's features, or "none".
        contextual_text: "transformer" for a transformer over the text's features, or "none".
        contextual_layers: number of layers.
        contextual_heads: number of attention heads; must divide the width.
        contextual_width: width of the states; features of another width are mapped linearly. The
            hidden layer of each MLP is four times as wide.
        contextual_dropout: dropout rate in training, 0 <= rate < 1.
        contextual_summary: prepend a learned element, [IMG] or [CLS], to the set; not needed if the
            encoder provides a summary.
    """

    contextual_image: str = "none"
    contextual_text: str = "none"
    contextual_layers: int = 12
    contextual_heads: int = 12
    contextual_width: int = 768
    contextual_dropout: float = 0.1
    contextual_summary: bool = True

    def __post_init__(self) -> None:
        require_choice("contextual_image", self.contextual_image, CONTEXTS)
        require_choice("contextual_text", self.contextual_text, CONTEXTS)
        if self.contextual_layers < 1 or not 0 <= self.contextual_dropout < 1:
            raise ValueError(
                f"contextual_layers {self.contextual_layers} must be 1 or more, and "
                f"contextual_dropout {self.contextual_dropout} at least 0 and below 1"
            )
        heads, width = self.contextual_heads, self.contextual_width
        if heads < 1 or width < 1 or width % heads:
            reason = f"contextual_heads {heads} must divide contextual_width {width}"
            raise ValueError(f"{reason}; both must be at least 1")

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that have a transformer: "image", "text", both or none."""
        settings = (("image", self.contextual_image), ("text", self.contextual_text))
        return tuple(side for side, context in settings if context == "transformer")


class ContextTransformer(nn.Module):
    """Pre-norm transformer layers over sets of features (B, N, `in_dim`), and a layer norm."""

    def __init__(self, in_dim: int, config: ContextConfig) -> None:
        super().__init__()
        width = config.contextual_width
        self.project = nn.Identity() if in_dim == width else nn.Linear(in_dim, width)
        has_summary = config.contextual_summary
        self.summary = nn.Parameter(0.02 * torch.randn(width)) if has_summary else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                config.contextual_heads,
                4 * width,
                config.contextual_dropout,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(config.contextual_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Maps features (B, N, d), mask (B, N), to states (B, N, width) and their mask.

        States are 0 on padding. If a summary is prepended, states and mask have N + 1 elements.
        """
        states = self.project(features)  # (B, N, width)
        if self.summary is not None:
            states = torch.cat([self.summary.expand(len(states), 1, -1), states], dim=1)
            mask = nn.functional.pad(mask, (1, 0), value=True)
        for layer in self.layers:
            states = layer(states, src_key_padding_mask=~mask)
        return self.norm(states).masked_fill(~mask[..., None], 0.0), mask


def add_contexts(method: Method, image_dim: int, text_dim: int, config: ContextConfig) -> None:
    """Adds transformers over the input sets to a method, as `image_context` and `text_context`.

    On a side with a transformer, the method must be built for features of `contextual_width`.
    `image_dim` and `text_dim` are the widths d of the encoders' features. Raises ValueError if a
    summary is requested and the method's views are elements.
    """
    if method.views_are_elements and config.contextual_summary:
        raise ValueError(f"the views of {method.title} are elements; set contextual_summary=false")
    for side, dim in (("image", image_dim), ("text", text_dim)):
        if side in config.sides:
            method.add_module(f"{side}_context", ContextTransformer(dim, config))
    method.summary_sides = config.sides if config.contextual_summary else ()
