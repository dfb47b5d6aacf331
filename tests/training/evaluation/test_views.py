"""View statistics and faithfulness against plain loops and cases worked out by hand."""

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from polyview import models
from polyview.models import Views
from polyview.training.data.split import SeenObjects, Split
from polyview.training.evaluation.views import (
    caption_cosines,
    faithfulness,
    mentioned_cells,
    own_scores,
    print_views,
    value_shares,
    view_metrics,
    view_statistics,
)

# a 2 x 2 grid of 2 x 2 pixels: object 0 fills the first cell, object 1 half of the last
MASK = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 2, 2], [0, 0, 0, 0]], np.uint8)
METHOD = models.build("vsepp", 4, 4, {})


def test_texts_are_scored_by_the_views_of_their_own_images() -> None:
    unit = torch.nn.functional.normalize
    images, texts = (Views(unit(torch.randn(n, v, 4), dim=2)) for n, v in ((7, 3), (30, 2)))
    image_of = np.random.default_rng(0).integers(0, 7, 30)
    scores = own_scores(METHOD.view_scores, images, texts, image_of)
    for text, image in enumerate(image_of):
        expected = [
            max(float(view @ word) for word in texts.embeddings[text])
            for view in images.embeddings[image]
        ]
        assert scores[:, text].tolist() == pytest.approx(expected, abs=1e-6)
    best = own_scores(METHOD.score, images, texts, image_of, at_once=3)
    np.testing.assert_allclose(best, scores.max(axis=0), atol=1e-6)


def test_view_statistics_by_hand() -> None:
    corners = torch.eye(4)
    images = Views(torch.stack([corners[[0, 1]], corners[[2, 2]]]))  # (2, 2, 4)
    texts = Views(corners[[0, 0, 1, 2]][:, None])  # the last ties: its first view wins
    results = view_statistics(METHOD, images, texts, np.array([0, 0, 0, 1]))
    entropy = 0.75 * math.log2(4 / 3) + 0.25 * 2
    expected = {"wins_1": 75, "wins_2": 25, "wins_entropy": entropy, "view_cosine": 0.5}
    assert results == pytest.approx(expected)
    single = Views(torch.eye(3)[:, None])  # one view has no other to resemble
    results = view_statistics(METHOD, single, single, np.arange(3))
    assert results == {"wins_1": 100, "wins_entropy": 0}


def test_cosines_of_captions_agree_with_the_loop() -> None:
    texts, image_of = Views(torch.randn(9, 2, 3)), np.array([0, 0, 0, 1, 2, 2, 3, 0, 2])
    means = []
    for image in set(image_of.tolist()):
        own = [texts.embeddings[row].flatten() for row in np.flatnonzero(image == image_of)]
        pairs = [(a, b) for i, a in enumerate(own) for b in own[:i]]
        if pairs:
            means.append(np.mean([float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairs]))
    results = caption_cosines(texts, image_of)
    assert results["caption_cosine"] == pytest.approx(np.mean(means), abs=1e-6)
    assert caption_cosines(texts[[0, 3]], image_of[[0, 3]]) == {}  # an image with one caption each


def test_cells_are_covered_by_what_the_caption_mentions() -> None:
    whole = SimpleNamespace(visible_box=lambda *_: (0, 0, 1, 1))
    middle = SimpleNamespace(visible_box=lambda *_: (0.25, 0.25, 0.75, 0.75))
    objects = SeenObjects([MASK], [(0,), (1,), (0, 1), ()])
    data = Split(["x"] * 4, np.zeros(4, int), features=np.zeros((1, 4, 2)), objects=objects)
    for preprocess, expected in (
        (whole, [[1, 0, 0, 0], [0, 0, 0, 0.5], [1, 0, 0, 0.5], [0, 0, 0, 0]]),
        (middle, [[1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0]]),
    ):
        runtime = SimpleNamespace(grid=(2, 2), preprocess=preprocess)
        covered = mentioned_cells(cast(Any, runtime), data)
        assert covered is not None
        assert covered.tolist() == expected


def test_cells_of_uneven_size_agree_with_the_loop() -> None:
    mask = np.random.default_rng(0).integers(0, 4, (11, 9)).astype(np.uint8)
    shares = value_shares(mask, (3, 2))
    places = [(y, x) for y in range(11) for x in range(9)]
    for cell in range(6):
        inside = [mask[y, x] for y, x in places if (y * 3 // 11) * 2 + x * 2 // 9 == cell]
        for value in range(5):
            assert shares[cell, value] == pytest.approx(np.mean(np.array(inside) == value))


def test_pointing_and_mass_by_hand() -> None:
    attention = np.array([[[0.5, 0.1, 0.1, 0.3], [-0.2, 0.6, -0.4, 0.2]]])  # (1, 2, 4)
    # the last caption mentions nothing that is seen, and is left out
    covered = np.array([[1, 0, 0, 0], [0, 0, 0, 0.5], [0, 0, 0, 0]])
    results = faithfulness(attention, covered, np.zeros(3, int), np.array([0, 1, 0]))
    expected = {
        "pointing_1": 50,  # right for the first caption
        "pointing_2": 0,
        "pointing": 50,
        "pointing_chance": 25,
        "mass_1": 100 * (0.5 + 0.15) / 2,
        "mass_2": 100 * (0 + 0.25 * 0.5) / 2,  # what is negative counts as 0
        "mass": 100 * (0.5 + 0.125) / 2,
        "mass_chance": 100 * (0.25 + 0.125) / 2,
    }
    assert results == pytest.approx(expected)
    with pytest.raises(ValueError, match="no caption mentions an object"):
        faithfulness(attention, covered[2:], np.zeros(1, int), np.zeros(1, int))


def test_faithfulness_needs_masks(capsys: pytest.CaptureFixture[str]) -> None:
    sides = Views(torch.eye(4)[:, None], torch.eye(4)[:, None]), Views(torch.eye(4)[:, None])
    data = Split(["x"] * 4, np.arange(4), features=np.zeros((4, 4, 2)))
    runtime = cast(Any, SimpleNamespace(methods={"vsepp": METHOD}))
    covered = mentioned_cells(runtime, data)
    wins = {"wins_1": 100.0, "wins_entropy": 0.0}
    assert view_metrics(runtime, "vsepp", data, sides, covered) == wins
    print_views({"two": {"wins_1": 75, "wins_2": 25, "wins_entropy": 0.81, "view_cosine": 0.5}})
    printed = capsys.readouterr().out
    assert "| two 2 | 25.0 |  |  |" in printed
    assert "two: entropy of the wins 0.81 of 1.00 bits, mean cosine" in printed
    assert "two: faithfulness was not measured; it needs a mask" in printed
