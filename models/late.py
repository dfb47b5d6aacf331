"""Late interaction: each word looks for its best cell, and the cosines are averaged.

Omar Khattab, Matei Zaharia: ColBERT: Efficient and Effective Passage Search via Contextualized
Late Interaction over BERT, SIGIR 2020, section 3.3: the sum over the query's tokens of the largest
cosine with a token of the document ("MaxSim").

Lewei Yao, Runhui Huang, Lu Hou, Guansong Lu, Minzhe Niu, Hang Xu, Xiaodan Liang, Zhenguo Li, Xin
Jiang, Chunjing Xu: FILIP: Fine-grained Interactive Language-Image Pre-Training, ICLR 2022, section
3.1: the same between words and patches, with the mean over words in place of the sum, so that long
captions do not score higher. FILIP also scores from patches to words; for search with words, the
direction from words to patches, its Eq. (4), is the one that counts, and the only one here.

An image is as many vectors as it has cells, so they are narrow: 32 dimensions in the recipes, where
ColBERT has 128 and FILIP 256.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.elements import ElementConfig, ElementMethod, present


@dataclass(frozen=True)
class LateConfig(ElementConfig):
    """Arguments of `LateInteraction`: those of `ElementConfig` (ColBERT: 128 and 32 words)."""

    embed_dim: int = 128


class LateInteraction(ElementMethod):
    """Late interaction; V = the number of cells on the image side, of words on the text side."""

    title = "Late interaction"
    paper = "Khattab and Zaharia, SIGIR 2020; Yao et al., ICLR 2022"
    config_type = LateConfig

    def weights(self, cosines: Tensor, cells: Tensor, words: Tensor) -> Tensor:
        """See `ElementMethod.weights`: of each word the best cell, over the number of words."""
        absent = ~present(cells)[..., None]  # (..., V, 1)
        best = cosines.masked_fill(absent, -torch.inf).argmax(dim=-2, keepdim=True)  # (..., 1, W)
        real = present(words)[..., None, :].to(cosines.dtype)  # (..., 1, W)
        share = real / real.sum(dim=-1, keepdim=True).clamp_min(1.0)
        return torch.zeros_like(cosines).scatter(-2, best, share.expand_as(best))
