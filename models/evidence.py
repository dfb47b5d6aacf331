"""Evidence: splits a score exactly over the elements of both sets (cells and words).

A view is a sum of contributions of its set's elements. With ranks, attention and lengths *of one
pair* held constant, the inner product of two views equals the sum of the inner products of their
contributions:

    <image view, text view> = sum over n, m of <part of cell n, part of word m> + remainder

Evidence explains the score. It does not prove that an object is in a cell: the feature of a cell
may depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyview.models.layers import EPS


@dataclass(frozen=True)
class Parts:
    """Views as sums of the contributions of a set's elements.

    Attributes:
        rows: (B, V, N + 2, D) contributions that sum to the view: one for each of N elements (0 on
            padding), one for the set as a whole (such as a recurrent state), and one constant (such
            as a bias).
    """

    rows: Tensor

    @classmethod
    def of(
        cls, elements: Tensor, whole: Tensor | float = 0.0, constant: Tensor | float = 0.0
    ) -> Parts:
        """Builds parts: `elements` is (B, V, N, D), `whole` and `constant` (B, V, D) or numbers."""
        rows = nn.functional.pad(elements, (0, 0, 0, 2))  # (B, V, N + 2, D)
        rows[:, :, -2], rows[:, :, -1] = whole, constant
        return cls(rows)

    @property
    def total(self) -> Tensor:
        """The views (B, V, D)."""
        return self.rows.sum(dim=2)

    def unit(self, width: int | None = None) -> Parts:
        """Scales the parts so that each group of `width` dimensions of the views has unit length.

        `width` is D (the default) for each view, V * D for all views as one vector, or a divisor of
        D for blocks. As in `l2_normalize`, EPS is added to the lengths.
        """
        total = self.total
        groups = total.flatten(1).unflatten(1, (-1, width or total.shape[2]))
        lengths = groups.norm(dim=2, keepdim=True) + EPS
        return Parts(self.rows / lengths.expand_as(groups).reshape_as(total)[:, :, None])

    def layer_norm(self, norm: nn.LayerNorm) -> Parts:
        """Applies a layer norm whose standard deviation is held constant, which makes it affine."""
        deviation = (self.total.var(dim=2, correction=0, keepdim=True) + norm.eps).sqrt()
        centred = self.rows - self.rows.mean(dim=3, keepdim=True)
        rows = centred / deviation[:, :, None] * norm.weight
        rows[:, :, -1] += norm.bias
        return Parts(rows)

    def blocks(self, width: int) -> Parts:
        """Makes each block of `width` dimensions a view: (B, V * D / width, N + 2, width)."""
        return Parts(self.rows.unflatten(3, (-1, width)).movedim(3, 2).flatten(1, 2))


@dataclass(frozen=True)
class Evidence:
    """The contributions that sum to the scores of B pairs; an axis of views may follow B."""

    cells: Tensor  # (B, N, M) contributions of image element n and text element m, of any sign
    whole_sentence: Tensor  # (B, N) contributions of image element n and the text as a whole
    base: Tensor  # (B,) the sum of all other contributions, such as those of constants

    @property
    def score(self) -> Tensor:
        """The scores (B,): the sums of all contributions."""
        return self.base + self.whole_sentence.sum(dim=-1) + self.cells.sum(dim=(-2, -1))

    def view(self, index: int) -> Evidence:
        """Selects a view from the second axis."""
        return Evidence(self.cells[:, index], self.whole_sentence[:, index], self.base[:, index])

    def scaled(self, weight: float) -> Evidence:
        """Multiplies all contributions by the weight of a query term."""
        return Evidence(weight * self.cells, weight * self.whole_sentence, weight * self.base)


def mean_evidence(evidences: Sequence[Evidence]) -> Evidence:
    """Averages the evidence of an ensemble's methods, as the ensemble averages their scores."""
    columns = zip(*((e.cells, e.whole_sentence, e.base) for e in evidences), strict=True)
    return Evidence(*(torch.stack(column).mean(dim=0) for column in columns))


def split_products(
    images: Parts, texts: Parts, weights: Tensor, offset: Tensor | float = 0.0
) -> Evidence:
    """Splits R scores of each of B pairs over the elements of both sets.

    Score r is `offset` plus a weighted sum of the inner products of views. `weights` (B, R, V, W)
    holds the weight of <image view v, text view w> in score r. `images` has V views of each of B
    images; `texts` has W views of each of B texts, or of one text for all images. R is the second
    axis of the returned tensors.
    """
    text_sums = torch.einsum("brvw,bwmd->brvmd", weights, texts.rows)  # (B, R, V, M + 2, D)
    table = torch.einsum("bvnd,brvmd->brnm", images.rows, text_sums)  # (B, R, N + 2, M + 2)
    remainder = table[..., :-2, -1].sum(dim=2) + table[..., -2:, :].sum(dim=(2, 3))  # (B, R)
    return Evidence(table[..., :-2, :-2], table[..., :-2, -2], remainder + offset)
