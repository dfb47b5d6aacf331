"""The interface of encoders: images or token ids to a set of features."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn


class ImageEncoder(nn.Module, ABC):
    """Encodes pixels as a set of features, each with a position in the image.

    Attributes:
        dim: width d of the features.
        summary_token: whether the first element summarises the image, as a transformer's [CLS]
            does, for methods that need it (`Method.summary_token`). The others are the cells of
            `grid`, row-major.
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
            (B, N, d) features; N is rows x columns of `grid(S)`, plus one with a summary.
        """


class TextEncoder(nn.Module, ABC):
    """Encodes token ids as one feature for each token.

    Attributes:
        dim: width d of the features.
        summary_token: whether the first element summarises the text, see `ImageEncoder`.
        max_length: the largest number of tokens, including special ones; None for no limit.
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
