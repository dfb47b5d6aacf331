"""Ranks, counts and the paired test, compared with naive references."""

import csv
import io
import math
from typing import Any

import numpy as np
import pytest

from polyview.export import mistakes
from polyview.export.mistakes import UNRANKED, Caption, Outcome


def test_ranks_are_those_of_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    pairs = random.integers(0, 9, (2, 90, 12)).astype(np.float32)  # with ties
    scores = dict(zip("ab", pairs, strict=True))
    right = [random.choice(12, random.integers(1, 5), replace=False).tolist() for _ in range(90)]
    captions = [Caption("", rows) for rows in right]
    for size in (90, 7):
        monkeypatch.setattr(mistakes, "BATCH_BYTES", 4 * 12 * size)
        ranks = mistakes.rank_captions(captions, "ab", 12, lambda name, part: scores[name][part])
        for q, rows in enumerate(right):
            for name, matrix in scores.items():
                order, (rank, first, _) = np.argsort(-matrix[q], kind="stable"), ranks[name]
                assert rank[q] == 1 + np.isin(order, rows).argmax()
                assert first[q] == order[0]
            higher = (pairs[:, q] > pairs[:, q, rows[0]][:, None]).all(axis=0)
            best = np.where(higher, pairs[1, q], -1).argmax() if higher.any() else -1
            assert ranks["b"][2, q] == best
    pairs[0, 3] = -np.inf
    pairs[0, 4, right[4]] = -np.inf
    ranks = mistakes.rank_captions(captions, "a", 12, lambda name, part: scores[name][part])
    rank, first, _ = ranks["a"]
    assert (rank[3], rank[4], first[3]) == (UNRANKED, UNRANKED, -1)
    pairs[0, 3, 4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        mistakes.rank_captions(captions, "a", 12, lambda name, part: scores[name][part])


def compared(
    images: list[int], kinds: list[str], a: np.ndarray, b: np.ndarray, k: int
) -> list[Outcome]:
    """Returns outcomes of captions "a dog" with one correct image each."""
    captions = [Caption("a dog", [image], kind) for image, kind in zip(images, kinds, strict=True)]
    first, second = (np.stack([ranks, np.zeros_like(ranks)]) for ranks in (a, b))
    return mistakes.compare(captions, first, second, np.full(len(a), -1), k)


def test_cells_and_kinds_add_up() -> None:
    a, b = np.random.default_rng(0).integers(1, 20, (2, 300))
    kinds = ["x" if place % 3 else "" for place in range(300)]
    outcomes = compared([*range(300)], kinds, a, b, 5)
    found, table = mistakes.summarize(outcomes), mistakes.count_by_kind(outcomes)
    pairs = list(zip(a <= 5, b <= 5, strict=True))
    for name, cell in {"both": (1, 1), "a": (1, 0), "b": (0, 1), "neither": (0, 0)}.items():
        assert found["counts"][name] == pairs.count(cell)
        assert sum(row[name] for row in table) == pairs.count(cell)
    assert [row["kind"] for row in table] == ["up to 6 words", "x"]
    assert [row["captions"] for row in table] == [100, 200]


def test_the_sign_test_is_the_binomial_tail() -> None:
    for wins, losses in ((0, 0), (1, 0), (5, 5), (3, 17), (60, 41)):
        count = wins + losses
        tail = sum(math.comb(count, i) for i in range(min(wins, losses) + 1)) / 2**count
        for pair in ((wins, losses), (losses, wins)):
            assert mistakes.sign_test(*pair) == pytest.approx(min(1, 2 * tail))


def test_the_interval_is_that_of_a_bootstrap_over_images() -> None:
    random = np.random.default_rng(0)
    labelled = np.repeat(np.arange(400), 5)
    ease = random.normal(size=(2, 400))[:, labelled]  # captions of an image are alike
    a, b = ease + 0.5 * random.normal(size=(2, 2000)) > np.array([[0.0], [1.0]])
    ranks = np.where(a, 1, 9), np.where(b, 1, 9)
    summary = mistakes.summarize(compared(labelled.tolist(), ["x"] * 2000, *ranks, 1))
    assert summary["difference"] == pytest.approx(100 * (a.mean() - b.mean()))
    gains = (a.astype(float) - b).reshape(400, 5).mean(axis=1)
    draws = 100 * gains[random.integers(400, size=(4000, 400))].mean(axis=1)
    interval = np.percentile(draws, (2.5, 97.5))
    assert (summary["low"], summary["high"]) == pytest.approx(interval, abs=0.2)
    assert summary["p"] == mistakes.sign_test(summary["counts"]["a"], summary["counts"]["b"])


def outcome(text: str, **fields: Any) -> Outcome:
    return Outcome(**{**dict.fromkeys(Outcome._fields, 1), "kind": "", "text": text, **fields})


def test_words_of_captions_and_of_wins() -> None:
    a = [outcome(text, found="a") for text in ["four dogs", "four cats", "four owls", "a dog"] * 9]
    b = [outcome(text, found="b") for text in ["a dog", "a cat", "an owl"] * 8]
    summary = mistakes.summarize([*b, *a])
    assert summary["words_a"][0] == {"word": "four", "ratio": round(27.5 / 37 / (0.5 / 25), 3)}
    assert {about["word"] for about in summary["words_b"]} == {"a", "an", "cat", "owl"}
    assert mistakes.typical_words(a, a) == []
    first, second = outcome("A dog's two-seater, a DOG", kind="x"), outcome("1, 2")
    assert first.words() == {"a", "dog's", "two-seater", "dog"}
    conditions = ("", "x", "word:DOG", "word:x")
    assert [first.matches(kind) for kind in conditions] == [True, True, True, False]
    assert [second.matches(kind) for kind in conditions] == [True, False, False, False]


def test_suspected_labels() -> None:
    above, a = np.array([-1, 5, -1]), np.array([[1, 1, 2], [4, 1, 9]])
    b = np.array([[1, 3, 1], [0, 5, 7]])
    for right, suspects in (
        ([(0, 4), (1,), (2, 2, 7)], [4, None, 7]),
        ([(0, 0), (1,), (2,)], [None, 5, None]),
    ):
        captions = [Caption("a dog", rows) for rows in right]
        assert [row.suspect for row in mistakes.compare(captions, a, b, above, 1)] == suspects


def test_a_table_never_runs_in_a_spreadsheet() -> None:
    rows = outcome("=1+1", suspect=None), outcome("a dog", found="neither", rank_a=UNRANKED)
    first, second = csv.DictReader(io.StringIO(mistakes.to_csv(rows)))
    assert (first["text"], first["rank_a"], first["suspect"]) == ("'=1+1", "1", "")
    names = ("text", "found", "rank_a", "suspect")
    assert [second[name] for name in names] == ["a dog", "neither", "", "1"]
