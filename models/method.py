"""The one contract: a method is a visual head, a text head, a score, an attention and evidence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from polyview.models.evidence import Evidence, Parts, split_products
from polyview.models.layers import cosine_scores
from polyview.models.views import NamedArray, Views


class Knob(NamedTuple):
    """A setting of `Method.inside`, which changes what is shown but not the method.

    Attributes:
        name: its key in the settings.
        default: what the method itself does.
        options: the choices; none where it is a whole number.
        low: the lowest number.
        high: the highest number.
    """

    name: str
    default: str | int
    options: tuple[str, ...] = ()
    low: int = 0
    high: int = 0


class Method(nn.Module, ABC):
    """A paper's way from two sets of features to a score.

    A subclass builds its heads from image_dim and text_dim, the widths d of both encoders, and its
    own few named arguments, all with the paper's value as default; nothing outside the subclass may
    branch on the method's name. Docstrings of overridden methods are those here.

    Attributes:
        title: the name people know the method by.
        paper: authors, venue and year.
        attention_is: what the maps of `attention` are, in words, for captions under heatmaps. An
            instance may say other than its class.
        attention_sums_to_one: a map holds shares of the set, none negative, that sum to 1; where
            False, it holds cosines in [-1, 1].
        summary_token: the method reads the set's first element as the encoder's summary of all
            ([CLS]), so that this element's place matters.
        own_summaries: the sides, "image" or "text", to whose sets the method itself adds such an
            element, so that their encoder needs none.
        row_search: the score rises with the largest inner product between a row of the image's
            views and a row of the text's, see `row_dim`, so that a nearest-neighbour search over
            rows finds candidates exactly. Methods that score otherwise say False and are scored
            against everything, or, in very large galleries, against what such a search suggests; an
            instance may say other than its class when its arguments change the score.
        views_add_up: the score adds what view v of the image finds in view v of the text, for every
            v, so that no view can be left out; otherwise views compete. An instance may say other
            than its class.
        views_are_elements: view v is the set's v-th real element, and 0 beyond the last, so that
            views stand in the order of the set.
        features_add_up: an image's views follow from the sum of its features, so that a gallery
            keeps nothing else of them. An instance may say other than its class.
        order_matters: an image's features are a sequence, such as the frames of a clip in order of
            time, and another order makes other views. An instance may say other than its class.
        view_scores_are: what `view_scores` are, in words, for people. An instance may say other
            than its class.
        config_type: the dataclass of named arguments that the constructor takes as its third
            parameter; None where it takes them one by one.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    attention_is: str
    attention_sums_to_one: ClassVar[bool] = True
    summary_token: ClassVar[bool] = False
    own_summaries: tuple[str, ...] = ()
    row_search: bool = True
    views_add_up: bool = False
    views_are_elements: ClassVar[bool] = False
    features_add_up: bool = False
    order_matters: bool = False
    view_scores_are: str = "each view's best cosine with the text; the highest is the score"
    config_type: ClassVar[type[Any] | None] = None

    @abstractmethod
    def encode_image(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """Turns image features into views.

        Args:
            features: (B, N, d) an image encoder's output.
            mask: (B, N) bool, True on real elements; at least one in each row.
            attention: also compute the (B, V, N) maps.

        Returns:
            Views with embeddings (B, V, D).
        """

    @abstractmethod
    def encode_text(self, features: Tensor, mask: Tensor, *, attention: bool = False) -> Views:
        """Turns text features (B, M, d), mask (B, M), into views; see `encode_image`."""

    @abstractmethod
    def image_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """What each element of a set brings to the views that `encode_image` makes of it.

        Args:
            features: (B, N, d).
            mask: (B, N) bool.

        Returns:
            Parts that add up to the embeddings (B, V, D), of a method in eval mode.

        Raises:
            ValueError: views made as the method's arguments say cannot be split.
        """

    @abstractmethod
    def text_parts(self, features: Tensor, mask: Tensor) -> Parts:
        """What each word brings to the views that `encode_text` makes; see `image_parts`."""

    def contrastive_temperature(self) -> Tensor | None:
        """A contrastive loss's temperature where the method learns one, a positive scalar."""
        return None

    def clamp_temperature(self) -> None:
        """Keeps a learned temperature in its range; training calls it after each step."""

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """Scores of every image view: the best of the text's views, or its counterpart.

        Returns:
            (V, B_img, B_txt) cosines.
        """
        if self.views_add_up:
            return torch.einsum("ivd,tvd->vit", images.embeddings, texts.embeddings)
        return cosine_scores(images.embeddings, texts.embeddings).amax(dim=1)  # (V, B_img, B_txt)

    def score(self, images: Views, texts: Views) -> Tensor:
        """Matching scores, higher is better: the maximum or the sum over the image's views.

        Returns:
            (B_img, B_txt).
        """
        scores = self.view_scores(images, texts)  # (V, B_img, B_txt)
        return scores.sum(dim=0) if self.views_add_up else scores.amax(dim=0)

    def pair_weights(self, pairs: Tensor) -> Tensor:
        """How often each product of two views counts in the score of the image's view.

        Args:
            pairs: (B, V, W) inner products of the views of B pairs.

        Returns:
            (B, V, W); of each image view the best product, or that with its counterpart, once.
        """
        if self.views_add_up:
            return torch.eye(pairs.shape[1]).to(pairs).expand_as(pairs)  # (B, V, V)
        return nn.functional.one_hot(pairs.argmax(dim=2), pairs.shape[2]).to(pairs.dtype)

    def evidence(self, images: Parts, texts: Parts, *, per_view: bool = False) -> Evidence:
        """Splits the scores of B pairs over the elements of both sets; see `models/evidence.py`.

        Args:
            images: parts of B images.
            texts: parts of B texts, or of one for all images. Another image's parts will do.
            per_view: split each of the V `view_scores` in place of the score.

        Returns:
            Evidence whose parts add up to the scores; with `per_view`, (B, V, ...).
        """
        pairs = images.total @ texts.total.mT  # (B, V, W)
        weights = self.pair_weights(pairs)
        if per_view:
            return split_products(images, texts, torch.diag_embed(weights.mT).movedim(1, 3))
        if not self.views_add_up:
            won = (weights * pairs).sum(dim=2).argmax(dim=1)  # (B,)
            weights = weights * nn.functional.one_hot(won, pairs.shape[1])[..., None]
        return split_products(images, texts, weights[:, None]).view(0)

    def row_dim(self, views: int, dim: int) -> int:
        """How wide rows are, by which candidates are searched: a view, a part of one, or all.

        Args:
            views: V, of an image or a text.
            dim: D.

        Returns:
            A divisor of V * D: views (V, D) are read as rows (V * D / row_dim, row_dim).
        """
        return views * dim if self.views_add_up else dim

    def weighted(self, images: Views, weights: Tensor) -> Views:
        """Images as they would be if some of their views counted less: the view lens.

        Embeddings are multiplied by their view's weight. A view of weight 0 is left out, so that it
        cannot be the best; where `views_add_up` it stays in its place and adds nothing. Scored with
        `score`, a view's cosines are thus multiplied by its weight, which brings a negative one
        closer to 0.

        Args:
            images: (B, V, D).
            weights: (V,) in 0..1, at least one above 0; all 1 changes nothing.

        Returns:
            Views of the V' views that stay, in their order: those of a weight above 0, or all.

        Raises:
            ValueError: weights of another number or range, or all views are off.
        """
        count = images.embeddings.shape[1]
        if tuple(weights.shape) != (count,):
            raise ValueError(f"{count} views need {count} weights, not {tuple(weights.shape)}")
        if not bool(((weights >= 0) & (weights <= 1)).all()):  # NaN is neither
            raise ValueError(f"a view's weight must be 0 to 1, not one of {weights.tolist()}")
        if not bool(weights.any()):
            raise ValueError("every view is switched off; leave at least one on")
        weights = weights.to(images.embeddings)
        stays = weights > 0
        if self.views_add_up:
            stays = weights.new_ones(count).bool()
        scaled = weights[:, None] * images.embeddings  # (B, V, D)
        maps = images.attention
        return Views(scaled[:, stays], None if maps is None else maps[:, stays])  # (B, V', D)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """What a reader may change about the arrays of `inside`; none by default."""
        return ()

    def inside(
        self,
        images: Views,  # noqa: ARG002
        texts: Views | None = None,  # noqa: ARG002
        /,
        **_: str | int,
    ) -> list[NamedArray]:
        """Shows what the method computes beside views, maps and scores; nothing by default.

        Args:
            images: the views (1, V, D) of one image, with attention (1, V, N).
            texts: the views (1, W, D) of one text, with attention (1, W, M), or None.
            _: values of `knobs` by name; those not named keep their defaults.

        Raises:
            ValueError: a setting makes no sense.
        """
        return []
