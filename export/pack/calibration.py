"""Calibrates scores to probabilities, and compares images with a pack's own images.

Scores of different methods, queries and galleries are not comparable. Two logistic regressions
compare the best scores with the scores of the whole gallery. Both are fitted on queries with and
without a matching image (`training/evaluation/calibration.py`). The first returns the log odds that
any image matches. The second uses these log odds, and returns the probability that a hit matches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from polyview.export.pack.validation import STRICT, Command, Count, Line, Note

REFERENCE_RANK = 10  # rank of the hit with which the best hit is compared
_MIN_IMAGES = 10  # minimum number of images for a judgement
_MAX_IMAGES = 1000  # the largest gallery of the fit; larger galleries count as this size

SMALL_WORDS = {  # words that do not describe an image; `unknown_share` ignores them
    "a", "an", "the", "this", "that", "some", "any", "and", "or", "of", "in", "on", "at", "by",
    "to", "from", "with", "without", "near", "beside", "behind", "between", "under", "over",
    "above", "below", "next", "left", "right", "there", "is", "are", "was", "be", "its", "his",
    "her", "their", "it",
}  # fmt: skip

_FILLER_WORDS = {  # words that say little about an image and count as known, see `unknown_share`
    "cute", "adorable", "beautiful", "lovely", "nice", "pretty", "gorgeous", "amazing", "awesome",
    "cool", "funny", "sweet", "great", "good", "best", "wonderful", "favorite", "favourite",
    "photo", "photos", "photograph", "picture", "pictures", "image", "images", "pic", "pics",
    "show", "find", "please", "my", "me", "our",
}  # fmt: skip
_EPSILON = 1e-3  # added to a deviation before its logarithm, because it may be 0
_MIN_DEVIATION = 1e-3  # minimum deviation of a statistic between images
_WITHIN_LIMIT = 0.95  # share of the pack's own images within `Domain.limit`
Weight = Annotated[float, Field(ge=-1e6, le=1e6)]


class Background(NamedTuple):
    """Statistics of the scores of B queries over a gallery; each is (B,)."""

    top: np.ndarray  # the best score
    tenth: np.ndarray  # the tenth best score, or the lowest if there are fewer
    mean: np.ndarray  # mean of all scores, or of an evenly spaced sample
    deviation: np.ndarray  # standard deviation of the same scores
    image_count: np.ndarray  # number of images
    word_count: np.ndarray  # number of words of the query
    unknown_share: np.ndarray  # see `unknown_share`

    def _log_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the logarithms (B,) of the numbers of words and of images."""
        return np.log(self.word_count), np.log(np.minimum(self.image_count, _MAX_IMAGES))

    def features(self) -> np.ndarray:
        """Returns statistics (B, 6) of the queries, which `Calibration.question` weights."""
        gaps = (self.top - np.stack([self.mean, self.tenth])) / np.maximum(self.deviation, 1e-6)
        return np.stack([self.top, *gaps, self.unknown_share, *self._log_counts()], axis=-1)

    def sizes(self) -> np.ndarray:
        """Returns (B, 3) for `Calibration.refusal`: logarithms of both sizes, and the product."""
        log_words, log_images = self._log_counts()
        return np.stack([log_words, log_images, log_words * log_images], axis=-1)

    def hit_features(self, logits: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Returns features (B, n, 4) of hits with scores (B, n); for `logits` see `Calibration`."""
        below_top = ((self.top - scores.T) / np.maximum(self.deviation, 1e-6)).T  # (B, n)
        counts = self._log_counts()
        columns = [np.broadcast_to(row[:, None], scores.shape) for row in (logits, *counts)]
        return np.stack([below_top, *columns], axis=-1)


class Judgement(NamedTuple):
    """The calibrated result of one query."""

    matches: bool  # whether any image matches
    probability: float  # probability that any image matches
    hits: tuple[float, ...]  # for each hit the probability that the hit matches


@dataclass(frozen=True, config=STRICT)
class Calibration:
    """The fitted weights of one method (the bias is last), and how to reproduce the fit."""

    # weights of `Background.features`; the weighted sum is the log odds that any image matches
    question: tuple[Weight, Weight, Weight, Weight, Weight, Weight, Weight]
    # weights of `Background.sizes`; the weighted sum is the log odds below which no image matches
    refusal: tuple[Weight, Weight, Weight, Weight]
    # weights of `Background.hit_features`; the weighted sum is the log odds that a hit matches
    hit: tuple[Weight, Weight, Weight, Weight, Weight]
    split: Line
    command: Command
    hardware: Note
    seed: Count

    def logits(self, background: Background) -> np.ndarray:
        """Returns log odds (B,) that any image matches."""
        return weighted_sum(background.features(), self.question)

    def limits(self, background: Background) -> np.ndarray:
        """Returns the limits (B,) of `logits` below which no image counts as a match."""
        return weighted_sum(background.sizes(), self.refusal)

    def probabilities(self, background: Background, scores: np.ndarray) -> np.ndarray:
        """Returns probabilities (B, n) that hits with scores (B, n) match their query."""
        features = background.hit_features(self.logits(background), scores)
        return sigmoid(weighted_sum(features, self.hit))

    def judge_answer(
        self,
        best_scores: np.ndarray,
        scores: np.ndarray,
        count: int,
        words: Sequence[str],
        unknown: Mapping[int, str],
    ) -> Judgement | None:
        """Judges the hits of one text query; returns None if there are too few images.

        `best_scores` (n,) are the highest scores in descending order. `scores` are the scores of a
        sample of the `count` searched images. For `words` and `unknown` see `unknown_share`.
        """
        if count < _MIN_IMAGES:
            return None
        tenth = best_scores[min(len(best_scores), REFERENCE_RANK) - 1]
        share = unknown_share(words, unknown)
        values = best_scores[0], tenth, scores.mean(), scores.std(), count, len(words), share
        background = Background(*(np.array([value]) for value in values))
        logit = self.logits(background)
        hits = self.probabilities(background, best_scores[None])[0]
        matches = bool(logit[0] >= self.limits(background)[0])
        return Judgement(matches, float(sigmoid(logit)[0]), tuple(hits.tolist()))


def weighted_sum(features: np.ndarray, weights: tuple[float, ...]) -> np.ndarray:
    """Returns weighted sums (...) of features (..., F); the last of F + 1 weights is the bias."""
    return features @ np.array(weights[:-1]) + weights[-1]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Converts log odds to probabilities.

    >>> sigmoid(np.array([0.0, 1000.0, -1000.0])).tolist()
    [0.5, 1.0, 0.0]
    """
    return 0.5 * (1 + np.tanh(0.5 * logits))


def unknown_share(words: Sequence[str], unknown: Mapping[int, str]) -> float:
    """Returns the share of unknown words among the words of a text, except `SMALL_WORDS`.

    `words` are the tokens of the text; `unknown` maps the indices of words that a pack does not
    know to the words as typed. If any word is known, an unknown word also counts as known if it is
    a filler ("cute") or precedes a known word ("a fluffy dog"): the known words describe the image.

    >>> unknown_share(["a", "dog", "in", "the", "[UNK]"], {4: "zebra"})
    0.5
    >>> unknown_share(["a", "[UNK]", "dog"], {1: "fluffy"}), unknown_share(["[UNK]"], {0: "cute"})
    (0.0, 1.0)
    >>> unknown_share(["a", "[UNK]", "and", "a", "dog"], {1: "zebra"})
    0.5
    """
    content = [i for i, word in enumerate(words) if i in unknown or word not in SMALL_WORDS]
    known_indices = {i for i in content if i not in unknown}
    for index in sorted(unknown, reverse=True) if known_indices else ():
        if index + 1 in known_indices or unknown[index].lower() in _FILLER_WORDS:
            known_indices.add(index)
    return (len(content) - len(known_indices)) / max(1, len(content))


@dataclass(frozen=True, config=STRICT)
class Domain:
    """The distribution of the features of a pack's own images.

    The 2d statistics of an image are the mean of each of the d features over the cells, and the
    logarithm of its standard deviation. The distance of an image is the root mean square of these
    statistics after standardising them by their mean and deviation over the pack's own images.
    """

    mean: tuple[float, ...]  # (2d,) mean of each statistic
    deviation: tuple[Annotated[float, Field(ge=_MIN_DEVIATION)], ...]  # (2d,)
    limit: Annotated[float, Field(gt=0)]  # distance that 95 % of the pack's images do not exceed

    def distances(self, features: np.ndarray) -> np.ndarray:
        """Returns the distances (B,) of features (B, N, d); about 1 for the pack's images."""
        standardised = (_statistics(features) - np.array(self.mean)) / np.array(self.deviation)
        return np.sqrt((standardised**2).mean(axis=1))

    @classmethod
    def fit(cls, features: np.ndarray) -> Domain:
        """Fits to every second image of features (B, N, d), and `limit` to the other images."""
        statistics = _statistics(features[::2])
        mean = statistics.mean(axis=0).round(4)
        deviation = np.maximum(statistics.std(axis=0), _MIN_DEVIATION).round(4)
        domain = cls(tuple(mean.tolist()), tuple(deviation.tolist()), limit=1.0)
        limit = np.quantile(domain.distances(features[1::2]), _WITHIN_LIMIT)
        return replace(domain, limit=round(float(limit), 4))


def _statistics(features: np.ndarray) -> np.ndarray:
    """Returns the statistics (B, 2d) of images with features (B, N, d)."""
    values = features.astype(np.float64)
    return np.concatenate([values.mean(axis=1), np.log(values.std(axis=1) + _EPSILON)], axis=1)
