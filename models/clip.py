"""Zero-shot CLIP: retrieval with pre-trained weights (`python -m polyview clip`).

Alec Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML
2021, section 2.3: the last states of [IMG] and [EOS] are each mapped linearly and compared by
cosine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyview.models.evidence import Evidence, Parts
from polyview.models.layers import cosine_attention, l2_normalize, last_index, one_element
from polyview.models.method import Method
from polyview.models.views import Views


class CLIP(Method):
    """Zero-shot CLIP; V = 1.

    Each feature is the contribution of a patch or a word (`models/encoders/rows.py`). The embedding
    is their sum, so evidence is attributed to patches and words.

    With `reference_queries`, scores are corrected by Nearest Neighbor Normalization (Chowdhury et
    al., EMNLP 2024): each image has a bias, `bias_weight` times the mean of its `bias_neighbours`
    highest cosines with the reference queries, which is subtracted from its cosine with any query.
    Embeddings then have D + 1 dimensions: the last is the negative bias of an image, or 1 for a
    text. In evidence the bias belongs to `base`.

    Args:
        embed_dim: D of the joint space (512 for ViT-B/16 and B/32), the width of both encoders'
            features.
        rows: must be true; false marks a pack of an earlier version, which is rejected.
        reference_queries: R, the number of reference queries; 0 for plain cosines. Their embeddings
            are weights of the head (`reference`, R x D).
        bias_weight: alpha of the paper.
        bias_neighbours: k of the paper, at most R.
    """

    title = "CLIP"
    paper = "Radford et al., ICML 2021"
    attention_is = "cosine between what each patch brings and the embedding"
    attention_sums_to_one = False
    summary_token = True
    features_add_up = True

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 512,
        *,
        rows: bool = True,
        reference_queries: int = 0,
        bias_weight: float = 0.75,
        bias_neighbours: int = 32,
    ) -> None:
        super().__init__()
        if not rows:
            raise ValueError(
                "this pack of CLIP is of an earlier version; make it again with python -m polyview "
                "clip"
            )
        if not image_dim == text_dim == embed_dim:
            raise ValueError(
                f"features of {image_dim} and {text_dim} numbers do not match embeddings of "
                f"{embed_dim}; export the pack again"
            )
        if reference_queries and not 1 <= bias_neighbours <= reference_queries:
            raise ValueError(
                f"bias_neighbours must be 1 to {reference_queries}, the number of reference "
                f"queries, not {bias_neighbours}"
            )
        self.reference: Tensor | None
        empty = torch.zeros(reference_queries, embed_dim) if reference_queries else None
        self.register_buffer("reference", empty)
        self.bias_weight, self.bias_neighbours = bias_weight, bias_neighbours

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        rows = features * mask[..., None]
        embedding = l2_normalize(rows.sum(dim=1))[:, None]  # (B, 1, D)
        maps = cosine_attention(rows, embedding, mask) if attention else None  # (B, 1, N)
        if self.reference is not None:
            embedding = torch.cat([embedding, self._last(side, embedding)], dim=-1)
        return Views(embedding, maps)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.split`; the row of a summary token ([IMG] or [EOS]) is `whole`."""
        rows = features * mask[..., None]
        index = last_index(mask) if side == "text" else torch.zeros_like(mask[:, 0]).long()  # (B,)
        whole = rows[torch.arange(len(rows), device=rows.device), index]  # (B, D)
        elements = rows - one_element(whole, index, rows.shape[1])
        parts = Parts.of(elements[:, None], whole=whole[:, None]).unit()
        if self.reference is None:
            return parts
        extended = nn.functional.pad(parts.rows, (0, 1))
        extended[:, :, -1, -1:] = self._last(side, parts.total)
        return Parts(extended)

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """See `Method.view_scores`; if the query is an image, its bias is ignored."""
        query = texts.embeddings
        if self.reference is not None:
            query = torch.cat([query[..., :-1], torch.ones_like(query[..., :1])], dim=-1)
        return super().view_scores(images, Views(query))

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        if self.reference is not None:
            last = torch.zeros_like(texts.rows[..., 0])
            last[..., -1] = 1.0  # in the constant row
            texts = Parts(torch.cat([texts.rows[..., :-1], last[..., None]], dim=-1))
        return super().evidence(images, texts, per_view=per_view)

    def _last(self, side: str, embedding: Tensor) -> Tensor:
        """The additional dimension (B, 1, 1) of embeddings (B, 1, D): the negative bias, or 1."""
        if side == "text":
            return torch.ones_like(embedding[..., :1])
        assert self.reference is not None
        cosines = embedding @ self.reference.to(embedding).T  # (B, 1, R)
        highest = cosines.topk(self.bias_neighbours, dim=-1).values
        return -self.bias_weight * highest.mean(dim=-1, keepdim=True)
