"""Zero-shot CLIP: retrieval with pre-trained weights (`python -m polyview clip`).

Alec Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML
2021, section 2.3: the last states of [IMG] and [EOS] are mapped linearly to a joint space and
compared by cosine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyview.models.evidence import Parts
from polyview.models.layers import cosine_attention, l2_normalize, last_index, place_element
from polyview.models.method import Method
from polyview.models.views import Views


class CLIP(Method):
    """Zero-shot CLIP; V = 1.

    Each feature is the contribution of a patch or a word (`models/encoders/rows.py`), and the
    embedding is the sum of the features, so the score can be split over patches and words.

    Args:
        embed_dim: width D of the joint space (512 for ViT-B) and of both encoders' features.
        rows: True; False marks a pack of an earlier version, which is rejected.
    """

    title = "CLIP"
    paper = "Radford et al., ICML 2021"
    attention_is = "cosine between each patch's contribution and the embedding"
    attention_sums_to_one = False
    summary_token = True
    features_add_up = True

    def __init__(
        self, image_dim: int, text_dim: int, embed_dim: int = 512, *, rows: bool = True
    ) -> None:
        super().__init__()
        if not rows:
            raise ValueError(
                "this pack of CLIP is of an earlier version; run python -m polyview clip again"
            )
        if not image_dim == text_dim == embed_dim:
            raise ValueError(
                f"image_dim {image_dim} and text_dim {text_dim} must equal embed_dim {embed_dim}; "
                "export the pack again"
            )

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        del side  # images and texts are encoded alike
        rows = features * mask[..., None]
        embedding = l2_normalize(rows.sum(dim=1))[:, None]  # (B, 1, D)
        maps = cosine_attention(rows, embedding, mask) if attention else None  # (B, 1, N)
        return Views(embedding, maps)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.split`; the row of [IMG] or [EOS] belongs to the set as a whole."""
        rows = features * mask[..., None]
        index = last_index(mask) if side == "text" else torch.zeros_like(mask[:, 0]).long()  # (B,)
        whole = rows[torch.arange(len(rows), device=rows.device), index]  # (B, D)
        elements = rows - place_element(whole, index, rows.shape[1])
        return Parts.of(elements[:, None], whole=whole[:, None]).unit()
