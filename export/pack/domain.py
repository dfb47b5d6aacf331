"""Whether an image looks like those that a pack was trained on."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from export.pack.validation import STRICT

_SPREAD = 1e-3  # added to a deviation before its logarithm: a plain image has none
_NARROWEST = 1e-3  # deviation of a number that hardly differs between images
_KEPT = 0.95  # share of the pack's own images that lie within the limit

Row = Annotated[tuple[float, ...], Field(max_length=131_072)]
Deviations = Annotated[
    tuple[Annotated[float, Field(ge=_NARROWEST)], ...], Field(max_length=131_072)
]


@dataclass(frozen=True, config=STRICT)
class Domain:
    """What the features of a pack's own images are like.

    An image is described by 2d numbers: the mean of each of its d features over the cells, and the
    logarithm of the deviation. Its distance is the root mean square of those numbers, each counted
    in deviations from the mean of the pack's own.

    Attributes:
        mean: of each number (2d,).
        deviation: of each number (2d,).
        limit: the distance that 95 % of the pack's own images keep.
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
        away = (_described(features) - np.array(self.mean)) / np.array(self.deviation)
        return np.sqrt((away**2).mean(axis=1))

    @classmethod
    def fit(cls, features: np.ndarray) -> Domain:
        """The domain of images with features (B, N, d); half of them set the limit."""
        described = _described(features)
        fitted, held = described[::2], described[1::2]
        mean = fitted.mean(axis=0).round(4)
        deviation = np.maximum(fitted.std(axis=0), _NARROWEST).round(4)
        distances = np.sqrt((((held - mean) / deviation) ** 2).mean(axis=1))
        limit = round(float(np.quantile(distances, _KEPT)), 4)
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()), limit)


def _described(features: np.ndarray) -> np.ndarray:
    """An image's numbers (B, 2d) from features (B, N, d)."""
    values = features.astype(np.float64)
    spread = np.log(values.std(axis=1) + _SPREAD)
    return np.concatenate([values.mean(axis=1), spread], axis=1)
