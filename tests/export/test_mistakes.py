"""Ranks, counts and the paired test, beside naive references."""

import csv
import io
import math
from collections.abc import Sequence

import numpy as np
import pytest

from polyview.export import mistakes


def test_ranks_are_those_of_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    pairs = random.integers(0, 9, (2, 12, 90)).astype(np.float32)  # with ties
    scores = dict(zip("ab", pairs, strict=True))
    right = [np.sort(random.choice(12, random.integers(1, 5), replace=False)) for _ in range(90)]
    labelled = np.array([random.choice(rows) for rows in right])
    captions = mistakes.Captions([""] * 90, labelled, right, [None] * 90)

    def part_of(name: str, rows: np.ndarray, part: slice) -> np.ndarray:
        return scores[name][rows, part]

    for size in (12, 5):
        monkeypatch.setattr(mistakes, "PART_BYTES", 4 * 90 * size)
        ranks, above = mistakes.rank_captions(captions, ["a", "b"], 12, part_of)
        for q, rows in enumerate(right):
            for name, matrix in scores.items():
                order = np.argsort(-matrix[:, q], kind="stable").tolist()
                assert ranks[name].rank[q] == 1 + min(order.index(row) for row in rows)
                assert ranks[name].first[q] == order[0]
            higher = (pairs[:, :, q] > pairs[:, labelled[q], q][:, None]).all(axis=0)
            best = np.where(higher, pairs[1, :, q], -1).argmax() if higher.any() else -1
            assert above[q] == best
    pairs[0, 3, 4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        mistakes.rank_captions(captions, ["a", "b"], 12, part_of)


def ranked(ranks: np.ndarray) -> mistakes.Ranks:
    return mistakes.Ranks(ranks, np.zeros_like(ranks))


def described(labelled: np.ndarray, kinds: Sequence[str | None]) -> mistakes.Captions:
    return mistakes.Captions(["a dog"] * len(labelled), labelled, list(labelled[:, None]), kinds)


def pair(captions: mistakes.Captions, a: np.ndarray, b: np.ndarray, k: int) -> mistakes.Pair:
    return mistakes.Pair(captions, ranked(a), ranked(b), k, np.full(len(a), -1))


def test_cells_and_kinds_add_up() -> None:
    a, b = np.random.default_rng(0).integers(1, 20, (2, 300))
    kinds = ["x" if place % 3 else None for place in range(300)]
    found = pair(described(np.arange(300), kinds), a, b, 5).summary()
    pairs = list(zip(a <= 5, b <= 5, strict=True))
    for name, cell in {"both": (1, 1), "a": (1, 0), "b": (0, 1), "neither": (0, 0)}.items():
        assert found["counts"][name] == pairs.count(cell)
        assert sum(row[name] for row in found["kinds"]) == pairs.count(cell)
    assert [row["kind"] for row in found["kinds"]] == ["up to 6 words", "x"]
    assert [row["captions"] for row in found["kinds"]] == [100, 200]


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 5), (3, 17), (60, 41)])
def test_the_sign_test_is_the_binomial_tail(wins: int, losses: int) -> None:
    count, least = wins + losses, min(wins, losses)
    tail = sum(math.comb(count, i) for i in range(least + 1)) / 2**count
    assert mistakes.sign_test(wins, losses) == pytest.approx(min(1, 2 * tail))
    assert mistakes.sign_test(losses, wins) == mistakes.sign_test(wins, losses)


def test_the_interval_is_that_of_a_bootstrap_over_images() -> None:
    random = np.random.default_rng(0)
    labelled = np.repeat(np.arange(400), 5)
    ease = random.normal(size=(2, 400))[:, labelled]  # captions of an image are alike
    a, b = (
        own + 0.5 * random.normal(size=2000) > level
        for own, level in zip(ease, (0.0, 0.3), strict=True)
    )
    captions = described(labelled, ["x"] * 2000)
    found = pair(captions, np.where(a, 1, 9), np.where(b, 1, 9), 1).summary()
    assert found["difference"] == pytest.approx(100 * (a.mean() - b.mean()))
    gains = (a.astype(float) - b).reshape(400, 5).mean(axis=1)
    draws = 100 * gains[random.integers(400, size=(4000, 400))].mean(axis=1)
    assert (found["low"], found["high"]) == pytest.approx(
        np.percentile(draws, (2.5, 97.5)), abs=0.2
    )
    assert found["p"] == mistakes.sign_test(found["counts"]["a"], found["counts"]["b"])


def test_words_of_wins() -> None:
    a = [frozenset(text.split()) for text in ["four dogs", "four cats", "four owls", "a dog"] * 9]
    b = [frozenset(text.split()) for text in ["a dog", "a cat", "an owl"] * 12]
    ahead, behind = mistakes.contrast(a, b)
    assert ahead[0] == {"word": "four", "a": 27, "b": 0, "ratio": 27.5 / 0.5}
    assert {about["word"] for about in behind} == {"a", "an", "cat", "owl"}
    assert all(about["ratio"] < 1 for about in behind)
    assert mistakes.contrast(a, a) == ([], [])


def test_words_of_a_caption() -> None:
    texts = ["A dog's two-seater, a DOG", "1, 2"]
    captions = mistakes.Captions(texts, np.array([0, 0]), [np.array([0])] * 2, [None, None])
    assert captions.words(0) == {"a", "dog's", "two-seater", "dog"}
    assert captions.words(1) == {"1", "2"}
    assert captions.of_kind("word:DOG").tolist() == [0]
    assert captions.of_kind("up to 6 words").tolist() == [0, 1]


def test_suspected_labels() -> None:
    labelled, kinds, above = np.array([0, 1, 2]), ["x"] * 3, np.array([-1, 5, -1])
    right = [np.array([0, 4]), np.array([1]), np.array([2, 7])]
    a = mistakes.Ranks(np.array([1, 1, 2]), np.array([4, 1, 9]))
    b = mistakes.Ranks(np.array([1, 3, 1]), np.array([0, 5, 7]))
    exact = mistakes.Captions(["a"] * 3, labelled, right, kinds)
    assert mistakes.Pair(exact, a, b, 1, above).suspects.tolist() == [4, -1, 7]
    others = mistakes.Pair(described(labelled, kinds), a, b, 1, above)
    assert others.suspects.tolist() == [-1, 5, -1]


def test_a_table_never_runs_in_a_spreadsheet() -> None:
    right = [np.array([0]), np.array([1])]
    captions = mistakes.Captions(["=1+1", "a dog"], np.array([0, 1]), right, ["x"] * 2)
    a = mistakes.Ranks(np.array([1, mistakes.UNRANKED]), np.array([0, 1]))
    table = mistakes.Pair(captions, a, a, 1, np.array([-1, 3])).rows([0, 1])
    first, second = csv.DictReader(io.StringIO(mistakes.to_csv(table)))
    assert (first["text"], first["found"], first["rank_a"], first["suspect"]) == (
        "'=1+1",
        "both",
        "1",
        "",
    )
    assert (second["text"], second["found"], second["rank_a"], second["suspect"]) == (
        "a dog",
        "neither",
        "",
        "3",
    )
