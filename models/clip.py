"""CLIP as it was pre-trained, for search without training.

Alec Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML
2021, section 2.3: the last state of [IMG] and that of [EOS], each through a linear map, compared by
cosine. What is trained with a contrastive loss there comes ready-made (`python -m polyview clip`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyview.models.evidence import Parts
from polyview.models.layers import (
    cosine_attention,
    l2_normalize,
    last_element,
    last_place,
    one_element,
    single_view,
)
from polyview.models.method import Method
from polyview.models.views import Views


class CLIP(Method):
    """Zero-shot CLIP; V = 1.

    It reads the image's first element and the text's last, where CLIP's encoders put what sums up
    the whole. The other elements are for the maps alone: they bring nothing to the score.

    Args:
        embed_dim: D of the joint space (512 for ViT-B/16 and B/32).
    """

    title = "CLIP"
    paper = "Radford et al., ICML 2021"
    attention_is = "cosine between each patch, mapped as the whole image is, and the embedding"
    attention_sums_to_one = False
    summary_token = True

    def __init__(self, image_dim: int, text_dim: int, embed_dim: int = 512) -> None:
        super().__init__()
        self.project_image = nn.Linear(image_dim, embed_dim, bias=False)
        self.project_text = nn.Linear(text_dim, embed_dim, bias=False)

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        return _embed(self.project_image, features, features[:, 0], mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        return _embed(self.project_text, features, last_element(features, mask), mask, attention)

    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        first = torch.zeros_like(mask[:, 0], dtype=torch.int64)  # (B,)
        summary = self.project_image(features[:, 0])
        return Parts.of(one_element(summary, first, mask.shape[1])[:, None]).unit()

    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        summary = self.project_text(last_element(features, mask))
        return Parts.of(one_element(summary, last_place(mask), mask.shape[1])[:, None]).unit()


def _embed(
    project: nn.Module, features: Tensor, summary: Tensor, mask: Tensor, attention: bool
) -> Views:
    """The summary (B, d) in the joint space, and how alike every element (B, N, d) is there."""
    views = single_view(l2_normalize(project(summary)), None)
    if not attention:
        return views
    alike = cosine_attention(project(features), views.embeddings, mask)  # (B, 1, N)
    return Views(views.embeddings, alike)
