"""Fits and measures the calibration of a method's scores.

Galleries of several sizes are searched with questions (`training/evaluation/questions.py`).
Questions with an answer are asked again after all their relevant images are removed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from polyview.export.pack.calibration import (
    REFERENCE_RANK,
    Background,
    Calibration,
    Domain,
    sigmoid,
    weighted_sum,
)
from polyview.export.pack.reading import load_info, write_info
from polyview.export.pack.schema import Metrics
from polyview.export.pack.validation import check
from polyview.export.runtime import Runtime
from polyview.export.sessions import hardware
from polyview.training.data.split import Split
from polyview.training.evaluation.metrics import SEED
from polyview.training.evaluation.questions import Questions, make_questions
from polyview.training.evaluation.report import print_metrics
from polyview.training.evaluation.scoring import features_by_method, score_matrix, split_views

HIT_COUNT = 12  # number of hits that are judged for each question
GALLERY_SIZES = (10, 30, 100, 300, 1000)  # numbers of images in the galleries to fit on
MAX_REFUSED = 0.045  # maximum share of refused questions among those with an answer
BIN_COUNT = 10  # number of bins of the reliability curve
_MIN_IMAGES_LEFT = 10  # minimum number of images after the relevant ones are removed
_QUESTIONS_PER_SIZE = 2500  # maximum for all galleries of a size together
# Assumed shares of kinds. Questions with and without an answer are equally frequent.
_ANSWERED_SHARES = {"caption": 0.4, "thing": 0.3, "pair": 0.2, "inserted": 0.1}
_UNANSWERED_SHARES = {
    "caption": 0.2, "thing": 0.3, "pair": 0.1, "gibberish": 0.15, "unknown": 0.1, "random": 0.15,
}  # fmt: skip
# the `signs` of `fit_logistic` for `Background.features` and `Background.hit_features`
_QUESTION_SIGNS, _HIT_SIGNS = np.array([1, 1, 0, -1, 0, 0]), np.array([-1, 1, 0, 0])
_COLUMNS = {
    "area": "area", "precision": "precision", "coverage": "coverage", "ece": "ECE",
    "refused_caption": "refused: captions", "refused_thing": "things",
    "refused_absent_caption": "absent captions", "refused_absent_thing": "absent things",
    "refused_gibberish": "gibberish", "refused_unknown": "unknown things",
    "refused_random": "random words",
}  # fmt: skip


class Answers(NamedTuple):
    """The hits of B questions in one or several galleries."""

    background: Background  # statistics of all scores
    hits: np.ndarray  # (B, HIT_COUNT) scores of the best images, -inf if the gallery has fewer
    is_right: np.ndarray  # (B, HIT_COUNT) bool, whether a hit satisfies its question
    has_answer: np.ndarray  # (B,) bool, whether the gallery has a relevant image
    kinds: np.ndarray  # (B,) kinds of the questions
    is_complete: np.ndarray  # (B,) bool, see `Questions`
    weights: np.ndarray  # (B,) assumed relative frequencies of the questions

    def judged_hits(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Selects the H hits that are known to be right or wrong.

        Returns their mask (B, HIT_COUNT), the scores (B, HIT_COUNT), which are 0 for other hits,
        and their weights (H,).
        """
        is_judged = np.isfinite(self.hits) & self.is_complete[:, None]
        weights = np.broadcast_to(self.weights[:, None], is_judged.shape)[is_judged]
        return is_judged, np.where(is_judged, self.hits, 0), weights


