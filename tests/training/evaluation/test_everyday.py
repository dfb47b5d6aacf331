"""Everyday questions: which photographs are right, and how many of them come first."""

import numpy as np
import pytest

from polyview.training.evaluation.metrics import (
    ENOUGH,
    everyday_metrics,
    everyday_questions,
    everyday_truth,
)


def test_two_captions_must_agree_and_five_photographs_be_right() -> None:
    of_an_image = ["A dog runs .", "Two PUPPIES !", "a hot-dog stand", "dogged men", "a cat"]
    captions = of_an_image * 6
    image_of = np.repeat(np.arange(6), 5)
    truth = everyday_truth(
        captions, image_of
    )  # three captions name dogs, one a cat, none a catalogue
    assert {name: rows.tolist() for name, rows in truth.items()} == {"a dog": [0, 1, 2, 3, 4, 5]}
    assert everyday_truth(captions[:20], image_of[:20]) == {}


def test_there_are_sixty_questions_and_every_pattern_matches_whole_words() -> None:
    assert len(everyday_questions()) == 60
    captions = ["the people in carts", "manhattan and busy dogmas"] * 6
    assert not everyday_truth(captions, np.repeat(np.arange(6), 2))


def test_the_first_five_are_counted_and_ties_lose() -> None:
    scores = np.array([[6.0, 1], [5, 1], [4, 1], [3, 1], [2, 1], [1, 1], [0, 1]])
    right = [np.array([0, 2, 5]), np.array([0, 1, 2, 3, 4])]
    values = everyday_metrics(np.tile(scores, ENOUGH // 2), right * (ENOUGH // 2))
    # two wrong ones tie with the right ones of every second question
    assert values["p_at_5"] == pytest.approx((2 / 5 + 3 / 5) / 2)
    assert values["first_right"] == pytest.approx(0.5)
    assert values["questions"] == ENOUGH
    assert everyday_metrics(scores[:, :1], right[:1]) == {}  # one question says nothing
