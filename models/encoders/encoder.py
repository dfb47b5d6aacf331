"""The interface of encoders, which turn images or token ids into sets of features."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn


class ImageEncoder(nn.Module, ABC):
    """Encodes pixels as a set of features, each with a position in the image."""

    dim: int  # width d of the features
    # whether the first element summarises the image, as a transformer's [CLS] does (see
    # `Method.summary_token`); the other elements are the cells of `grid`, row-major
    summary_token: ClassVar[bool] = False

    @abstractmethod
    def grid(self, size: int) -> tuple[int, int]:
        """Returns rows and columns of the feature map of a size x size image."""

    @abstractmethod
    def forward(self, pixels: Tensor) -> Tensor:
        """Encodes pixels (B, 3, S, S) into features (B, N, d).

        N is the number of cells of `grid(S)`, plus 1 if there is a summary.
        """


class TextEncoder(nn.Module, ABC):
    """Encodes token ids as one feature for each token."""

    dim: int  # width d of the features
    summary_token: ClassVar[bool] = False  # whether the first element summarises the text
    max_length: int | None = None  # maximum number of tokens, with special tokens; None: no limit

    @abstractmethod
    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Encodes token ids (B, L) int64, padded with 0, into features (B, L, d), 0 on padding.

        `lengths` (B,) int64 counts the tokens of each text, 1..L.
        """
