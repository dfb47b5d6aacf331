"""CLIP as it was pre-trained: search without training.

Alec Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML
2021, section 2.3: the last states of [IMG] and [EOS] are each mapped linearly and compared by
cosine. The pre-trained weights are used as they are (`python -m polyview clip`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyview.models.evidence import Evidence, Parts
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

    With `reference_queries`, scores are corrected by Nearest Neighbor Normalization (Chowdhury et
    al., EMNLP 2024): a bias of each image, `bias_weight` times the mean of its `bias_neighbours`
    highest cosines with the embeddings of reference queries, is subtracted from its cosine with
    any query. The embeddings then have D + 1 numbers: the last is the negative bias of an image,
    and 1 for a text. In evidence the bias belongs to `base`.

    Args:
        embed_dim: D of the joint space (512 for ViT-B/16 and B/32); with `rows`, the width of both
            encoders' features.
        rows: see above.
        reference_queries: R, the number of reference queries; 0 for plain cosines. Their embeddings
            are weights of the head (`reference`, R x D).
        bias_weight: alpha of the paper.
        bias_neighbours: k of the paper, at most R.
    """

    title = "CLIP"
    paper = "Radford et al., ICML 2021"
    attention_is = "cosine between each patch, mapped as the whole image is, and the embedding"
    attention_sums_to_one = False
    summary_token = True

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 512,
        *,
        rows: bool = False,
        reference_queries: int = 0,
        bias_weight: float = 0.75,
        bias_neighbours: int = 32,
    ) -> None:
        super().__init__()
        if reference_queries and not 1 <= bias_neighbours <= reference_queries:
            raise ValueError(
                f"bias_neighbours must be 1 to {reference_queries}, the number of reference "
                f"queries, not {bias_neighbours}"
            )
        self.reference: Tensor | None
        empty = torch.zeros(reference_queries, embed_dim) if reference_queries else None
        self.register_buffer("reference", empty)
        self.bias_weight, self.bias_neighbours = bias_weight, bias_neighbours
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
            views = _add_up(features, mask, attention)
        else:
            views = _embed(self.project_image, features, features[:, 0], mask, attention)
        return self._with(-self._bias(views.embeddings), views)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        if self.features_add_up:
            views = _add_up(features, mask, attention)
        else:
            summary = last_element(features, mask)
            views = _embed(self.project_text, features, summary, mask, attention)
        return self._with(torch.ones_like(views.embeddings[..., :1]), views)

    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        first = torch.zeros_like(mask[:, 0], dtype=torch.int64)  # (B,)
        if self.features_add_up:
            parts = _split(features, mask, first)
        else:
            summary = self.project_image(features[:, 0])
            parts = Parts.of(one_element(summary, first, mask.shape[1])[:, None]).unit()
        return self._extended(parts, -self._bias(parts.total))

    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        last = last_place(mask)
        if self.features_add_up:
            parts = _split(features, mask, last)
        else:
            summary = self.project_text(last_element(features, mask))
            parts = Parts.of(one_element(summary, last, mask.shape[1])[:, None]).unit()
        return self._extended(parts, torch.ones_like(parts.total[..., :1]))

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        return super().view_scores(images, Views(self._query(texts.embeddings)))

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        if self.reference is not None:
            last = torch.zeros_like(texts.rows[..., 0])
            last[..., -1] = 1.0  # in the constant row
            texts = Parts(torch.cat([texts.rows[..., :-1], last[..., None]], dim=-1))
        return super().evidence(images, texts, per_view=per_view)

    def _bias(self, embeddings: Tensor) -> Tensor:
        """The biases (B, 1, 1) of image embeddings (B, 1, D)."""
        if self.reference is None:
            return embeddings[..., :1]
        cosines = embeddings @ self.reference.to(embeddings).T  # (B, 1, R)
        highest = cosines.topk(self.bias_neighbours, dim=-1).values
        return self.bias_weight * highest.mean(dim=-1, keepdim=True)

    def _with(self, last: Tensor, views: Views) -> Views:
        """Views (B, 1, D) with a last number (B, 1, 1), if scores are corrected."""
        if self.reference is None:
            return views
        return Views(torch.cat([views.embeddings, last], dim=-1), views.attention)

    def _extended(self, parts: Parts, last: Tensor) -> Parts:
        """Parts of D + 1 numbers, of which the last (B, 1, 1) is constant, if corrected."""
        if self.reference is None:
            return parts
        rows = nn.functional.pad(parts.rows, (0, 1))
        rows[:, :, -1, -1:] = last
        return Parts(rows)

    def _query(self, embeddings: Tensor) -> Tensor:
        """Embeddings of queries: where an image is the query, its own bias does not count."""
        if self.reference is None:
            return embeddings
        return torch.cat([embeddings[..., :-1], torch.ones_like(embeddings[..., :1])], dim=-1)


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
