"""What every encoder promises: images or token ids in, a set of features out."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn


class ImageEncoder(nn.Module, ABC):
    """Pixels to a set of features with a place in the image each.

    Attributes:
        dim: width d of the features.
        summary_token: whether the set's first element sums up the image, as a transformer's [CLS]
            does; methods that read it (`Method.summary_token`) need an encoder with one. Its place
            is the whole image; the others are the cells of `grid`, row-major.
    """

    dim: int
    summary_token: ClassVar[bool] = False

    @abstractmethod
    def grid(self, size: int) -> tuple[int, int]:
        """Rows and columns of the feature map of a size x size image."""

    @abstractmethod
    def forward(self, pixels: Tensor) -> Tensor:
        """Encodes images.

        Args:
            pixels: (B, 3, S, S).

        Returns:
            (B, N, d) features; N is rows x columns of `grid(S)`, and one more with a summary.
        """


class TextEncoder(nn.Module, ABC):
    """Token ids to one feature a token.

    Attributes:
        dim: width d of the features.
        summary_token: whether the first element sums up the text, see `ImageEncoder`.
        max_length: how many tokens it can read, special ones included; None for any number.
    """

    dim: int
    summary_token: ClassVar[bool] = False
    max_length: int | None = None

    @abstractmethod
    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Encodes texts.

        Args:
            ids: (B, L) int64, 0 beyond each text's length.
            lengths: (B,) int64 in 1..L.

        Returns:
            (B, L, d); padded positions hold 0.
        """
