"""How sure a method is: from the scores of one question to probabilities.

A score alone says little: each method, question and gallery has scores of its own. What is judged
is how the best scores stand out from those of the whole gallery, with two logistic regressions that
were fitted on questions with and without an answer (`training/evaluation/calibration.py`): one asks
whether anything matches, the other, with its result, whether one hit does.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from export.pack.validation import STRICT

FEWEST = 10  # images; the scores of fewer say too little about a gallery
MOST = 1000  # images that were fitted; more are judged like as many
TENTH = 10  # the place of the hit that the best one is compared with
STRONG, LIKELY = 0.8, 0.4  # probabilities from which a hit is called so

# Words that say nothing of what an image shows; whether others are known is what counts.
SMALL_WORDS = {
    "a", "an", "the", "this", "that", "some", "any", "and", "or", "of", "in", "on", "at", "by",
    "to", "from", "with", "without", "near", "beside", "behind", "between", "under", "over",
    "above", "below", "next", "left", "right", "there", "is", "are", "was", "be", "its", "his",
    "her", "their", "it",
}  # fmt: skip

Weight = Annotated[float, Field(ge=-1e6, le=1e6)]


# Words that say nothing of it either, where a pack lacks them.
_PRAISE = {
    "cute", "adorable", "beautiful", "lovely", "nice", "pretty", "gorgeous", "amazing", "awesome",
    "cool", "funny", "sweet", "great", "good", "best", "wonderful", "favorite", "favourite",
    "photo", "photos", "photograph", "picture", "pictures", "image", "images", "pic", "pics",
    "show", "find", "please", "my", "me", "our",
}  # fmt: skip


class Background(NamedTuple):
    """The scores of B questions over their whole gallery; each (B,).

    Attributes:
        top: the best.
        tenth: the tenth best, or the last of fewer.
        mean: of all, or of an even sample.
        deviation: the same.
        images: how many there are.
        words: how many words the question has.
        unknown: the share of its words, small ones such as "the" aside, that the pack lacks.
    """

    top: np.ndarray
    tenth: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    images: np.ndarray
    words: np.ndarray
    unknown: np.ndarray

    def features(self) -> np.ndarray:
        """What the question is judged by: (B, 6), as `Calibration.question` weighs it."""
        spread = np.maximum(self.deviation, 1e-6)
        return np.stack(
            [
                self.top,
                (self.top - self.mean) / spread,
                (self.top - self.tenth) / spread,
                self.unknown,
                np.log(self.words),
                self._size,
            ],
            axis=-1,
        )

    @property
    def _size(self) -> np.ndarray:
        return np.log(np.minimum(self.images, MOST))

    def sizes(self) -> np.ndarray:
        """What decides where refusal begins: (B, 3), as `Calibration.refusal` weighs it."""
        words, count = np.log(self.words), self._size
        return np.stack([words, count, words * count], axis=-1)

    def hit_features(self, logit: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """What hits are judged by: (B, n, 4), as `Calibration.hit` weighs it.

        Args:
            logit: (B,) of the questions.
            scores: (B, n) of their hits.
        """
        spread = np.maximum(self.deviation, 1e-6)
        below = (self.top[:, None] - scores) / spread[:, None]
        rest = [np.log(self.words), self._size]
        parts = [np.broadcast_to(part[:, None], scores.shape) for part in (logit, *rest)]
        return np.stack([below, *parts], axis=-1)


class Judgement(NamedTuple):
    """What is thought of one question's answer.

    Attributes:
        matches: whether anything in the gallery does.
        probability: that something does.
        hits: for each hit the probability that it satisfies the question.
    """

    matches: bool
    probability: float
    hits: tuple[float, ...]


@dataclass(frozen=True, config=STRICT)
class Calibration:
    """What was fitted for one method.

    Attributes:
        question: weights of `Background.features`, and the bias.
        refusal: weights of `Background.sizes`, and the bias: below these log odds nothing matches.
        hit: weights of `Background.hit_features`, and the bias.
        split: the data it was fitted on.
        command: the command line that fits it again.
        hardware: what that ran on.
        seed: of the questions that were drawn.
    """

    question: tuple[Weight, Weight, Weight, Weight, Weight, Weight, Weight]
    refusal: tuple[Weight, Weight, Weight, Weight]
    hit: tuple[Weight, Weight, Weight, Weight, Weight]
    split: Annotated[str, Field(max_length=200, pattern=r"\S")]
    command: Annotated[str, Field(max_length=5000, pattern=r"\S")]
    hardware: Annotated[str, Field(max_length=1000, pattern=r"\S")]
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)]

    def logits(self, background: Background) -> np.ndarray:
        """Log odds (B,) that something matches."""
        return weighted(background.features(), self.question)

    def limits(self, background: Background) -> np.ndarray:
        """The log odds (B,) below which nothing does."""
        return weighted(background.sizes(), self.refusal)

    def probabilities(self, background: Background, scores: np.ndarray) -> np.ndarray:
        """The probability (B, n) of hits with these scores to satisfy their question."""
        features = background.hit_features(self.logits(background), scores)
        return sigmoid(weighted(features, self.hit))

    def judge(self, background: Background, scores: np.ndarray) -> Judgement:
        """Judges the hits (n,) of a single question, B = 1."""
        logit = self.logits(background)
        found = self.probabilities(background, scores[None])[0]
        matches = bool(logit[0] >= self.limits(background)[0])
        return Judgement(matches, float(sigmoid(logit)[0]), tuple(found.tolist()))

    def judge_answer(
        self,
        best: np.ndarray,
        scores: np.ndarray,
        count: int,
        words: Sequence[str],
        unknown: Mapping[int, str],
    ) -> Judgement | None:
        """Judges the hits for one sentence.

        Args:
            best: (n,) the highest scores, falling.
            scores: (S,) of a sample of the images.
            count: how many images were searched.
            words: of the sentence, as the pack reads them.
            unknown: those that it lacks, see `unknown_share`.

        Returns:
            None where there are too few images to say.
        """
        if count < FEWEST:
            return None
        facts = (best[0], best[min(len(best), TENTH) - 1], scores.mean(), scores.std())
        given = (*facts, count, len(words), unknown_share(words, unknown))
        return self.judge(Background(*(np.array([value]) for value in given)), best)


def weighted(features: np.ndarray, weights: tuple[float, ...]) -> np.ndarray:
    """Features (..., F) times F weights, plus the bias that follows them: (...)."""
    return features @ np.array(weights[:-1]) + weights[-1]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Log odds as probabilities.

    >>> sigmoid(np.array([0.0, 1000.0, -1000.0])).tolist()
    [0.5, 1.0, 0.0]
    """
    return 0.5 * (1 + np.tanh(0.5 * logits))


