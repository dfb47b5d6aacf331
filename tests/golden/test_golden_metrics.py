"""Retrieval metrics against the authors' evaluation code; ties count against the method."""

import numpy as np
import pytest

from polyview.training.evaluation.metrics import best_ranks, folded_metrics, retrieval_metrics
from tests.golden.loading import load

FILES = ("metrics_random", "metrics_correlated", "metrics_single_image", "metrics_odd_median")
NAMES = ("r1", "r5", "r10", "medr", "meanr")


def ranks_of(scores: np.ndarray, way: str) -> np.ndarray:
    captions = scores.shape[1] // len(scores)
    image_of = np.arange(scores.shape[1]) // captions
    if way == "t2i":
        return best_ranks(scores.T, [np.array([i]) for i in image_of])
    return best_ranks(scores, [np.flatnonzero(image_of == i) for i in range(len(scores))])


def table_of(metrics: dict[str, float], way: str) -> list[float]:
    return [metrics[f"{way}_{name}"] for name in NAMES]


@pytest.mark.parametrize("name", FILES)
def test_golden_metrics(name: str) -> None:
    data = {k: v.numpy() for k, v in load(name).items()}
    scores = data["scores"]
    image_of = np.arange(scores.shape[1]) // (scores.shape[1] // len(scores))
    metrics = retrieval_metrics(scores, image_of)
    for way, axis in (("i2t", 1), ("t2i", 0)):
        assert np.array_equal(ranks_of(scores, way), data[f"{way}_ranks0"])
        assert np.array_equal(scores.argmax(axis=axis), data[f"{way}_top1"])
        assert table_of(metrics, way) == pytest.approx(data[f"{way}_metrics"].tolist(), abs=1e-9)
    assert metrics["rsum"] == pytest.approx(float(data["rsum"]), abs=1e-9)


def test_golden_ties_are_counted_pessimistically() -> None:
    data = {k: v.numpy() for k, v in load("metrics_ties").items()}
    cases = sorted({key.split(".")[0] for key in data})
    assert cases
    for case in cases:
        for way in ("i2t", "t2i"):
            ranks = ranks_of(data[f"{case}.scores"], way)
            assert np.array_equal(ranks, data[f"{case}.{way}_ranks0_pessimistic"])
            assert (ranks >= data[f"{case}.{way}_ranks0_optimistic"]).all()
            assert (ranks >= data[f"{case}.{way}_ranks0_observed"]).all()


def fold_row(scores: np.ndarray, image_of: np.ndarray) -> list[float]:
    """i2t (5), t2i (5), mean recall of each direction, rsum."""
    metrics = retrieval_metrics(scores, image_of)
    recalls = [float(np.mean([metrics[f"{way}_{n}"] for n in NAMES[:3]])) for way in ("i2t", "t2i")]
    return [*table_of(metrics, "i2t"), *table_of(metrics, "t2i"), *recalls, metrics["rsum"]]


def check_folds(scores: np.ndarray, data: dict[str, np.ndarray]) -> None:
    image_of = np.arange(scores.shape[1]) // (scores.shape[1] // len(scores))
    folds = len(data["fold_metrics"])
    size = len(scores) // folds
    for fold, expected in enumerate(data["fold_metrics"]):
        start = fold * size
        inside = (image_of >= start) & (image_of < start + size)
        part = scores[start : start + size][:, inside]
        row = fold_row(part, image_of[inside] - start)
        assert row == pytest.approx(expected.tolist(), abs=1e-9)
    mean = folded_metrics(scores, image_of, folds)
    got = [*table_of(mean, "i2t"), *table_of(mean, "t2i")]
    assert got == pytest.approx(data["mean_metrics"][:10].tolist(), abs=1e-9)
    assert mean["rsum"] == pytest.approx(float(data["mean_metrics"][12]), abs=1e-9)


def test_golden_five_folds_small() -> None:
    data = {k: v.numpy() for k, v in load("metrics_5fold_small").items()}
    check_folds(data["scores"], data)
    image_of = np.arange(data["scores"].shape[1]) // 5
    whole = retrieval_metrics(data["scores"], image_of)
    for way in ("i2t", "t2i"):
        expected = data[f"whole_{way}_metrics"].tolist()
        assert table_of(whole, way) == pytest.approx(expected, abs=1e-9)
    assert whole["rsum"] == pytest.approx(float(data["whole_rsum"]), abs=1e-9)
