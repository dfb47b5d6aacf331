"""Fits how sure a method may be, and measures whether that is true.

Questions of which the answer is known (`training/evaluation/questions.py`) are asked of galleries
of several sizes; those with an answer once more, after every image that satisfies them was taken
out of the gallery.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from export.pack.calibration import TENTH, Background, Calibration, sigmoid, weighted
from training.evaluation.questions import Questions

HITS = 12  # judged for each question
SIZES = (10, 30, 100, 300, 1000)  # images of the galleries that a calibration is fitted on
REFUSED = 0.045  # share of the questions with an answer that may be refused
BINS = 10  # of the reliability curve
_FEWEST = 10  # images that something taken out must leave
_SOME = 2500  # questions for each size
# How often each kind is met, with and without an answer; half of all questions have one.
_PRESENT = {"caption": 0.4, "thing": 0.3, "pair": 0.2, "inserted": 0.1}
_ABSENT = {
    "caption": 0.2, "thing": 0.3, "pair": 0.1, "gibberish": 0.15, "unknown": 0.1, "random": 0.15,
}  # fmt: skip
_RISES = np.array([1, 1, 0, -1, 0, 0])  # signs of what a question is judged by
_HIT_RISES = np.array([-1, 1, 0, 0])


class Asked(NamedTuple):
    """B questions asked of one gallery or several; see `Background`.

    Attributes:
        background: of their scores.
        hits: (B, HITS) scores of the best, -inf beyond the last.
        right: (B, HITS) bool, which hits satisfy their question.
        answered: (B,) bool, whether the gallery has an answer.
        kinds: (B,) of the questions.
        whole: (B,) bool, see `Questions`.
        weights: (B,) how often such a question is met; their sum is 1.
    """

    background: Background
    hits: np.ndarray
    right: np.ndarray
    answered: np.ndarray
    kinds: np.ndarray
    whole: np.ndarray
    weights: np.ndarray


def ask(questions: Questions, scores: np.ndarray, words: np.ndarray, unknown: np.ndarray) -> Asked:
    """Asks all questions of one gallery, and those with an answer again without it.

    Args:
        questions: Q about N images.
        scores: (N, Q) of a method.
        words: (Q,) how many each has.
        unknown: (Q,) the share of them that the pack lacks.
    """
    there = np.asarray(questions.relevant.any(axis=0))
    spare = len(scores) - questions.relevant.sum(axis=0) >= min(_FEWEST, len(scores) // 2)
    again = np.flatnonzero(there & spare & (questions.kinds != "inserted"))
    columns = np.concatenate([np.arange(len(there)), again])
    right = questions.relevant[:, columns]
    right[:, len(there) :] = False
    left = np.where(questions.relevant[:, columns] & ~right, np.nan, scores[:, columns])
    ranked = np.nan_to_num(left, nan=-np.inf)
    order = np.argsort(-ranked, axis=0)[:HITS]
    hits = np.full((len(columns), HITS), -np.inf)
    found = np.zeros(hits.shape, np.bool_)
    hits[:, : len(order)] = np.take_along_axis(ranked, order, axis=0).T
    found[:, : len(order)] = np.take_along_axis(right, order, axis=0).T
    count = (~np.isnan(left)).sum(axis=0)
    tenth = hits[np.arange(len(columns)), np.minimum(TENTH, count) - 1]
    answered = np.asarray(right.any(axis=0))
    kinds = questions.kinds[columns]
    background = Background(
        hits[:, 0],
        tenth,
        np.nanmean(left, axis=0),
        np.nanstd(left, axis=0),
        count,
        words[columns],
        unknown[columns],
    )
    weights = _weights(kinds, answered)
    return Asked(background, hits, found, answered, kinds, questions.whole[columns], weights)


def _weights(kinds: np.ndarray, answered: np.ndarray) -> np.ndarray:
    """How often such questions are met (B,), with a sum of 1."""
    weights = np.zeros(len(kinds))
    for shares, present in ((_PRESENT, True), (_ABSENT, False)):
        for kind, share in shares.items():
            rows = (kinds == kind) & (answered == present)
            weights[rows] = share / max(rows.sum(), 1)
        weights[answered == present] /= 2 * weights[answered == present].sum()
    return weights / weights.sum()


def _galleries(
    questions: Questions, scores: np.ndarray, facts: tuple[np.ndarray, np.ndarray], seed: int
) -> Iterator[Asked]:
    """Asks some of the questions of galleries of all sizes that the images allow."""
    random = np.random.default_rng(seed)
    words, unknown = facts
    whole = len(scores)
    for size in sorted({min(size, whole) for size in SIZES}):
        draws = min(10, whole // size)
        for _ in range(draws):
            rows = np.sort(random.choice(whole, size, replace=False))
            some = random.choice(scores.shape[1], min(scores.shape[1], _SOME // draws), False)
            part = questions.some(rows, some)
            asked = ask(part, scores[np.ix_(rows, some)], words[some], unknown[some])
            yield asked._replace(weights=asked.weights / draws)


class Fitted(NamedTuple):
    """The numbers of a `Calibration`."""

    question: tuple[float, ...]
    refusal: tuple[float, ...]
    hit: tuple[float, ...]


def fit(
    questions: Questions, scores: np.ndarray, facts: tuple[np.ndarray, np.ndarray], seed: int
) -> Fitted:
    """Fits the calibration of one method.

    Args:
        questions: Q about N images.
        scores: (N, Q) of the method.
        facts: `read_texts` of the questions.
        seed: of the galleries that are drawn.
    """
    parts = list(_galleries(questions, scores, facts, seed))
    background = Background(*map(np.concatenate, zip(*(p.background for p in parts), strict=True)))
    hits, right, answered, whole, weights = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("hits", "right", "answered", "whole", "weights")
    )
    question = logistic(background.features(), answered, weights, _RISES)
    logits = weighted(background.features(), question)
    kinds = np.concatenate([part.kinds for part in parts])
    fair = answered & (kinds != "inserted")  # whose word may be the one that matters
    line = quantile_line(background.sizes()[fair], logits[fair], weights[fair], REFUSED)
    over = logits - weighted(background.sizes(), line)
    shares = [
        (over[rows], weights[rows])
        for kind in ("caption", "thing")
        if (rows := answered & (kinds == kind)).any()
    ]
    lower = min(0.0, *(weighted_quantile(*share, REFUSED) for share in shares))
    refusal = (*line[:-1], line[-1] + lower)  # neither kind loses more than its share, of these
    real = np.isfinite(hits) & whole[:, None]
    features = background.hit_features(logits, np.where(real, hits, 0))[real]
    share = np.broadcast_to(weights[:, None], hits.shape)[real]
    return Fitted(question, refusal, logistic(features, right[real], share, _HIT_RISES))


def logistic(
    features: np.ndarray, truth: np.ndarray, weights: np.ndarray, signs: np.ndarray
) -> tuple[float, ...]:
    """Logistic regression by Newton's method, with a sign for each weight.

    Args:
        features: (B, F).
        truth: (B,) bool.
        weights: (B,) of the examples.
        signs: (F,) 1 where a weight must not be below 0, -1 not above, 0 for any.

    Returns:
        F weights and the bias.
    """
    weights = weights / weights.sum()
    mean = weights @ features
    spread = np.sqrt(weights @ (features - mean) ** 2) + 1e-9
    rows = np.column_stack([(features - mean) / spread, np.ones(len(features))])
    signs = np.append(signs, 0)
    ridge = 1e-4 * (np.arange(len(signs)) < len(signs) - 1)
    at = np.zeros(len(signs))
    for _ in range(100):
        p = sigmoid(rows @ at)
        slope = rows.T @ (weights * (p - truth)) + ridge * at
        free = (signs == 0) | (at != 0) | (slope * signs < 0)
        curve = (rows * (weights * p * (1 - p))[:, None]).T @ rows + np.diag(ridge + 1e-9)
        step = np.zeros_like(at)
        step[free] = np.linalg.solve(curve[np.ix_(free, free)], slope[free])
        after = at - np.clip(step, -2, 2)
        after[after * signs < 0] = 0
        if np.abs(after - at).max() < 1e-8:
            break
        at = after
    slopes = at[:-1] / spread
    return (*slopes.tolist(), float(at[-1] - slopes @ mean))


def quantile_line(
    features: np.ndarray, values: np.ndarray, weights: np.ndarray, share: float
) -> tuple[float, ...]:
    """A linear function below which a share of the values lies, at every place alike.

    Quantile regression (Koenker and Bassett, 1978) by repeated weighted least squares.

    Args:
        features: (B, F).
        values: (B,).
        weights: (B,).
        share: in 0..1.

    Returns:
        F weights and the bias.
    """
    rows = np.column_stack([features, np.ones(len(features))])
    line = np.zeros(rows.shape[1])
    for _ in range(200):
        over = values - rows @ line
        pull = weights * np.where(over > 0, share, 1 - share) / np.maximum(np.abs(over), 1e-3)
        before, line = (
            line,
            np.linalg.lstsq(rows * np.sqrt(pull)[:, None], values * np.sqrt(pull), rcond=None)[0],
        )
        if np.abs(line - before).max() < 1e-6:
            break
    return tuple(line.tolist())


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The value below which a share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, share * below[-1])]])


def measure(calibration: Calibration, asked: Asked) -> dict[str, float]:
    """How true a calibration is of questions it was not fitted on.

    Returns:
        `area`: of the ROC curve of answered against unanswered questions; `area_thing`, of things
        alone; `coverage`: share of answered questions that are not refused; `precision`: share of
        the questions not refused that have an answer; `refused_KIND` and `refused_absent_KIND`;
        `ece`: expected calibration error of the hits' probabilities, and `ece_question`;
        `strong`, `likely`, `weak`: share of such hits that are right.
    """
    background, weights = asked.background, asked.weights
    logits = calibration.logits(background)
    refused = logits < calibration.limits(background)
    accepted = weights * ~refused
    values = {
        "area": area_under_curve(logits, asked.answered, weights),
        "coverage": float(accepted[asked.answered].sum() / weights[asked.answered].sum()),
        "precision": float(accepted[asked.answered].sum() / accepted.sum()),
    }
    for present, shares in ((True, _PRESENT), (False, _ABSENT)):
        for kind in shares:
            rows = (asked.kinds == kind) & (asked.answered == present)
            if rows.any():
                absent = not present and kind in _PRESENT
                name = f"refused_absent_{kind}" if absent else f"refused_{kind}"
                values[name] = float(refused[rows].mean())
    real = np.isfinite(asked.hits) & asked.whole[:, None]
    scores = np.where(real, asked.hits, 0)
    found = calibration.probabilities(background, scores)[real]
    share = np.broadcast_to(weights[:, None], real.shape)[real]
    right = asked.right[real]
    curve = reliability(found, right, share)
    values["ece"] = calibration_error(curve)
    values["ece_question"] = calibration_error(
        reliability(sigmoid(logits), asked.answered, weights)
    )
    return values


def reliability(
    probabilities: np.ndarray, truth: np.ndarray, weights: np.ndarray
) -> list[tuple[float, float, float]]:
    """For each tenth of the probabilities: their mean, the share that is true, and their weight.

    >>> reliability(np.array([0.2, 0.2, 0.9]), np.array([True, False, True]), np.ones(3))[0]
    (0.2, 0.5, 0.6666666666666666)
    """
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    curve = []
    for place in np.unique(bins):
        rows = bins == place
        share = weights[rows] / weights[rows].sum()
        means = float(share @ probabilities[rows]), float(share @ truth[rows])
        curve.append((*means, float(weights[rows].sum() / weights.sum())))
    return curve


def calibration_error(curve: Sequence[tuple[float, float, float]]) -> float:
    """The expected calibration error of a `reliability` curve: its mean distance from the truth.

    >>> calibration_error([(0.2, 0.5, 0.5), (0.9, 0.9, 0.5)])
    0.15
    """
    return sum(weight * abs(said - true) for said, true, weight in curve)


def area_under_curve(values: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    """The area under the ROC curve; ties count half.

    >>> area_under_curve(np.array([1.0, 2.0, 2.0]), np.array([False, True, False]), np.ones(3))
    0.75
    """
    _, places = np.unique(values, return_inverse=True)
    size = int(places.max()) + 1
    right = np.bincount(places, weights * truth, size)
    wrong = np.bincount(places, weights * ~truth, size)
    below = np.cumsum(wrong) - wrong / 2
    return float(right @ below / (right.sum() * wrong.sum()))
