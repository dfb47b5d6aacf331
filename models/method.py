"""The one contract: a method is a visual head, a text head, a score and an attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from models.layers import cosine_scores
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
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    attention_is: ClassVar[str]
    attention_sums_to_one: ClassVar[bool] = True
    summary_token: ClassVar[bool] = False
    row_search: bool = True

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
