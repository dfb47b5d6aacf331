"""Calibrates scores to probabilities, and compares images with a pack's training images.

Scores of different methods, questions and galleries are not comparable. Two logistic regressions
compare the best scores with those of the whole gallery; they are fitted on questions with and
without an answer (`training/evaluation/calibration.py`). One returns the log odds that anything
matches; the other uses these for the probability of a hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from polyview.export.pack.validation import STRICT, Command, Count, Line, Note

TENTH = 10  # rank of the hit that the best one is compared with
_MIN_IMAGES = 10  # the scores of fewer say too little about a gallery
_MAX_IMAGES = 1000  # of the galleries it was fitted on; larger ones are judged like these

# Words that do not describe what an image shows: `unknown_share` leaves them out.
SMALL_WORDS = {
    "a", "an", "the", "this", "that", "some", "any", "and", "or", "of", "in", "on", "at", "by",
    "to", "from", "with", "without", "near", "beside", "behind", "between", "under", "over",
    "above", "below", "next", "left", "right", "there", "is", "are", "was", "be", "its", "his",
    "her", "their", "it",
}  # fmt: skip

# Left out as well if a pack lacks them.
_PRAISE = {
    "cute", "adorable", "beautiful", "lovely", "nice", "pretty", "gorgeous", "amazing", "awesome",
    "cool", "funny", "sweet", "great", "good", "best", "wonderful", "favorite", "favourite",
    "photo", "photos", "photograph", "picture", "pictures", "image", "images", "pic", "pics",
    "show", "find", "please", "my", "me", "our",
}  # fmt: skip
_EPSILON = 1e-3  # added to a deviation before its logarithm: a uniform image has none
_MIN_DEVIATION = 1e-3  # of a number that hardly differs between images
_WITHIN_LIMIT = 0.95  # share of the pack's own images
Weight = Annotated[float, Field(ge=-1e6, le=1e6)]


class Background(NamedTuple):
    """The scores of B questions over their whole gallery; each (B,)."""

    top: np.ndarray  # the best
    tenth: np.ndarray  # the tenth best, or the last of fewer
    mean: np.ndarray  # of all, or of an even sample
    deviation: np.ndarray  # likewise
    images: np.ndarray  # number of images
    words: np.ndarray  # number of words of the question
    unknown: np.ndarray  # see `unknown_share`

    def _logs(self) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of the number of words and of images."""
        return np.log(self.words), np.log(np.minimum(self.images, _MAX_IMAGES))

    def features(self) -> np.ndarray:
        """Features (B, 6) of the questions, for the weights `Calibration.question`."""
        above = (self.top - np.stack([self.mean, self.tenth])) / np.maximum(self.deviation, 1e-6)
        return np.stack([self.top, *above, self.unknown, *self._logs()], axis=-1)

    def sizes(self) -> np.ndarray:
        """Features (B, 3) of the threshold of refusal, for the weights `Calibration.refusal`."""
        words, size = self._logs()
        return np.stack([words, size, words * size], axis=-1)

    def hit_features(self, logit: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Features (B, n, 4) of hits with scores (B, n), for the weights `Calibration.hit`."""
        below_top = ((self.top - scores.T) / np.maximum(self.deviation, 1e-6)).T  # (B, n)
        columns = [np.broadcast_to(c[:, None], scores.shape) for c in (logit, *self._logs())]
        return np.stack([below_top, *columns], axis=-1)


class Judgement(NamedTuple):
    """The judgement of one question's answer."""

    matches: bool  # whether anything in the gallery does
    probability: float  # that something does
    hits: tuple[float, ...]  # for each hit the probability that it satisfies the question


@dataclass(frozen=True, config=STRICT)
class Calibration:
    """The fitted weights of one method; the bias is the last weight.

    `question` weighs `Background.features`; `refusal` weighs `Background.sizes`, and below these
    log odds nothing matches; `hit` weighs `Background.hit_features`. The rest says how it was
    fitted: the data, the command line, the machine, and the seed of the questions.
    """

    question: tuple[Weight, Weight, Weight, Weight, Weight, Weight, Weight]
    refusal: tuple[Weight, Weight, Weight, Weight]
    hit: tuple[Weight, Weight, Weight, Weight, Weight]
    split: Line
    command: Command
    hardware: Note
    seed: Count

    def logits(self, background: Background) -> np.ndarray:
        """Log odds (B,) that anything matches."""
        return weighted(background.features(), self.question)

    def limits(self, background: Background) -> np.ndarray:
        """Log odds (B,) below which nothing does."""
        return weighted(background.sizes(), self.refusal)

    def probabilities(self, background: Background, scores: np.ndarray) -> np.ndarray:
        """Probabilities (B, n) that hits with these scores satisfy their question."""
        features = background.hit_features(self.logits(background), scores)
        return sigmoid(weighted(features, self.hit))

    def judge_answer(
        self,
        best: np.ndarray,
        scores: np.ndarray,
        count: int,
        words: Sequence[str],
        unknown: Mapping[int, str],
    ) -> Judgement | None:
        """Judges the hits of one sentence; None if the images are too few.

        Args:
            best: (n,) the highest scores, in falling order.
            scores: (S,) of a sample of the images.
            count: number of images searched.
            words: of the sentence, as the pack reads them.
            unknown: see `unknown_share`.
        """
        if count < _MIN_IMAGES:
            return None
        tenth = best[min(len(best), TENTH) - 1]
        share = unknown_share(words, unknown)
        values = best[0], tenth, scores.mean(), scores.std(), count, len(words), share
        background = Background(*(np.array([value]) for value in values))
        logit = self.logits(background)
        hits = self.probabilities(background, best[None])[0]
        matches = bool(logit[0] >= self.limits(background)[0])
        return Judgement(matches, float(sigmoid(logit)[0]), tuple(hits.tolist()))


def weighted(features: np.ndarray, weights: tuple[float, ...]) -> np.ndarray:
    """Features (..., F) times F weights, plus the bias that follows them: (...)."""
    return features @ np.array(weights[:-1]) + weights[-1]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Log odds as probabilities.

    >>> sigmoid(np.array([0.0, 1000.0, -1000.0])).tolist()
    [0.5, 1.0, 0.0]
    """
    return 0.5 * (1 + np.tanh(0.5 * logits))


def unknown_share(words: Sequence[str], unknown: Mapping[int, str]) -> float:
    """The share of a text's describing words that a pack lacks; `SMALL_WORDS` do not count.

    Nor does an unknown word of praise, or one right before a known word, as in "a fluffy dog": the
    rest still describes what to find. Without any known word, all unknown ones count.

    Args:
        words: as the pack reads them.
        unknown: place among `words` -> the word as typed, for words that the pack lacks.

    >>> unknown_share(["a", "dog", "in", "the", "[UNK]"], {4: "zebra"})
    0.5
    >>> unknown_share(["a", "[UNK]", "dog"], {1: "fluffy"}), unknown_share(["[UNK]"], {0: "cute"})
    (0.0, 1.0)
    >>> unknown_share(["a", "[UNK]", "and", "a", "dog"], {1: "zebra"})
    0.5
    """
    describing = [i for i, word in enumerate(words) if i in unknown or word not in SMALL_WORDS]
    fine = {i for i in describing if i not in unknown}
    for place in sorted(unknown, reverse=True) if fine else ():
        if place + 1 in fine or unknown[place].lower() in _PRAISE:
            fine.add(place)
    return (len(describing) - len(fine)) / max(1, len(describing))


@dataclass(frozen=True, config=STRICT)
class Domain:
    """The distribution of the features of a pack's own images.

    An image is described by 2d numbers: the mean of each of its d features over the cells, and the
    logarithm of the deviation. Its distance is the root mean square of those numbers after
    standardising each by the mean and deviation of the pack's own images.
    """

    mean: tuple[float, ...]  # of each number (2d,)
    deviation: tuple[Annotated[float, Field(ge=_MIN_DEVIATION)], ...]  # likewise
    limit: Annotated[float, Field(gt=0)]  # distance that 95 % of its own images do not exceed

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
