"""Tells images that resemble a pack's training images from those that do not."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from export.pack.validation import STRICT

_EPSILON = 1e-3  # added to a deviation before its logarithm: a uniform image has none
_MIN_DEVIATION = 1e-3  # of a number that hardly differs between images
_WITHIN_LIMIT = 0.95  # share of the pack's own images

Row = Annotated[tuple[float, ...], Field(max_length=131_072)]
Deviations = Annotated[
    tuple[Annotated[float, Field(ge=_MIN_DEVIATION)], ...], Field(max_length=131_072)
]


@dataclass(frozen=True, config=STRICT)
class Domain:
    """The distribution of the features of a pack's own images.

    An image is described by 2d numbers: the mean of each of its d features over the cells, and the
    logarithm of the deviation. Its distance is the root mean square of those numbers after
    standardising each by the mean and deviation of the pack's own images.

    Attributes:
        mean: of each number (2d,).
        deviation: of each number (2d,).
        limit: the distance that 95 % of the pack's own images do not exceed.
    """

    mean: Row
    deviation: Deviations
    limit: Annotated[float, Field(gt=0)]

    def __post_init__(self) -> None:
        """Refuses a mean and deviations of different lengths."""
        if len(self.mean) != len(self.deviation):
            raise ValueError(
                f"mean has {len(self.mean)} numbers, but deviation has {len(self.deviation)}"
            )

    def distances(self, features: np.ndarray) -> np.ndarray:
        """Distances (B,) of images from features (B, N, d); about 1 for the pack's own."""
        standardised = (_statistics(features) - np.array(self.mean)) / np.array(self.deviation)
        return np.sqrt((standardised**2).mean(axis=1))

    @classmethod
    def fit(cls, features: np.ndarray) -> Domain:
        """The domain of images with features (B, N, d); every other image sets the limit."""
        statistics = _statistics(features)
        fitted, held_out = statistics[::2], statistics[1::2]
        mean = fitted.mean(axis=0).round(4)
        deviation = np.maximum(fitted.std(axis=0), _MIN_DEVIATION).round(4)
        distances = np.sqrt((((held_out - mean) / deviation) ** 2).mean(axis=1))
        limit = round(float(np.quantile(distances, _WITHIN_LIMIT)), 4)
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()), limit)


def _statistics(features: np.ndarray) -> np.ndarray:
    """An image's numbers (B, 2d) from features (B, N, d)."""
    values = features.astype(np.float64)
    spread = np.log(values.std(axis=1) + _EPSILON)
    return np.concatenate([values.mean(axis=1), spread], axis=1)
