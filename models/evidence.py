"""A score, split exactly over the elements of both sets: which cell and which word bring how much.

Every method pools: a view is a sum over elements of what each of them brings. With the ranks, the
attention and the lengths *of this very pair* held as they are, the inner product of two views is
the sum of the inner products of their parts, without any approximation:

    <image view, text view> = sum over n, m of <part of cell n, part of word m> + what is in neither

`Parts` is such a view in parts, made by `Method.image_parts` and `Method.text_parts`; `Evidence` is
what the score is made of, by `Method.evidence`. What elements bring is a fact about the score, no
proof that an object is there; and the features of an element may have read its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.layers import EPS


@dataclass(frozen=True)
class Parts:
    """Views as sums of what each element of a set brings.

    Attributes:
        rows: (B, V, N + 2, D) what each of N elements brings (0 on padding); what they bring only
            together, as a recurrent state does; and what nobody brings, such as a bias. They add up
            to the view.
    """

    rows: Tensor

    @classmethod
    def of(
        cls, elements: Tensor, whole: Tensor | float = 0.0, constant: Tensor | float = 0.0
    ) -> Parts:
        """Parts (B, V, N, D) of elements; the rest is (B, V, D) or one number for all."""
        rows = nn.functional.pad(elements, (0, 0, 0, 2))  # (B, V, N + 2, D)
        rows[:, :, -2], rows[:, :, -1] = whole, constant
        return cls(rows)

    @property
    def total(self) -> Tensor:
        """The views (B, V, D)."""
        return self.rows.sum(dim=2)

    def unit(self, width: int | None = None) -> Parts:
        """Divides by lengths, as `l2_normalize` does.

        Args:
            width: each stretch of so many numbers of the views, side by side, has a length of its
                own: D, the default, for views; V * D for all of them joined; less for blocks.
        """
        total = self.total
        stretches = total.flatten(1).unflatten(1, (-1, width or total.shape[2]))
        lengths = stretches.norm(dim=2, keepdim=True) + EPS
        return Parts(self.rows / lengths.expand_as(stretches).reshape_as(total)[:, :, None])

    def layer_norm(self, norm: nn.LayerNorm) -> Parts:
        """As `norm` does; with its deviation held it is linear, but for its bias."""
        spread = (self.total.var(dim=2, correction=0, keepdim=True) + norm.eps).sqrt()  # (B, V, 1)
        rows = (self.rows - self.rows.mean(dim=3, keepdim=True)) / spread[:, :, None] * norm.weight
        rows[:, :, -1] += norm.bias
        return Parts(rows)

    def blocks(self, width: int) -> Parts:
        """Each block of `width` dimensions as a view: (B, V * D / width, N + 2, width)."""
        return Parts(self.rows.unflatten(3, (-1, width)).movedim(3, 2).flatten(1, 2))


@dataclass(frozen=True)
class Evidence:
    """What scores of pairs are made of; see `score`. Their views may stand on an axis behind B.

    Attributes:
        cells: (B, N, M) what element n of the image finds in element m of the text; may be
            negative.
        whole_sentence: (B, N) what an element finds in what cannot be split over words, such as the
            last state of a recurrent network.
        base: (B,) what no element of the image brings, or what it would bring to any text.
    """

    cells: Tensor
    whole_sentence: Tensor
    base: Tensor

    @property
    def score(self) -> Tensor:
        """The scores (B,), as sums."""
        return self.base + self.whole_sentence.sum(dim=-1) + self.cells.sum(dim=(-2, -1))

    def view(self, place: int) -> Evidence:
        """Of the view at a place, where views stand on the second axis."""
        return Evidence(self.cells[:, place], self.whole_sentence[:, place], self.base[:, place])

    def scaled(self, weight: float) -> Evidence:
        """Of a score multiplied by a weight, as a term of a query is."""
        return Evidence(weight * self.cells, weight * self.whole_sentence, weight * self.base)


def mean_evidence(parts: Sequence[Evidence]) -> Evidence:
    """Of an ensemble, whose score is the mean of its methods'; all read the same elements."""
    return Evidence(
        torch.stack([part.cells for part in parts]).mean(dim=0),
        torch.stack([part.whole_sentence for part in parts]).mean(dim=0),
        torch.stack([part.base for part in parts]).mean(dim=0),
    )


def split_products(
    images: Parts, texts: Parts, weights: Tensor, offset: Tensor | float = 0.0
) -> Evidence:
    """Splits R weighted sums of inner products of views, for each pair.

    Args:
        images: V views of each of B images.
        texts: W views of each of B texts, or of one for all.
        weights: (B, R, V, W) of <image view v, text view w> in sum r.
        offset: what is added to each sum.

    Returns:
        Evidence with R on the second axis.
    """
    mixed = torch.einsum("brvw,bwmd->brvmd", weights, texts.rows)
    table = torch.einsum("bvnd,brvmd->brnm", images.rows, mixed)  # (B, R, N + 2, M + 2)
    rest = table[..., :-2, -1].sum(dim=2) + table[..., -2:, :].sum(dim=(2, 3))  # (B, R)
    return Evidence(table[..., :-2, :-2], table[..., :-2, -2], rest + offset)