def strength(probability: float) -> str:
    """A hit's probability in a word.

    >>> [strength(p) for p in (0.9, 0.5, 0.1)]
    ['strong', 'likely', 'weak']
    """
    return "strong" if probability >= STRONG else "likely" if probability >= LIKELY else "weak"


def unknown_share(words: Sequence[str], unknown: Mapping[int, str]) -> float:
    """The share of a text's words that a pack lacks; those that say nothing are not counted.

    Nor is an unknown word that only describes: one of praise, or one right before a known word, as
    in "a fluffy dog". The rest still says what to look for. Where no such word is known, nothing
    does, and all that is unknown counts.

    Args:
        words: as the pack reads them.
        unknown: those that it lacks, as they were typed, by their place among `words`.

    >>> unknown_share(["a", "dog", "in", "the", "[UNK]"], {4: "zebra"})
    0.5
    >>> unknown_share(["a", "[UNK]", "dog"], {1: "fluffy"}), unknown_share(["[UNK]"], {0: "cute"})
    (0.0, 1.0)
    >>> unknown_share(["a", "[UNK]", "and", "a", "dog"], {1: "zebra"})
    0.5
    """
    telling = [i for i, word in enumerate(words) if i in unknown or word not in SMALL_WORDS]
    counted = {i for i in telling if i not in unknown}
    for place in sorted(unknown, reverse=True) if counted else ():
        if place + 1 in counted or unknown[place].lower() in _PRAISE:
            counted.add(place)
    return (len(telling) - len(counted)) / max(1, len(telling))
