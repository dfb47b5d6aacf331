"""SCAN and late interaction: each element of a set is a view, and there is no pooling.

The score is a weighted sum of the cosines between cells and words; the methods differ in the
weights. The number of views is fixed: excess elements are dropped, and missing views are 0.

Kuang-Huei Lee, Xi Chen, Gang Hua, Houdong Hu, Xiaodong He: Stacked Cross Attention for Image-Text
Matching, ECCV 2018 (SCAN). With "t2i" each word attends to the cells, with "i2t" each cell attends
to the words; the cosines of the queries with their attended vectors are averaged (AVG in the paper;
its LSE is not implemented, because LSE is not a sum over words).

Omar Khattab, Matei Zaharia: ColBERT: Efficient and Effective Passage Search via Contextualized
Late Interaction over BERT, SIGIR 2020, section 3.3: the sum over the query's tokens of the largest
cosine with a token of the document ("MaxSim").

Lewei Yao, Runhui Huang, Lu Hou, Guansong Lu, Minzhe Niu, Hang Xu, Xiaodan Liang, Zhenguo Li, Xin
Jiang, Chunjing Xu: FILIP: Fine-grained Interactive Language-Image Pre-Training, ICLR 2022, section
3.1: MaxSim between words and patches, averaged over words instead of summed, so that long captions
do not score higher. FILIP also scores from patches to words; `LateInteraction` implements only
words to patches, Eq. (4), the direction of text-to-image search. Recipes use vectors of 32
dimensions (ColBERT 128, FILIP 256), because an image stores one vector for each cell.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from polyview.models.evidence import Evidence, Parts, split_products
from polyview.models.layers import (
    EPS,
    FeatureProjection,
    l2_normalize,
    require_choice,
    text_projection,
)
from polyview.models.method import Method
from polyview.models.views import Views

DIRECTIONS = ("t2i", "i2t")
MAX_PRODUCTS = 1 << 24  # maximum number of cosines computed at once


@dataclass(frozen=True)
class ElementConfig:
    """Arguments that the subclasses of `ElementMethod` share.

    Attributes:
        embed_dim: width D of the joint space.
        cells: maximum number of elements of an image; excess elements are dropped.
        words: maximum number of words of a text; excess words are dropped.
        map_text: see `VSEInfinity`.
    """

    embed_dim: int = 1024
    cells: int = 49
    words: int = 32
    map_text: bool = False

    def __post_init__(self) -> None:
        for name in ("embed_dim", "cells", "words"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")


class ElementMethod(Method):
    """Uses each element as a view of unit length. V is `cells` or `words`; absent views are 0."""

    attention_is = "1 at the cell of the view and 0 elsewhere"
    row_search = False
    views_are_elements = True
    view_scores_are = "the contribution of each cell to the score"

    def __init__(self, image_dim: int, text_dim: int, config: ElementConfig) -> None:
        super().__init__()
        self.config = config
        self.project_image = FeatureProjection(image_dim, config.embed_dim)
        self.project_text = text_projection(text_dim, config.embed_dim, always=config.map_text)

    @abstractmethod
    def weights(self, cosines: Tensor, cells: Tensor, words: Tensor) -> Tensor:
        """Returns the weight (..., V, W) of each cosine in the score, 0 for absent views.

        `cosines` is (..., V, W); `cells` (..., V, D) and `words` (..., W, D) are the image views
        and text views, 0 if absent. Leading axes broadcast.
        """

    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        if side == "image":
            return _to_views(self.project_image(features, mask), mask, self.config.cells, attention)
        return _to_views(self.project_text(features), mask, self.config.words, attention)

    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        views = self.encode(side, features, mask, attention=True)
        assert views.attention is not None
        return Parts.of(views.attention[..., None] * views.embeddings[:, :, None])

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """Returns the contribution of each cell to the score: (V, B_img, B_txt)."""
        batches = [terms.sum(dim=3).permute(2, 0, 1) for terms in self._score_terms(images, texts)]
        return torch.cat(batches, dim=2)

    def score(self, images: Views, texts: Views) -> Tensor:
        """Returns the weighted sum of the cosines of each image and text: (B_img, B_txt)."""
        batches = [terms.sum(dim=(2, 3)) for terms in self._score_terms(images, texts)]
        return torch.cat(batches, dim=1)

    def _score_terms(self, images: Views, texts: Views) -> Iterator[Tensor]:
        """Yields weighted cosines (B_img, b, V, W') for each batch of b texts (`_text_batches`)."""
        cells = images.embeddings  # (B_img, V, D)
        for words in _text_batches(images, texts):  # (b, W', D)
            cosines = torch.einsum("ivd,twd->itvw", cells, words)
            yield self.weights(cosines, cells[:, None], words[None]) * cosines

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        """See `Method.evidence`; the weights of the cosines are held constant."""
        cells, words = images.total, texts.total  # (B, V, D), (B or 1, W, D)
        words = words.expand(len(cells), -1, -1)
        weights = self.weights(cells @ words.mT, cells, words)  # (B, V, W)
        if per_view:
            view_weights = torch.diag_embed(weights.mT).movedim(1, 3)  # (B, V, V, W)
            return split_products(images, texts, view_weights)
        return split_products(images, texts, weights[:, None]).view(0)


@dataclass(frozen=True)
class SCANConfig(ElementConfig):
    """Arguments of `SCAN` in addition to `ElementConfig` (paper: embed_dim 1,024, 36 cells).

    Attributes:
        direction: "t2i" or "i2t", see the module docstring.
        sharpness: lambda_1, inverse temperature of the attention (release: 9 for t2i, 4 for i2t).
    """

    direction: str = "t2i"
    sharpness: float = 9.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("direction", self.direction, DIRECTIONS)
        if self.sharpness <= 0:
            raise ValueError(f"sharpness must be above 0, not {self.sharpness}")


class SCAN(ElementMethod):
    """SCAN; for V see `ElementMethod`."""

    title = "SCAN"
    paper = "Lee et al., ECCV 2018"
    config_type = SCANConfig
    config: SCANConfig

    def weights(self, cosines: Tensor, cells: Tensor, words: Tensor) -> Tensor:
        """See `ElementMethod.weights`: attention, divided by the norm of the attended vector."""
        if self.config.direction == "i2t":
            return self._attend(cosines.mT, words, cells).mT
        return self._attend(cosines, cells, words)

    def _attend(self, cosines: Tensor, sources: Tensor, queries: Tensor) -> Tensor:
        """Returns the weights (..., S, Q) of cosines (..., S, Q) in the score, Eqs. (1)-(4).

        Each of the `queries` (..., Q, D) attends to the `sources` (..., S, D). Absent views are 0
        and have the weight 0.
        """
        source_mask = _is_present(sources)[..., None]  # (..., S, 1)
        query_mask = _is_present(queries)[..., None, :]  # (..., 1, Q)
        positive_cosines = cosines.clamp_min(0.0)
        norms = (positive_cosines.square().sum(dim=-1, keepdim=True) + EPS).sqrt()
        logits = self.config.sharpness * (positive_cosines / norms)
        attention = logits.masked_fill(~source_mask, -torch.inf).softmax(dim=-2)
        gram = sources @ sources.mT  # (..., S, S)
        squared_norms = (attention * (gram @ attention)).sum(dim=-2, keepdim=True)
        attended_norms = squared_norms.clamp_min(0.0).sqrt()  # (..., 1, Q), of attended vectors
        count = query_mask.sum(dim=-1, keepdim=True).clamp_min(1)  # (..., 1, 1)
        return attention * query_mask / ((attended_norms + EPS) * count)


@dataclass(frozen=True)
class LateConfig(ElementConfig):
    """Arguments of `LateInteraction`; see `ElementConfig` (ColBERT: embed_dim 128, 32 words)."""

    embed_dim: int = 128


class LateInteraction(ElementMethod):
    """Late interaction; for V see `ElementMethod`."""

    title = "Late interaction"
    paper = "Khattab and Zaharia, SIGIR 2020; Yao et al., ICLR 2022"
    config_type = LateConfig

    def score(self, images: Views, texts: Views) -> Tensor:
        """Returns scores (B_img, B_txt): mean of the words' best cosines, or 0 without cells."""
        scores, cell_mask = [], _is_present(images.embeddings)  # (B_img, V)
        has_cells = cell_mask.any(dim=1, keepdim=True)  # (B_img, 1)
        for words in _text_batches(images, texts):  # (b, W', D)
            cosines = images.embeddings.flatten(0, 1) @ words.flatten(0, 1).mT
            cosines = cosines.unflatten(0, cell_mask.shape)  # (B_img, V, b * W')
            if not cell_mask.all():
                cosines = cosines.masked_fill(~cell_mask[..., None], -torch.inf)
            best_cosines = cosines.amax(dim=1).masked_fill(~has_cells, 0.0)  # (B_img, b * W')
            word_mask = _is_present(words).to(cosines.dtype)  # (b, W')
            sums = (best_cosines.unflatten(1, word_mask.shape) * word_mask).sum(dim=2)  # (B_img, b)
            scores.append(sums / word_mask.sum(dim=1).clamp_min(1.0))
        return torch.cat(scores, dim=1)

    def weights(self, cosines: Tensor, cells: Tensor, words: Tensor) -> Tensor:
        """See `ElementMethod.weights`: 1 / (number of words) at each word's best cell, else 0."""
        cosines = cosines.masked_fill(~_is_present(cells)[..., None], -torch.inf)
        best_cells = cosines.argmax(dim=-2, keepdim=True)  # (..., 1, W)
        word_mask = _is_present(words)[..., None, :].to(cosines.dtype)  # (..., 1, W)
        shares = word_mask / word_mask.sum(dim=-1, keepdim=True).clamp_min(1.0)
        return torch.zeros_like(cosines).scatter(-2, best_cells, shares.expand_as(best_cells))


def _is_present(views: Tensor) -> Tensor:
    """Returns a mask (..., V) of views (..., V, D), False for absent views, which are 0."""
    return (views != 0).any(dim=-1)


def _text_batches(images: Views, texts: Views) -> Iterator[Tensor]:
    """Yields the words (b, W', D) of b texts at a time; W' is the length of the longest of them.

    A batch has at most `MAX_PRODUCTS` cosines with the images, unless b is 1.
    """
    cells = images.embeddings  # (B_img, V, D)
    products_per_text = max(1, cells.shape[0] * cells.shape[1] * texts.embeddings.shape[1])
    for words in texts.embeddings.split(max(1, MAX_PRODUCTS // products_per_text)):
        yield words[:, : int(_is_present(words).sum(dim=1).max().clamp_min(1))]


def _to_views(features: Tensor, mask: Tensor, count: int, attention: bool) -> Views:
    """Returns the first V = `count` real elements of each set as unit views, padded with 0."""
    order = (~mask).to(torch.int8).argsort(dim=1, stable=True)[:, :count]  # (B, V), real first
    unit = l2_normalize(features).masked_fill(~mask[..., None], 0.0)
    views = unit.gather(1, order[..., None].expand(-1, -1, unit.shape[2]))  # (B, V, D)
    padding = count - order.shape[1]
    maps = None
    if attention:
        one_hot = F.one_hot(order, mask.shape[1]) * mask.gather(1, order)[..., None]  # (B, V, N)
        maps = F.pad(one_hot.to(unit.dtype), (0, 0, 0, padding))
    return Views(F.pad(views, (0, 0, 0, padding)), maps)
