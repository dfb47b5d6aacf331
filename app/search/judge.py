"""How sure a method is of what it found: its scores of a sample of the gallery, judged."""

import math
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
import torch

from app.gallery.searchable import Searchable
from app.search.hits import Scores
from export.pack.calibration import FEWEST, TENTH, Background, Calibration, Judgement, unknown_share
from export.texts import Tokens
from models import Views

SAMPLED = 1024  # images, at most, whose scores stand for those of the whole gallery
_SAMPLE_BYTES = 8 * 2**20  # of their views, of each method that was asked


class _Sample(NamedTuple):
    """Views of every so-manieth image, and of how many images they are."""

    views: Views
    of: int


class Judge:
    """Judges what is found in the galleries of one pack."""

    def __init__(self) -> None:
        self._samples: dict[str, _Sample] = {}

    @torch.inference_mode()
    def scores(
        self, name: str, gallery: Searchable, text: Views, only: AbstractSet[int] | None
    ) -> tuple[np.ndarray, int]:
        """What a method's sample of the images scores for a text, and how many images there are.

        Args:
            name: of the method.
            gallery: what it searches.
            text: (1, W, D).
            only: ids of the images that are searched; None for all.
        """
        sample = self._sample(name, gallery, only)
        if not sample.of:
            return np.zeros(0, np.float32), 0
        found = gallery.method.score(sample.views, text.to(sample.views.embeddings.device))
        return found[:, 0].float().cpu().numpy(), sample.of

    def _sample(self, name: str, gallery: Searchable, only: AbstractSet[int] | None) -> _Sample:
        ids = gallery.ids()
        if only is not None:
            ids = ids[np.isin(ids, list(only))]
        elif name in self._samples and self._samples[name].of == len(ids):
            return self._samples[name]
        most = max(1, min(SAMPLED, _SAMPLE_BYTES // (4 * math.prod(gallery.shape or (1,)))))
        sample = _Sample(gallery.views(spread(ids, most) if len(ids) else ids), len(ids))
        if only is None:
            self._samples[name] = sample
        return sample


def among(scores: Scores, only: AbstractSet[int] | None) -> Scores:
    """The scores of some images; None for all."""
    if only is None:
        return scores
    chosen = np.isin(scores.ids, list(only))
    return Scores(scores.ids[chosen], scores.values[chosen])


def spread(values: np.ndarray, most: int) -> np.ndarray:
    """Every so-manieth of (N,), so that at most so many are left."""
    return values[:: max(1, -(-len(values) // most))]


def judged(
    calibration: Calibration, best: np.ndarray, scores: np.ndarray, count: int, tokens: Tokens
) -> Judgement | None:
    """How sure a calibrated method is of hits for one sentence.

    Args:
        calibration: of the method.
        best: (n,) the highest scores, falling.
        scores: (S,) of a sample of the images.
        count: how many images were searched.
        tokens: of the sentence.

    Returns:
        None where there are too few images to say.
    """
    if count < FEWEST:
        return None
    unknown = unknown_share(tokens.words, tokens.unknown)
    facts = (best[0], best[min(len(best), TENTH) - 1], scores.mean(), scores.std())
    given = (*facts, count, len(tokens.words), unknown)
    return calibration.judge(Background(*(np.array([value]) for value in given)), best)
