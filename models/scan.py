"""SCAN: every word attends to the cells, or every cell to the words; slow, and the finest there is.

Kuang-Huei Lee, Xi Chen, Gang Hua, Houdong Hu, Xiaodong He: Stacked Cross Attention for Image-Text
Matching, ECCV 2018.

It adds to VSE++ that nothing is pooled before two sets meet: a set's elements are its views, and
the score of a pair attends from one side to the other, so that it has to be computed for every
pair anew. "t2i" asks for each word what the cells hold of it, "i2t" for each cell what the words
say of it; what was found is averaged (the paper's AVG; its LSE is not offered, since it does not
add up over words). Sets have a fixed number of views: elements beyond it are left out, missing ones
are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.evidence import Evidence, Parts, split_products
from models.layers import EPS, FeatureProjection, l2_normalize, require_choice, text_projection
from models.method import Method
from models.views import Views

DIRECTIONS = ("t2i", "i2t")
_MOST = 1 << 24  # products of elements at a time


class SCAN(Method):
    """SCAN; V = the number of cells on the image side, of words on the text side.

    Args:
        embed_dim: D of the joint space (paper: 1,024).
        direction: "t2i" or "i2t", see above.
        sharpness: lambda_1, of the attention (the release's 9 for t2i; 4 for i2t).
        cells: how many elements of an image count (36 regions in the paper).
        words: how many words of a text count.
        mlp_dim: hidden width of the residual MLP of `FeatureProjection`; 0 for none.
        map_text: see `VSEInfinity`.
    """

    title = "SCAN"
    paper = "Lee et al., ECCV 2018"
    attention_is = "the cell that a view is"
    row_search = False
    views_are_elements = True
    view_scores_are = "what each cell adds to the score"

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        embed_dim: int = 1024,
        direction: str = "t2i",
        sharpness: float = 9.0,
        cells: int = 49,
        words: int = 32,
        mlp_dim: int = 0,
        map_text: bool = False,
    ) -> None:
        super().__init__()
        require_choice("direction", direction, DIRECTIONS)
        if cells < 1 or words < 1 or sharpness <= 0:
            raise ValueError(
                f"cells {cells} and words {words} must be 1 or more, and sharpness {sharpness} "
                "above 0"
            )
        self.direction, self.sharpness = direction, sharpness
        self.cells, self.words = cells, words
        self.project_image = FeatureProjection(image_dim, embed_dim, mlp_dim)
        self.project_text: nn.Module = text_projection(text_dim, embed_dim, always=map_text)

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        return _elements(self.project_image(features, mask), mask, self.cells, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        return _elements(self.project_text(features), mask, self.words, attention)

    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """See `Method.image_parts`: a view is one element."""
        return _alone(self.encode_image(features, mask, attention=True))

    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        return _alone(self.encode_text(features, mask, attention=True))

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """What each cell adds to the score: (V, B_img, B_txt)."""
        return torch.cat([self._added(images, part) for part in self._parts(images, texts)], dim=2)

    def score(self, images: Views, texts: Views) -> Tensor:
        """The mean over words, or cells, of their cosine with what they attend to; section 3."""
        parts = self._parts(images, texts)
        return torch.cat([self._added(images, part).sum(dim=0) for part in parts], dim=1)

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        """See `Method.evidence`; with the attention of this pair held, cosines add up."""
        seen, read = images.total, texts.total  # (B, V, D), (B or 1, W, D)
        read = read.expand(len(seen), -1, -1)
        weights = self._weights(seen @ read.mT, seen, read)  # (B, V, W)
        if per_view:
            return split_products(images, texts, torch.diag_embed(weights.mT).movedim(1, 3))
        return split_products(images, texts, weights[:, None]).view(0)

    def _parts(self, images: Views, texts: Views) -> list[Views]:
        """Texts, so few at a time that their products with all images fit into memory."""
        each = images.embeddings.shape[0] * images.embeddings.shape[1] * self.words
        count = max(1, _MOST // max(1, each))
        return [texts[start : start + count] for start in range(0, len(texts), count)]

    def _added(self, images: Views, texts: Views) -> Tensor:
        """(V, B_img, B_txt): what each cell adds to the scores of all pairs."""
        seen, read = images.embeddings, texts.embeddings
        longest = int((read != 0).any(dim=2).sum(dim=1).max().clamp_min(1))
        read = read[:, :longest]  # (B_txt, W, D), without words that no text has
        cosines = torch.einsum("ivd,twd->itvw", seen, read)
        weights = self._weights(cosines, seen[:, None], read[None])
        return (weights * cosines).sum(dim=3).permute(2, 0, 1)

    def _weights(self, cosines: Tensor, seen: Tensor, read: Tensor) -> Tensor:
        """How often each cosine counts: attention, over the length of what it attends to.

        Args:
            cosines: (..., V, W).
            seen: (..., V, D) views of images, 0 where there is none; broadcasts with `cosines`.
            read: (..., W, D) likewise of texts.

        Returns:
            (..., V, W).
        """
        if self.direction == "i2t":
            return self._attend(cosines.mT, read, seen).mT
        return self._attend(cosines, seen, read)

    def _attend(self, cosines: Tensor, source: Tensor, query: Tensor) -> Tensor:
        """Each of Q queries attends to S elements, Eqs. (1)-(4) of the stacked attention.

        Args:
            cosines: (..., S, Q).
            source: (..., S, D), 0 where there is none.
            query: (..., Q, D) likewise.
        """
        there = (source != 0).any(dim=-1)[..., None]  # (..., S, 1)
        asks = (query != 0).any(dim=-1)[..., None, :]  # (..., 1, Q)
        positive = cosines.clamp_min(0.0)
        share = positive / (positive.square().sum(dim=-1, keepdim=True) + EPS).sqrt()
        attention = (self.sharpness * share).masked_fill(~there, -torch.inf).softmax(dim=-2)
        gram = source @ source.mT  # (..., S, S)
        length = (attention * (gram @ attention)).sum(dim=-2, keepdim=True).clamp_min(0.0).sqrt()
        counted = asks.sum(dim=-1, keepdim=True).clamp_min(1)  # (..., 1, 1)
        return attention * asks / ((length + EPS) * counted)


def _elements(features: Tensor, mask: Tensor, count: int, attention: bool) -> Views:
    """The first `count` real elements of each set as views of unit length; 0 where it has fewer."""
    order = (~mask).to(torch.int8).argsort(dim=1, stable=True)[:, :count]  # (B, V), real ones first
    unit = l2_normalize(features).masked_fill(~mask[..., None], 0.0)
    views = unit.gather(1, order[..., None].expand(-1, -1, unit.shape[2]))  # (B, V, D)
    lacking = count - order.shape[1]
    maps = None
    if attention:
        alone = F.one_hot(order, mask.shape[1]) * mask.gather(1, order)[..., None]  # (B, V, N)
        maps = F.pad(alone.to(unit.dtype), (0, 0, 0, lacking))
    return Views(F.pad(views, (0, 0, 0, lacking)), maps)


def _alone(views: Views) -> Parts:
    """Views that are one element each, as parts."""
    assert views.attention is not None
    return Parts.of(views.attention[..., None] * views.embeddings[:, :, None])
