"""The bootstrap and the view statistics against plain loops and known answers."""

import math

import numpy as np
import pytest
import torch

from polyview import models
from polyview.models import Views
from polyview.training.evaluation.metrics import (
    caption_cosines,
    difference_of_hits,
    image_hits,
    retrieval_metrics,
    view_statistics,
    winning_views,
)
from tests import reference

IMAGE_OF = np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 7, 7, 8, 9, 10, 11, 11, 12])


def _scores(seed: int) -> np.ndarray:
    truth = np.arange(13)[:, None] == IMAGE_OF
    return np.random.default_rng(seed).normal(size=truth.shape) + truth


def _rsum_of_draw(scores: np.ndarray, drawn: list[int]) -> float:
    """Rsum when the queries are the drawn images and their captions, one by one."""
    i2t, t2i = [], []
    for image in drawn:
        captions = np.flatnonzero(image == IMAGE_OF)
        i2t.append(reference.rank_of_best(scores[image].tolist(), set(captions.tolist())))
        t2i += [reference.rank_of_best(scores[:, c].tolist(), {image}) for c in captions]
    recalls = [np.mean([rank < k for rank in ranks]) for ranks in (i2t, t2i) for k in (1, 5, 10)]
    return 100 * float(sum(recalls))


ALIKE = np.array([3, 3, 0, 0, 1, 1, 1, 2, 4, 4, 5, 5, 5])


@pytest.mark.parametrize("alike", [None, ALIKE], ids=["one by one", "alike ones together"])
def test_bootstrap_agrees_with_the_loop(alike: np.ndarray | None) -> None:
    a, b = _scores(0), _scores(1)
    first, second = (image_hits(scores, IMAGE_OF, alike)[None] for scores in (a, b))
    results = difference_of_hits(first, second, 40, 3)
    group = np.arange(13) if alike is None else alike
    groups = int(group.max()) + 1
    draws = np.random.default_rng(3).multinomial(groups, np.full(groups, 1 / groups), size=40)
    differences = []
    for counts in draws:
        drawn = [i for i in range(13) for _ in range(counts[group[i]])]
        differences.append(_rsum_of_draw(a, drawn) - _rsum_of_draw(b, drawn))
    assert results["low"] == pytest.approx(np.percentile(differences, 2.5))
    assert results["high"] == pytest.approx(np.percentile(differences, 97.5))
    assert results["share_above"] == np.mean([d > 1e-9 for d in differences])
    expected = retrieval_metrics(a, IMAGE_OF)["rsum"] - retrieval_metrics(b, IMAGE_OF)["rsum"]
    assert results["difference"] == pytest.approx(expected)


def test_seeds_that_differ_widen_the_interval() -> None:
    rows = np.arange(60)  # images with a caption each
    first, second = (
        np.stack([[3 * (rows < count)] * 2 + [rows * 0 + 1, rows] for count in counts])
        for counts in ((50, 30), (30, 32))
    )
    several, single = difference_of_hits(first, second), difference_of_hits(first[:1], second[:1])
    assert several["difference"] == pytest.approx(90)  # of 600 * (40 - 31) / 60
    assert several["high"] - several["low"] > 1.5 * (single["high"] - single["low"])


def _random_views(images: int, texts: int) -> tuple[Views, Views]:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(images, 3, 4, generator=generator)
    words = torch.randn(texts, 2, 4, generator=generator)
    unit = torch.nn.functional.normalize
    return Views(unit(pictures, dim=2)), Views(unit(words, dim=2))


def test_winning_views_agree_with_the_loop() -> None:
    images, texts = _random_views(7, 30)
    positives = np.random.default_rng(0).integers(0, 7, 30)
    expected = []
    for text, image in enumerate(positives):
        best = [
            max(float(view @ word) for word in texts.embeddings[text])
            for view in images.embeddings[image]
        ]
        expected.append(best.index(max(best)))
    method = models.build("vsepp", 4, 4, {})
    for chunk in (1, 3, 16):
        assert winning_views(method, images, texts, positives, chunk).tolist() == expected


def test_view_statistics_by_hand() -> None:
    corners = torch.eye(4)
    images = Views(torch.stack([corners[[0, 1]], corners[[2, 2]]]))  # (2, 2, 4)
    texts = Views(corners[[0, 0, 1, 2]][:, None])  # the last ties: its first view wins
    method = models.build("vsepp", 4, 4, {})
    results = view_statistics(method, images, texts, np.array([0, 0, 0, 1]))
    entropy = 0.75 * math.log2(4 / 3) + 0.25 * 2
    expected = {"wins_1": 75, "wins_2": 25, "wins_entropy": entropy, "view_cosine": 0.5}
    assert results == pytest.approx(expected)
    single = Views(torch.eye(3)[:, None])  # one view has no other to resemble
    results = view_statistics(method, single, single, np.arange(3))
    assert results == {"wins_1": 100, "wins_entropy": 0}


def test_cosines_of_captions_agree_with_the_loop() -> None:
    torch.manual_seed(0)
    texts = Views(torch.randn(len(IMAGE_OF), 2, 3))
    means = []
    for image in set(IMAGE_OF.tolist()):
        own = [texts.embeddings[row].flatten() for row in np.flatnonzero(image == IMAGE_OF)]
        pairs = [(a, b) for i, a in enumerate(own) for b in own[:i]]
        if pairs:
            means.append(np.mean([float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairs]))
    results = caption_cosines(texts, IMAGE_OF)
    assert results["caption_cosine"] == pytest.approx(np.mean(means), abs=1e-6)
    assert caption_cosines(texts[[0, 3]], IMAGE_OF[[0, 3]]) == {}  # an image with one caption each
