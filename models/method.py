"""The one contract: a method is a visual head, a text head, a score and an attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from models.layers import cosine_scores
from models.panel import Knob, Panel, Settings
from models.views import Views


class Method(nn.Module, ABC):
    """A paper's way from two sets of features to a score.

    A subclass builds its heads from three sizes and its own few named arguments, all with the
    paper's value as default; nothing outside the subclass may branch on the method's name.

    Attributes:
        title: the name people know the method by.
        paper: authors, venue and year.
        attention_is: what the maps of `attention` are, in words, for captions under heatmaps.
        attention_sums_to_one: a map holds shares of the set, none negative, that sum to 1; where
            False, it holds cosines in [-1, 1].
        summary_token: the method reads the set's first element as the encoder's summary of all
            ([CLS]), so that this element's place matters.
        row_search: the score is the largest inner product between a row of the image's views and a
            row of the text's views, so that a nearest-neighbour index over rows finds candidates
            exactly. Methods that score otherwise say False and are scored against everything; an
            instance may say other than its class when its arguments change the score.
        views_add_up: the score adds what view v of the image finds in view v of the text, for every
            v, so that no view can be left out; otherwise views compete. An instance may say other
            than its class.
        block_dim: where the score matches blocks, stretches of a view, the dimensions of one; None
            where whole views are compared.
        view_scores_are: what `view_scores` are, in words, for people. An instance may say other
            than its class.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    attention_is: ClassVar[str]
    attention_sums_to_one: ClassVar[bool] = True
    summary_token: ClassVar[bool] = False
    row_search: bool = True
    views_add_up: bool = False
    block_dim: int | None = None
    view_scores_are: str = "each view's best cosine with the text; the highest is the score"

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

    def contrastive_temperature(self) -> Tensor | None:
        """A contrastive loss's temperature where the method learns one, a positive scalar."""
        return None

    def view_scores(self, images: Views, texts: Views) -> Tensor:
        """Scores of every image view: the best of the text's views for each.

        Returns:
            (V, B_img, B_txt) cosines.
        """
        return cosine_scores(images.embeddings, texts.embeddings).amax(dim=1)  # (V, B_img, B_txt)

    def score(self, images: Views, texts: Views) -> Tensor:
        """Matching scores, higher is better: the maximum over the image's views.

        Returns:
            (B_img, B_txt).
        """
        return self.view_scores(images, texts).amax(dim=0)  # (B_img, B_txt)

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
        """What a reader may change about the panels of `inside`; none by default."""
        return ()

    def inside(
        self,
        images: Views,  # noqa: ARG002
        texts: Views | None = None,  # noqa: ARG002
        settings: Settings | None = None,  # noqa: ARG002
    ) -> list[Panel]:
        """What there is to see beside views, maps and scores; nothing by default.

        Args:
            images: the views (1, V, D) of one image, with attention (1, V, N).
            texts: the views (1, W, D) of one text, with attention (1, W, M), or None.
            settings: values of `knobs` by name; those not named keep their defaults.

        Raises:
            ValueError: a setting makes no sense.
        """
        return []
