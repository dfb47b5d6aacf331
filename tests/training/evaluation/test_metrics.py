"""Retrieval metrics against plain loops."""

import numpy as np
import pytest

from polyview.training.evaluation.metrics import (
    folded_metrics,
    relevance_metrics,
    retrieval_metrics,
)


@pytest.fixture
def scores() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(12, 60)).astype(np.float32)


IMAGE_OF = np.repeat(np.arange(12), 5)


def test_the_normalised_median_rank_is_a_share_of_what_is_ranked(scores: np.ndarray) -> None:
    table = retrieval_metrics(scores, IMAGE_OF)
    assert table["t2i_nmr"] == table["t2i_medr"] / 12
    assert table["i2t_nmr"] == table["i2t_medr"] / 60


def test_captions_may_come_in_any_order(scores: np.ndarray) -> None:
    order = np.random.default_rng(1).permutation(60)
    shuffled = retrieval_metrics(scores[:, order], IMAGE_OF[order])
    assert shuffled == retrieval_metrics(scores, IMAGE_OF)


def test_nan_is_refused(scores: np.ndarray) -> None:
    scores[3, 7] = np.nan
    with pytest.raises(ValueError, match="a score is NaN"):
        retrieval_metrics(scores, IMAGE_OF)


def test_folds_are_averaged(scores: np.ndarray) -> None:
    whole = folded_metrics(scores, IMAGE_OF, 2)
    parts = [retrieval_metrics(scores[a : a + 6, 5 * a : 5 * a + 30], np.repeat(np.arange(6), 5))
             for a in (0, 6)]  # fmt: skip
    assert whole["rsum"] == pytest.approx(np.mean([p["rsum"] for p in parts]))
    with pytest.raises(ValueError, match="5 folds do not divide 12 images"):
        folded_metrics(scores, IMAGE_OF, 5)


def test_r_precision_and_map_by_hand() -> None:
    scores = np.array([[0.9], [0.8], [0.7], [0.1]], np.float32)
    table = relevance_metrics(scores, [np.array([0, 2, 3])])
    assert table["t2i_rprecision"] == pytest.approx(100 * 2 / 3)
    assert table["t2i_map_at_r"] == pytest.approx(100 * (1 / 1 + 2 / 3) / 3)


def test_an_image_without_caption_is_named() -> None:
    with pytest.raises(ValueError, match="image 1 has no caption"):
        retrieval_metrics(np.zeros((2, 1), np.float32), np.array([0]))
