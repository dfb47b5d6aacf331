"""Calibrations that are fitted on made-up scores say what is true of others."""

import numpy as np
import pytest

from polyview.export.pack.calibration import Calibration, sigmoid, weighted
from polyview.export.pack.validation import check
from polyview.training.evaluation.calibration import (
    Answers,
    ask,
    fit,
    logistic,
    measure,
    quantile_line,
)
from polyview.training.evaluation.questions import Questions

IMAGES, QUESTIONS = 400, 1500
KINDS = ("caption", "thing", "pair", "inserted", "gibberish", "unknown", "random")


def made_up(seed: int) -> tuple[Questions, np.ndarray]:
    """Scores in which images that satisfy a question stand out, the rarer kinds not at all."""
    random = np.random.default_rng(seed)
    kinds = np.array([KINDS[i % len(KINDS)] for i in range(QUESTIONS)])
    relevant = random.random((IMAGES, QUESTIONS)) < random.uniform(0, 0.03, QUESTIONS)
    relevant[:, np.isin(kinds, ["gibberish", "unknown", "random"])] = False
    scores = 0.1 * random.normal(size=relevant.shape) + random.uniform(0, 0.3, QUESTIONS)
    scores += relevant * random.uniform(0.1, 0.6, QUESTIONS)
    words = random.integers(1, 12, QUESTIONS)
    unknown = np.where(kinds == "gibberish", 1.0, 0.0)
    whole = np.ones(QUESTIONS, np.bool_)
    texts = np.array([""] * QUESTIONS)
    return Questions(texts, kinds, relevant, whole, words, unknown), scores


def calibrated(seed: int) -> Calibration:
    fitted = fit(*made_up(seed), 0)
    about = {"split": "val", "command": "x", "hardware": "y", "seed": 0}
    return check(Calibration, {**fitted, **about})


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrated(0)


def asked_of(seed: int, images: int) -> Answers:
    questions, scores = made_up(seed)
    return ask(questions.select(np.arange(images), np.arange(QUESTIONS)), scores[:images])


@pytest.mark.parametrize("images", [30, 150, 400])
def test_probabilities_are_true_of_questions_it_has_not_seen(
    calibration: Calibration, images: int
) -> None:
    values = measure(calibration, asked_of(1, images))
    assert values["ece"] <= 0.05
    assert values["ece_question"] <= 0.06
    assert values["area"] > 0.7
    assert values["refused_gibberish"] == 1
    assert values["coverage"] > 0.88


def test_a_better_hit_is_never_less_probable(calibration: Calibration) -> None:
    query = asked_of(2, 300)
    results = calibration.probabilities(query.background, query.hits)
    assert (np.diff(results, axis=1) <= 1e-12).all()
    raised = query.background._replace(top=query.background.top + 0.1)
    assert (weighted(raised.features(), (1, 1, 0, 0, 0, 0, 0)) > 0).all()
    assert calibration.question[0] >= 0
    assert calibration.question[1] >= 0
    assert calibration.question[3] <= 0


def test_what_satisfies_a_question_is_taken_out_of_the_gallery() -> None:
    relevant = np.zeros((30, 2), np.bool_)
    relevant[[3, 5], 0] = True
    scores = np.linspace(0, 1, 60).reshape(30, 2)
    kinds, words = np.array(["caption", "gibberish"]), np.array([4, 4])
    questions = Questions(np.array(["a", "b"]), kinds, relevant, np.ones(2, bool), words, words * 0)
    query = ask(questions, scores)
    assert query.answered.tolist() == [True, False, False]
    assert query.kinds.tolist() == ["caption", "gibberish", "caption"]
    assert query.background.images.tolist() == [30, 30, 28]
    assert query.background.mean[2] == pytest.approx(np.delete(scores[:, 0], [3, 5]).mean())
    assert not query.right[2].any()
    assert query.weights[query.answered].sum() == pytest.approx(0.5)
    assert query.weights.sum() == pytest.approx(1)


def test_logistic_regression_finds_what_made_the_truth() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(40_000, 3)) * [1, 10, 0.1]
    true = (1.5, -0.2, 8.0, 0.5)
    truth = random.random(len(rows)) < sigmoid(weighted(rows, true))
    results = logistic(rows, truth, np.ones(len(rows)), np.array([0, 0, 1]))
    np.testing.assert_allclose(results, true, rtol=0.08)
    bound = logistic(rows, truth, np.ones(len(rows)), np.array([-1, 0, 0]))
    assert bound[0] == 0
    assert bound[2] > 0


def test_the_line_leaves_its_share_below_at_every_place() -> None:
    random = np.random.default_rng(0)
    places = random.uniform(0, 5, 20_000)
    values = 2 * places + random.normal(size=len(places)) * 3
    line = quantile_line(places[:, None], values, np.ones(len(places)), 0.1)
    below = values < weighted(places[:, None], line)
    for start in range(5):
        first = (places >= start) & (places < start + 1)
        assert below[first].mean() == pytest.approx(0.1, abs=0.02)
