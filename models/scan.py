"""SCAN: every word attends to the cells, or every cell to the words.

Kuang-Huei Lee, Xi Chen, Gang Hua, Houdong Hu, Xiaodong He: Stacked Cross Attention for Image-Text
Matching, ECCV 2018.

It adds to VSE++ that the score of a pair attends from one side to the other, so that it has to be
computed for every pair anew. "t2i" asks for each word what the cells hold of it, "i2t" for each
cell what the words say of it; the cosines of each query with what it attends to are averaged (the
paper's AVG; its LSE is not offered, since it does not add up over words). Sets have a fixed number
of views: elements beyond it are left out, missing ones are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.elements import ElementConfig, ElementMethod, present
from models.layers import EPS, require_choice

DIRECTIONS = ("t2i", "i2t")


@dataclass(frozen=True)
class SCANConfig(ElementConfig):
    """Arguments of `SCAN` beside those of `ElementConfig` (the paper: 1,024 and 36 cells).

    Attributes:
        direction: "t2i" or "i2t", see above.
        sharpness: lambda_1, of the attention (the release's 9 for t2i; 4 for i2t).
    """

    direction: str = "t2i"
    sharpness: float = 9.0

    def __post_init__(self) -> None:
        """Rejects values that do not describe a model."""
        super().__post_init__()
        require_choice("direction", self.direction, DIRECTIONS)
        if self.sharpness <= 0:
            raise ValueError(f"sharpness must be above 0, not {self.sharpness}")


class SCAN(ElementMethod):
    """SCAN; V = the number of cells on the image side, of words on the text side."""

    title = "SCAN"
    paper = "Lee et al., ECCV 2018"
    config_type = SCANConfig
    config: SCANConfig

    def weights(self, cosines: Tensor, cells: Tensor, words: Tensor) -> Tensor:
        """See `ElementMethod.weights`: attention, over the length of what it attends to."""
        if self.config.direction == "i2t":
            return self._attend(cosines.mT, words, cells).mT
        return self._attend(cosines, cells, words)

    def _attend(self, cosines: Tensor, source: Tensor, query: Tensor) -> Tensor:
        """Each of Q queries attends to S elements, Eqs. (1)-(4) of the stacked attention.

        Args:
            cosines: (..., S, Q).
            source: (..., S, D), 0 where absent.
            query: (..., Q, D) likewise.
        """
        sources = present(source)[..., None]  # (..., S, 1)
        queries = present(query)[..., None, :]  # (..., 1, Q)
        positive = cosines.clamp_min(0.0)
        share = positive / (positive.square().sum(dim=-1, keepdim=True) + EPS).sqrt()
        attention = (self.config.sharpness * share).masked_fill(~sources, -torch.inf)
        attention = attention.softmax(dim=-2)
        gram = source @ source.mT  # (..., S, S)
        length = (attention * (gram @ attention)).sum(dim=-2, keepdim=True).clamp_min(0.0).sqrt()
        count = queries.sum(dim=-1, keepdim=True).clamp_min(1)  # (..., 1, 1)
        return attention * queries / ((length + EPS) * count)
