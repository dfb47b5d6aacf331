"""CLIP as it was pre-trained: search without training.

Alec Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML
2021, section 2.3: the last states of [IMG] and [EOS] are each mapped linearly and compared by
cosine. The pre-trained weights are used as they are (`python -m polyview clip`).
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

    With `rows`, each feature is the contribution of a patch or a word to the embedding, which is
    their sum (`models/encoders/rows.py`), so evidence lies on patches and words. Without `rows`, as
    in older packs, the embeddings are the image's first element and the text's last, which CLIP
    trains as summaries; the other elements serve the maps only and add nothing to the score.

    Args:
        embed_dim: D of the joint space (512 for ViT-B/16 and B/32); with `rows`, the width of both
            encoders' features.
        rows: see above.
    """

    title = "CLIP"
    paper = "Radford et al., ICML 2021"
    attention_is = "cosine between each patch, mapped as the whole image is, and the embedding"
    attention_sums_to_one = False
    summary_token = True

    def __init__(
        self, image_dim: int, text_dim: int, embed_dim: int = 512, *, rows: bool = False
    ) -> None:
        super().__init__()
        self.features_add_up = rows
        if rows:
            if not image_dim == text_dim == embed_dim:
                raise ValueError(
                    f"rows of {image_dim} and {text_dim} numbers add up to no embeddings of "
                    f"{embed_dim}; export the pack again"
                )
            self.attention_is = "cosine between what each patch brings and the embedding"
            return
        self.project_image = nn.Linear(image_dim, embed_dim, bias=False)
        self.project_text = nn.Linear(text_dim, embed_dim, bias=False)

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        if self.features_add_up:
            return _add_up(features, mask, attention)
        return _embed(self.project_image, features, features[:, 0], mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        if self.features_add_up:
            return _add_up(features, mask, attention)
        return _embed(self.project_text, features, last_element(features, mask), mask, attention)

    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        first = torch.zeros_like(mask[:, 0], dtype=torch.int64)  # (B,)
        if self.features_add_up:
            return _split(features, mask, first)
        summary = self.project_image(features[:, 0])
        return Parts.of(one_element(summary, first, mask.shape[1])[:, None]).unit()

    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        if self.features_add_up:
            return _split(features, mask, last_place(mask))
        summary = self.project_text(last_element(features, mask))
        return Parts.of(one_element(summary, last_place(mask), mask.shape[1])[:, None]).unit()


def _add_up(rows: Tensor, mask: Tensor, attention: bool) -> Views:
    """The sum of rows (B, N, D) as a view; its attention is the cosine of each row with the sum."""
    rows = rows * mask[..., None]
    views = single_view(l2_normalize(rows.sum(dim=1)), None)
    alike = cosine_attention(rows, views.embeddings, mask) if attention else None  # (B, 1, N)
    return Views(views.embeddings, alike)


def _split(rows: Tensor, mask: Tensor, place: Tensor) -> Parts:
    """Rows (B, N, D) as parts; the row at `place` (B,) is the part of the whole set."""
    rows = rows * mask[..., None]
    rest = rows[torch.arange(len(rows), device=rows.device), place]  # (B, D)
    elements = rows - one_element(rest, place, rows.shape[1])
    return Parts.of(elements[:, None], whole=rest[:, None]).unit()


def _embed(
    project: nn.Module, features: Tensor, summary: Tensor, mask: Tensor, attention: bool
) -> Views:
    """The projected summary (B, d) as a view; its attention is the cosine with each element."""
    views = single_view(l2_normalize(project(summary)), None)
    if not attention:
        return views
    alike = cosine_attention(project(features), views.embeddings, mask)  # (B, 1, N)
    return Views(views.embeddings, alike)
