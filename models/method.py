"""The interface of a method: image head, text head, score, attention and evidence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from polyview.models.evidence import Evidence, Parts, split_products
from polyview.models.views import NamedArray, Views


class Knob(NamedTuple):
    """A display setting of `Method.inside`; it does not change the method's scores."""

    name: str  # keyword of `inside`
    default: str | int  # the value with which the method scores
    options: tuple[str, ...] = ()  # the valid strings; empty if the value is an integer
    low: int = 0  # the smallest valid integer
    high: int = 0  # the largest valid integer


class Method(nn.Module, ABC):
    """A retrieval method: encodes two sets of features as views and scores them, as in a paper.

    A subclass builds its heads from image_dim and text_dim, the widths d of both encoders, and from
    named arguments, which default to the paper's values. Code outside the subclass must not branch
    on the method's name. Overriding methods without a docstring behave as documented here. An
    instance may override the attributes that are not a `ClassVar`.

    Attributes:
        title: the display name of the method.
        paper: authors, venue and year.
        attention_is: the meaning of the `attention` maps, for captions under heatmaps.
        attention_sums_to_one: whether a map holds non-negative shares that sum to 1; otherwise it
            holds cosines in [-1, 1].
        summary_token: whether the first element of a set must be the encoder's summary ([CLS]).
        summary_sides: the sides, "image" or "text", to whose sets the method adds a summary, so
            that the side's encoder needs none.
        row_search: whether the score increases with the largest inner product between a row of the
            image's views and a row of the text's views (see `row_dim`). A nearest-neighbour search
            over rows then finds the best images exactly. Other methods score every image or, in
            very large galleries, only the candidates of a nearest-neighbour search.
        views_add_up: whether the score is a sum over v of one term for image view v and text view
            v; otherwise views compete.
        views_are_elements: whether view v is the v-th real element of the set (0 beyond the last).
        features_add_up: whether the views depend only on the sum of the features, so that a gallery
            stores only the sum.
        order_matters: whether the order of an image's features, such as frames, changes its views.
        view_scores_are: the meaning of `view_scores`, shown to users.
        config_type: a dataclass of the named arguments, the constructor's third parameter; None if
            the constructor takes them as keywords.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    attention_is: str
    attention_sums_to_one: ClassVar[bool] = True
    summary_token: ClassVar[bool] = False
    summary_sides: tuple[str, ...] = ()
    row_search: bool = True
    views_add_up: bool = False
    views_are_elements: ClassVar[bool] = False
    features_add_up: bool = False
    order_matters: bool = False
    view_scores_are: str = "each view's best cosine with the text; the highest is the score"
    config_type: ClassVar[type[Any] | None] = None

    @abstractmethod
    def encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        """Turns features (B, N, d) into views (B, V, D), for `encode_image` and `encode_text`.

        `side` is "image" or "text". The mask (B, N) bool is True on real elements, at least one in
        each row. `attention` requests attention (B, V, N), which some methods lack.
        """

    @abstractmethod
    def split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        """Splits the embeddings (B, V, D) of `encode` into contributions of the set's elements.

        `side`, features and mask are those of `encode`. The method must be in eval mode.
        """

    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """Turns image features (B, N, d), mask (B, N), into views; see `encode`."""
        return self._encode("image", features, mask, attention)

    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """Turns text features (B, M, d), mask (B, M), into views; see `encode`."""
        return self._encode("text", features, mask, attention)

    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """Splits the views of `encode_image` into contributions of elements; see `split`."""
        return self._split("image", features, mask)

    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """Splits the views of `encode_text` into contributions of words; see `split`."""
        return self._split("text", features, mask)

    def _encode(self, side: str, features: Tensor, mask: Tensor, attention: bool) -> Views:
        """Applies the side's transformer and `encode`; drops attention to a prepended summary."""
        features, mask, has_summary = self._transform(side, features, mask)
        views = self.encode(side, features, mask, attention)
        if views.attention is None or not has_summary:
            return views
        return Views(views.embeddings, views.attention[..., 1:], views.extras)

    def _split(self, side: str, features: Tensor, mask: Tensor) -> Parts:
        """Applies the side's transformer, if any, and `split`."""
        features, mask, has_summary = self._transform(side, features, mask)
        rows = self.split(side, features, mask).rows  # (B, V, N + 2, D); N + 3 with a summary
        if not has_summary:
            return Parts(rows)
        # the summary is not an element of the set: add its contribution to that of the whole set
        whole = rows[:, :, -2:-1] + rows[:, :, :1]
        return Parts(torch.cat([rows[:, :, 1:-2], whole, rows[:, :, -1:]], dim=2))

    def _transform(self, side: str, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Applies the side's transformer, if any; also returns whether it prepends a summary."""
        context = getattr(self, f"{side}_context", None)  # see `models/contextual.py`
        if context is None:
            return features, mask, False
        return *context(features, mask), context.summary is not None

    def contrastive_temperature(self) -> Tensor | None:
        """Returns the learned temperature of the contrastive loss, a scalar above 0, or None."""
        return None

    def clamp_temperature(self) -> None:
        """Clamps a learned temperature to its range; training calls it after each step."""

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """Returns the score of each image view with each text: (V, B_img, B_txt)."""
        if self.views_add_up:
            return torch.einsum("ivd,tvd->vit", images.embeddings, texts.embeddings)
        products = torch.einsum("ivd,twd->vwit", images.embeddings, texts.embeddings)
        return products.amax(dim=1)  # (V, B_img, B_txt)

    def score(self, images: Views, texts: Views) -> Tensor:
        """Returns scores (B_img, B_txt): the sum or the maximum of the `view_scores`."""
        scores = self.view_scores(images, texts)  # (V, B_img, B_txt)
        return scores.sum(dim=0) if self.views_add_up else scores.amax(dim=0)

    def pair_weights(self, products: Tensor) -> Tensor:
        """Returns weights (B, V, W) that select the text view for the score of each image view.

        `products` (B, V, W) are the inner products of the views of B pairs. The weights are one-hot
        over W: at the best text view or, if views add up, at the view of the same index (W = V).
        """
        if self.views_add_up:
            return torch.eye(products.shape[1]).to(products).expand_as(products)  # (B, V, V)
        return nn.functional.one_hot(products.argmax(dim=2), products.shape[2]).to(products.dtype)

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        """Splits the scores of B pairs over the elements of both sets; see `models/evidence.py`.

        `texts` holds the parts of B queries, or of one query for all images; a query may be an
        image. The evidence adds up to the scores. With `per_view` it adds up to the `view_scores`
        and has the shape (B, V, ...). Raises ValueError if there are too many pairs.
        """
        products = images.total @ texts.total.mT  # (B, V, W)
        weights = self.pair_weights(products)
        if per_view:
            view_weights = torch.diag_embed(weights.mT).movedim(1, 3)  # (B, V, V, W)
            return split_products(images, texts, view_weights)
        if not self.views_add_up:
            best_view = (weights * products).sum(dim=2).argmax(dim=1)  # (B,)
            weights = weights * nn.functional.one_hot(best_view, products.shape[1])[..., None]
        return split_products(images, texts, weights[:, None]).view(0)

    def row_dim(self, views: int, dim: int) -> int:
        """Returns the width of a row in nearest-neighbour search, for `views` = V and `dim` = D.

        The search reads views (V, D) as rows (V * D / row_dim, row_dim).
        """
        return views * dim if self.views_add_up else dim

    def apply_view_weights(self, images: Views, weights: Tensor) -> Views:
        """Multiplies the views of images by weights (the view lens).

        In `score`, each cosine of a view is multiplied by the view's weight, so a negative cosine
        moves closer to 0. A view of weight 0 is removed, so that it cannot be the best. If views
        add up, it stays and adds 0 to the score.

        `images` are views (B, V, D), `weights` (V,) in 0..1. Returns the V' remaining views
        (B, V', D), in order. Raises ValueError if the number or range of the weights is wrong, or
        all are 0.
        """
        count = images.embeddings.shape[1]
        if (shape := tuple(weights.shape)) != (count,):
            raise ValueError(f"{count} views need {count} weights, not weights of shape {shape}")
        if not bool(((weights >= 0) & (weights <= 1)).all()):  # also rejects NaN
            raise ValueError(f"view weights must be between 0 and 1, but are {weights.tolist()}")
        if not bool(weights.any()):
            raise ValueError("all view weights are 0; at least one must be above 0")
        weights = weights.to(images.embeddings)
        mask = (weights > 0) | self.views_add_up  # (V,)
        embeddings = weights[:, None] * images.embeddings  # (B, V, D)
        maps = images.attention
        return Views(embeddings[:, mask], None if maps is None else maps[:, mask])  # (B, V', D)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The display settings that `inside` accepts; none by default."""
        return ()

    def inside(
        self,
        images: Views,  # noqa: ARG002
        texts: Views | None = None,  # noqa: ARG002
        /,
        **_: str | int,
    ) -> list[NamedArray]:
        """Returns intermediate arrays of the method for display; none by default.

        `images` are the views (1, V, D) of an image, with attention (1, V, N); `texts` are the
        views (1, W, D) of a text, with attention (1, W, M), or None. Keyword arguments are values
        of `knobs` by name. Raises ValueError for a value that is not valid.
        """
        return []
