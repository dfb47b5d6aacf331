"""Retrieval metrics against the authors' evaluation code; ties count against the method."""

import itertools

import numpy as np
import pytest

from polyview.models import Views
from polyview.models.pvse import PVSE
from polyview.training.evaluation.metrics import best_ranks, folded_metrics, retrieval_metrics
from tests.golden.loading import load

SCORES = ("metrics_random", "metrics_correlated", "metrics_single_image", "metrics_odd_median")
EMBEDDINGS = ("pvse_eval_multi", "pvse_eval_single")
NAMES = ("r1", "r5", "r10", "medr", "meanr")
WAYS = ("i2t", "t2i")


def arrays(name: str) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in load(name).items()}


def score_views(name: str) -> np.ndarray:
    """PVSE's scores of a file's embeddings."""
    data = load(name)
    sides = [data[f"{side}_embeddings"].double() for side in ("image", "caption")]
    images, texts = (Views(rows if rows.dim() == 3 else rows[:, None]) for rows in sides)
    return PVSE(4, 4, 4).score(images, texts).numpy()


def owners(scores: np.ndarray) -> np.ndarray:
    """The image of each caption: each image has as many."""
    return np.arange(scores.shape[1]) // (scores.shape[1] // len(scores))


def ranks_of(scores: np.ndarray, way: str) -> np.ndarray:
    image_of = owners(scores)
    if way == "t2i":
        return best_ranks(scores.T, [np.array([i]) for i in image_of])
    return best_ranks(scores, [np.flatnonzero(image_of == i) for i in range(len(scores))])


def assert_table(metrics: dict[str, float], expected: list[float]) -> None:
    """Compares both ways' five numbers, then rsum."""
    values = [metrics[f"{way}_{name}"] for way in WAYS for name in NAMES]
    assert [*values, metrics["rsum"]] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SCORES + EMBEDDINGS)
def test_golden_metrics(name: str) -> None:
    data = arrays(name)
    scores = score_views(name) if name in EMBEDDINGS else data["scores"]
    for way, axis in (("i2t", 1), ("t2i", 0)):
        assert np.array_equal(ranks_of(scores, way), data[f"{way}_ranks0"])
        assert np.array_equal(scores.argmax(axis=axis), data[f"{way}_top1"])
    expected = [*data["i2t_metrics"], *data["t2i_metrics"], float(data["rsum"])]
    assert_table(retrieval_metrics(scores, owners(scores)), expected)


def test_golden_ties_are_counted_pessimistically() -> None:
    data = arrays("metrics_ties")
    cases = {key.split(".")[0] for key in data}
    assert cases
    for case, way in itertools.product(cases, WAYS):
        ranks = ranks_of(data[f"{case}.scores"], way)
        assert np.array_equal(ranks, data[f"{case}.{way}_ranks0_pessimistic"])


def test_golden_five_folds() -> None:
    data = arrays("metrics_5fold_small")
    scores = data["scores"]
    image_of, size = owners(scores), len(scores) // len(data["fold_metrics"])
    for fold, expected in enumerate(data["fold_metrics"]):
        inside = image_of // size == fold
        part = scores[fold * size : (fold + 1) * size][:, inside]
        metrics = retrieval_metrics(part, image_of[inside] - fold * size)
        assert_table(metrics, [*expected[:10], expected[12]])  # beside two mean recalls
    mean = folded_metrics(scores, image_of, len(data["fold_metrics"]))
    assert_table(mean, [*data["mean_metrics"][:10], data["mean_metrics"][12]])
    whole = [*data["whole_i2t_metrics"], *data["whole_t2i_metrics"], float(data["whole_rsum"])]
    assert_table(retrieval_metrics(scores, image_of), whole)
