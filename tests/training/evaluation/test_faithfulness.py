"""View faithfulness against plain loops and cases worked out by hand."""

import numpy as np
import pytest

from polyview.training.data.split import SeenObjects
from polyview.training.evaluation.faithfulness import faithfulness, mentioned_shares, value_shares

# a 2 x 2 grid of 2 x 2 pixels: object 0 fills the first cell, object 1 half of the last
MASK = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 2, 2], [0, 0, 0, 0]], np.uint8)


def test_cells_are_covered_by_what_the_caption_mentions() -> None:
    objects = SeenObjects([MASK], [(0,), (1,), (0, 1), ()])
    covered = mentioned_shares(objects, np.zeros(4, int), (2, 2))
    assert covered.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0.5], [1, 0, 0, 0.5], [0, 0, 0, 0]]


def test_cells_of_uneven_size_agree_with_the_loop() -> None:
    mask = np.random.default_rng(0).integers(0, 4, (11, 9)).astype(np.uint8)
    shares = value_shares(mask, (3, 2))
    for cell in range(6):
        inside = [
            mask[y, x]
            for y in range(11)
            for x in range(9)
            if (y * 3 // 11) * 2 + x * 2 // 9 == cell
        ]
        for value in range(5):
            assert shares[cell, value] == pytest.approx(np.mean(np.array(inside) == value))


def test_pointing_and_mass_by_hand() -> None:
    attention = np.array([[[0.5, 0.1, 0.1, 0.3], [-0.2, 0.6, -0.4, 0.2]]])  # (1, 2, 4)
    covered = np.array([[1, 0, 0, 0], [0, 0, 0, 0.5]])
    results = faithfulness(attention, covered, np.zeros(2, int), np.array([0, 1]))
    assert results == pytest.approx(
        {
            "pointing_1": 50,  # right for the first caption
            "pointing_2": 0,
            "pointing": 50,
            "pointing_chance": 25,
            "mass_1": 100 * (0.5 + 0.15) / 2,
            "mass_2": 100 * (0 + 0.25 * 0.5) / 2,  # what is negative counts as 0
            "mass": 100 * (0.5 + 0.125) / 2,
            "mass_chance": 100 * (0.25 + 0.125) / 2,
        }
    )


def test_captions_that_mention_nothing_seen_are_left_out() -> None:
    attention = np.array([[[0.7, 0.1, 0.1, 0.1]]])
    covered = np.array([[1.0, 0, 0, 0], [0, 0, 0, 0]])
    results = faithfulness(attention, covered, np.zeros(2, int), np.zeros(2, int))
    assert (results["pointing"], results["pointing_chance"]) == (100, 25)
    with pytest.raises(ValueError, match="no caption mentions an object"):
        faithfulness(attention, covered[1:], np.zeros(1, int), np.zeros(1, int))
