"""Everyday searches of one's own photographs, with captions as the judge.

`everyday.toml` holds 60 questions, "a dog in the snow", each with a pattern of captions. A
photograph is right for a question when at least two of its captions match: one caption alone may
be a slip. A question with fewer than five right photographs cannot fill the first five places and
does not qualify.
"""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

FIRST = 5  # places that count
AGREEING = 2  # captions of a photograph that must match
ENOUGH = 20  # qualifying questions; means over fewer are noise


@cache
def questions() -> dict[str, str]:
    """Question -> pattern."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def true_images(captions: Sequence[str], image_of: np.ndarray) -> dict[str, np.ndarray]:
    """The right photographs of each question that qualifies.

    Args:
        captions: of all photographs.
        image_of: (N_txt,) row of each caption's photograph.

    Returns:
        Question -> rows, ascending.
    """
    truth = {}
    for question, pattern in questions().items():
        match = re.compile(rf"\b({pattern})\b", re.IGNORECASE).search
        hits = image_of[[match(caption) is not None for caption in captions]]
        rows, agreeing = np.unique(hits, return_counts=True)
        if np.count_nonzero(agreeing >= AGREEING) >= FIRST:
            truth[question] = rows[agreeing >= AGREEING]
    return truth


def everyday_metrics(scores: np.ndarray, right: Sequence[np.ndarray]) -> dict[str, float]:
    """How many of the first five hits are right.

    Args:
        scores: (N_img, Q) of questions.
        right: the rows of the right photographs of each question.

    Returns:
        `p_at_5`, the mean share in 0..1; `first_right`, the share of questions whose first hit is
        right; and `questions`, their number. Of equal scores the wrong ones come first. Nothing
        where fewer than `ENOUGH` questions qualify.
    """
    if len(right) < ENOUGH:
        return {}
    shares, first = [], []
    for column, rows in zip(scores.T, right, strict=True):
        is_right = np.isin(np.arange(len(column)), rows)
        order = np.lexsort((is_right, -column))[:FIRST]
        shares.append(is_right[order].mean())
        first.append(is_right[order[0]])
    values = {"p_at_5": float(np.mean(shares)), "first_right": float(np.mean(first))}
    return values | {"questions": float(len(right))}


def print_questions(count: int) -> None:
    """Prints how many questions qualify, and whether that is enough."""
    line = f"{count} of {len(questions())} everyday questions qualify"
    print(f"{line}; P@5 and first right need {ENOUGH}" if count < ENOUGH else line)