def ask(questions: Questions, scores: np.ndarray) -> Answers:
    """Ranks a gallery for Q questions, and repeats some without their relevant images.

    `scores` (N, Q) are a method's scores of N images for the questions. A question with an answer
    is repeated, unless it is of the kind "inserted" or too few images would be left.
    """
    image_count, question_count = scores.shape
    min_remaining = min(_MIN_IMAGES_LEFT, image_count // 2)
    leaves_enough = image_count - questions.relevant.sum(axis=0) >= min_remaining
    is_repeated = questions.relevant.any(axis=0) & leaves_enough & (questions.kinds != "inserted")
    columns = np.concatenate([np.arange(question_count), np.flatnonzero(is_repeated)])  # (B,)
    all_questions = questions.select(slice(None), columns)
    is_removed = all_questions.relevant & (np.arange(len(columns)) >= question_count)  # (N, B)
    is_right = all_questions.relevant & ~is_removed
    remaining_scores = np.where(is_removed, np.nan, scores[:, columns])
    filled_scores = np.nan_to_num(remaining_scores, nan=-np.inf)
    order = np.argsort(-filled_scores, axis=0)[:HIT_COUNT]
    padding = ((0, 0), (0, HIT_COUNT - len(order)))
    right_hits = np.pad(np.take_along_axis(is_right, order, axis=0).T, padding)
    hits = np.take_along_axis(filled_scores, order, axis=0).T
    hits = np.pad(hits, padding, constant_values=-np.inf)
    image_counts = (~is_removed).sum(axis=0)  # (B,)
    tenth = hits[np.arange(len(columns)), np.minimum(REFERENCE_RANK, image_counts) - 1]
    mean, deviation = np.nanmean(remaining_scores, axis=0), np.nanstd(remaining_scores, axis=0)
    statistics = all_questions.word_counts, all_questions.unknown_shares
    background = Background(hits[:, 0], tenth, mean, deviation, image_counts, *statistics)
    has_answer: np.ndarray = is_right.any(axis=0)
    weights = np.zeros(len(columns))
    for shares, is_answered in ((_ANSWERED_SHARES, True), (_UNANSWERED_SHARES, False)):
        for kind, share in shares.items():
            rows = (all_questions.kinds == kind) & (has_answer == is_answered)
            weights[rows] = share / max(rows.sum(), 1)
        weights[has_answer == is_answered] /= 2 * weights[has_answer == is_answered].sum()
    weights /= weights.sum()
    kinds, is_complete = all_questions.kinds, all_questions.is_complete
    return Answers(background, hits, right_hits, has_answer, kinds, is_complete, weights)


def _ask_galleries(questions: Questions, scores: np.ndarray, seed: int) -> Answers:
    """Asks random questions about random galleries of `GALLERY_SIZES`, at most of all images."""
    random, parts = np.random.default_rng(seed), list[Answers]()
    image_count, total = scores.shape
    for size in sorted({min(size, image_count) for size in GALLERY_SIZES}):
        gallery_count = min(10, image_count // size)
        question_count = min(total, _QUESTIONS_PER_SIZE // gallery_count)
        for _ in range(gallery_count):
            rows = np.sort(random.choice(image_count, size, replace=False))
            columns = random.choice(total, question_count, replace=False)
            answers = ask(questions.select(rows, columns), scores[np.ix_(rows, columns)])
            parts.append(answers._replace(weights=answers.weights / gallery_count))
    background, *others = zip(*parts, strict=True)
    joined = Background(*map(np.concatenate, zip(*background, strict=True)))
    return Answers(joined, *map(np.concatenate, others))


def fit(questions: Questions, scores: np.ndarray, seed: int) -> dict[str, tuple[float, ...]]:
    """Fits `question`, `refusal` and `hit` of a `Calibration` to a method's scores (N, Q)."""
    answers = _ask_galleries(questions, scores, seed)
    background, has_answer, weights = answers.background, answers.has_answer, answers.weights
    question = fit_logistic(background.features(), has_answer, weights, _QUESTION_SIGNS)
    logits = weighted_sum(background.features(), question)
    rows = has_answer & (answers.kinds != "inserted")  # an inserted word may change the answer
    refusal = quantile_line(background.sizes()[rows], logits[rows], weights[rows], MAX_REFUSED)
    gaps, shift = logits - weighted_sum(background.sizes(), refusal), 0.0
    for kind in ("caption", "thing"):  # at most MAX_REFUSED of each kind may be refused
        rows = has_answer & (answers.kinds == kind)
        if rows.any():
            low = np.quantile(gaps[rows], MAX_REFUSED, weights=weights[rows], method="inverted_cdf")
            shift = min(shift, float(low))
    is_judged, hits, hit_weights = answers.judged_hits()
    features = background.hit_features(logits, hits)[is_judged]
    hit = fit_logistic(features, answers.is_right[is_judged], hit_weights, _HIT_SIGNS)
    return {"question": question, "refusal": (*refusal[:-1], refusal[-1] + shift), "hit": hit}


def fit_logistic(
    features: np.ndarray, truth: np.ndarray, weights: np.ndarray, signs: np.ndarray
) -> tuple[float, ...]:
    """Fits a logistic regression by Newton's method; returns F coefficients and the bias.

    Features are (B, F), truth (B,) bool and example weights (B,). `signs` (F,) constrain the
    coefficients: 1 for at least 0, -1 for at most 0, 0 for any sign.
    """
    weights = weights / weights.sum()
    mean = weights @ features
    deviation = np.sqrt(weights @ (features - mean) ** 2) + 1e-9
    rows = np.column_stack([(features - mean) / deviation, np.ones(len(features))])
    ridge, signs = np.append(np.full(len(signs), 1e-4), 0), np.append(signs, 0)
    estimate = np.zeros(len(signs))
    for _ in range(100):
        p = sigmoid(rows @ estimate)
        gradient = rows.T @ (weights * (p - truth)) + ridge * estimate
        # a coefficient at 0 stays there if the step would give it the wrong sign
        is_free = (signs == 0) | (estimate != 0) | (gradient * signs < 0)
        hessian = (rows * (weights * p * (1 - p))[:, None]).T @ rows + np.diag(ridge + 1e-9)
        step = np.zeros_like(estimate)
        step[is_free] = np.linalg.solve(hessian[np.ix_(is_free, is_free)], gradient[is_free])
        next_estimate = estimate - np.clip(step, -2, 2)
        next_estimate[next_estimate * signs < 0] = 0
        if np.abs(next_estimate - estimate).max() < 1e-8:
            break
        estimate = next_estimate
    slopes = estimate[:-1] / deviation
    return (*slopes.tolist(), float(estimate[-1] - slopes @ mean))


def quantile_line(
    features: np.ndarray, values: np.ndarray, weights: np.ndarray, share: float
) -> tuple[float, ...]:
    """Fits a linear function of features (B, F) that exceeds a `share` of the values (B,).

    This is quantile regression (Koenker and Bassett, 1978) by iteratively reweighted least squares,
    with example weights (B,). Returns F coefficients and the bias.
    """
    rows = np.column_stack([features, np.ones(len(features))])
    line = np.zeros(rows.shape[1])
    for _ in range(200):
        gaps = values - rows @ line
        factors = weights * np.where(gaps > 0, share, 1 - share) / np.maximum(np.abs(gaps), 1e-3)
        root, previous = np.sqrt(factors), line
        line = np.linalg.lstsq(rows * root[:, None], values * root, rcond=None)[0]
        if np.abs(line - previous).max() < 1e-6:
            break
    return tuple(line.tolist())


def measure(calibration: Calibration, answers: Answers) -> dict[str, float]:
    """Measures a calibration on questions that it was not fitted on.

    Returns `area`, the area under the ROC curve that separates questions with and without an
    answer; `coverage`, the share of questions with an answer that are not refused; `precision`, the
    share of questions with an answer among those not refused; `refused_KIND`, the share of refused
    questions of a kind; `refused_absent_KIND`, the same without the relevant images; `ece` and
    `ece_question`, the calibration errors of hits and of questions. All are in 0..1.
    """
    background, has_answer, weights = answers.background, answers.has_answer, answers.weights
    logits = calibration.logits(background)
    is_refused = logits < calibration.limits(background)
    accepted_weights = weights * ~is_refused
    answered_weight = accepted_weights[has_answer].sum()
    values = {
        "area": area_under_curve(logits, has_answer, weights),
        "coverage": float(answered_weight / weights[has_answer].sum()),
        "precision": float(answered_weight / accepted_weights.sum()),
    }
    for is_answered, shares in ((True, _ANSWERED_SHARES), (False, _UNANSWERED_SHARES)):
        for kind in shares:
            rows = (answers.kinds == kind) & (has_answer == is_answered)
            if rows.any():
                absent = "absent_" if not is_answered and kind in _ANSWERED_SHARES else ""
                values[f"refused_{absent}{kind}"] = float(is_refused[rows].mean())
    is_judged, scores, hit_weights = answers.judged_hits()
    probabilities = calibration.probabilities(background, scores)[is_judged]
    values["ece"] = calibration_error(probabilities, answers.is_right[is_judged], hit_weights)
    values["ece_question"] = calibration_error(sigmoid(logits), has_answer, weights)
    return values


def calibrate_pack(
    runtime: Runtime, data: Split, records: Mapping[str, dict[str, str]], refit: bool, write: bool
) -> dict[str, dict[str, float]]:
    """Fits the calibrations of a pack's methods, or measures the stored calibrations.

    `records` maps methods to `split` and `command`, which are stored with the results. `refit` fits
    and stores the calibrations and the pack's domain. Otherwise prints and returns `measure` of
    each method; `write` stores the metrics. Raises ValueError if a stored calibration is missing.
    """
    pack, questions = runtime.info.folder, make_questions(data, runtime, SEED)
    no_images = np.zeros(len(questions.texts), int)  # `split_views` does not use `image_of`
    question_data = replace(data, captions=questions.texts.tolist(), image_of=no_images)
    features = features_by_method(runtime, data, records)
    changes, rows = dict[str, dict[str, Any]](), dict[str, dict[str, float]]()
    for name, record in records.items():
        views = split_views(runtime, name, question_data, features[name])
        scores = score_matrix(runtime.methods[name], *views)
        provenance = {**record, "hardware": hardware(), "seed": SEED}
        if refit:
            calibration = check(Calibration, {**fit(questions, scores, SEED), **provenance})
            changes[name] = {"calibration": calibration, "calibration_metrics": None}
        elif (stored := runtime.info.methods[name].calibration) is None:
            raise ValueError(f"{pack} has no calibration of {name}; make one with --calibrate")
        else:
            rows[name] = measure(stored, ask(questions, scores))
            metrics = check(Metrics, {"values": rows[name], **provenance})
            changes[name] = {"calibration_metrics": metrics}
    if refit or write:
        info = load_info(pack, verify=False)
        entries = {name: replace(info.methods[name], **fields) for name, fields in changes.items()}
        file = info.image_encoder.file
        tensors = (features[name] for name in records if runtime.image_encoder_of(name) == file)
        if refit and isinstance(images := next(tensors, None), Tensor):  # not precomputed features
            info = replace(info, domain=Domain.fit(images.cpu().numpy()))
        write_info(replace(info, methods={**info.methods, **entries}))
    if rows:
        printed = {  # `area` and `ece` in 0..1, the other metrics in percent
            name: {k: value if k in ("area", "ece") else 100 * value for k, value in row.items()}
            for name, row in rows.items()
        }
        print_metrics("method", _COLUMNS, printed)
    return rows


def calibration_error(probabilities: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    """Returns the expected calibration error in `BIN_COUNT` equally wide bins of probability.

    >>> truth = np.array([True, False, True])
    >>> round(calibration_error(np.array([0.2, 0.2, 0.9]), truth, np.ones(3)), 6)
    0.233333
    """
    bins = np.minimum((probabilities * BIN_COUNT).astype(int), BIN_COUNT - 1)
    gaps = np.bincount(bins, weights * (probabilities - truth))  # of each bin
    return float(np.abs(gaps).sum() / weights.sum())


def area_under_curve(values: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    """Returns the area under the ROC curve of weighted examples; ties count half.

    >>> area_under_curve(np.array([1.0, 2.0, 2.0]), np.array([False, True, False]), np.ones(3))
    0.75
    """
    _, levels = np.unique(values, return_inverse=True)
    size = int(levels.max()) + 1
    true_weights = np.bincount(levels, weights * truth, size)
    false_weights = np.bincount(levels, weights * ~truth, size)
    lower_weights = np.cumsum(false_weights) - false_weights / 2
    return float(true_weights @ lower_weights / (true_weights.sum() * false_weights.sum()))
