"""Retrieval metrics and their intervals, against plain loops and cases worked out by hand."""

from pathlib import Path

import numpy as np
import pytest

from polyview.training.data.split import Split
from polyview.training.evaluation.kinds import kind_differences, kind_metrics, print_kinds
from polyview.training.evaluation.metrics import (
    DRAWS,
    ENOUGH,
    SEED,
    difference_of_hits,
    everyday_metrics,
    everyday_questions,
    everyday_truth,
    folded_metrics,
    image_hits,
    relevance_metrics,
    retrieval_metrics,
)
from tests import reference

IMAGE_OF = np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 7, 7, 8, 9, 10, 11, 11, 12])
ALIKE = np.array([3, 3, 0, 0, 1, 1, 1, 2, 4, 4, 5, 5, 5])
CLIPS = 8


def _scores(seed: int) -> np.ndarray:
    truth = np.arange(13)[:, None] == IMAGE_OF
    return np.random.default_rng(seed).normal(size=truth.shape) + truth


def test_captions_may_come_in_any_order_and_median_ranks_are_normalised() -> None:
    order = np.random.default_rng(1).permutation(20)
    table = retrieval_metrics(_scores(0), IMAGE_OF)
    assert retrieval_metrics(_scores(0)[:, order], IMAGE_OF[order]) == table
    assert table["t2i_nmr"] == table["t2i_medr"] / 13
    assert table["i2t_nmr"] == table["i2t_medr"] / 20


def test_folds_are_averaged() -> None:
    scores = np.random.default_rng(0).normal(size=(12, 60))
    whole = folded_metrics(scores, np.repeat(np.arange(12), 5), 2)
    parts = [
        retrieval_metrics(scores[a : a + 6, 5 * a : 5 * a + 30], np.repeat(np.arange(6), 5))
        for a in (0, 6)
    ]
    assert whole["rsum"] == pytest.approx(np.mean([part["rsum"] for part in parts]))
    with pytest.raises(ValueError, match="5 folds do not divide 13 images"):
        folded_metrics(_scores(0), IMAGE_OF, 5)


def test_r_precision_and_map_by_hand() -> None:
    scores = np.array([[0.9], [0.8], [0.7], [0.1]], np.float32)
    table = relevance_metrics(scores, [np.array([0, 2, 3])])
    assert table["t2i_rprecision"] == pytest.approx(100 * 2 / 3)
    assert table["t2i_map_at_r"] == pytest.approx(100 * (1 / 1 + 2 / 3) / 3)


def test_scores_that_have_no_ranks_are_refused() -> None:
    scores = _scores(0)
    scores[3, 7] = np.nan
    with pytest.raises(ValueError, match="a score is NaN"):
        retrieval_metrics(scores, IMAGE_OF)
    with pytest.raises(ValueError, match="image 1 has no caption"):
        retrieval_metrics(np.zeros((2, 1), np.float32), np.array([0]))


def _rsum_of_draw(scores: np.ndarray, drawn: list[int]) -> float:
    """Rsum when the queries are the drawn images and their captions, one by one."""
    i2t, t2i = [], []
    for image in drawn:
        captions = np.flatnonzero(image == IMAGE_OF)
        i2t.append(reference.rank_of_best(scores[image].tolist(), set(captions.tolist())))
        t2i += [reference.rank_of_best(scores[:, c].tolist(), {image}) for c in captions]
    recalls = [np.mean([rank < k for rank in ranks]) for ranks in (i2t, t2i) for k in (1, 5, 10)]
    return 100 * float(sum(recalls))


@pytest.mark.parametrize("alike", [None, ALIKE], ids=["one by one", "alike ones together"])
def test_bootstrap_agrees_with_the_loop(alike: np.ndarray | None) -> None:
    a, b = _scores(0), _scores(1)
    first, second = (image_hits(scores, IMAGE_OF, alike)[None] for scores in (a, b))
    results = difference_of_hits(first, second)
    group = np.arange(13) if alike is None else alike
    groups = int(group.max()) + 1
    random = np.random.default_rng(SEED)
    differences = []
    for counts in random.multinomial(groups, np.full(groups, 1 / groups), size=DRAWS):
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


def test_two_captions_must_agree_and_five_photographs_be_right() -> None:
    of_an_image = ["A dog runs .", "Two PUPPIES !", "a hot-dog stand", "dogged men", "a cat"]
    captions, image_of = of_an_image * 6, np.repeat(np.arange(6), 5)
    truth = everyday_truth(captions, image_of)  # three name dogs, one a cat, none a catalogue
    assert {name: rows.tolist() for name, rows in truth.items()} == {"a dog": [0, 1, 2, 3, 4, 5]}
    assert everyday_truth(captions[:20], image_of[:20]) == {}
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


@pytest.fixture
def clips() -> Split:
    """Eight clips in four pairs, each with a caption of one kind and two of another."""
    return Split(
        ["x"] * (3 * CLIPS),
        np.repeat(np.arange(CLIPS), 3),
        features=np.zeros((CLIPS, 4, 2)),
        folder=Path("clips/test"),
        alike=np.arange(CLIPS) // 2,
        kinds=["free", "order", "order"] * CLIPS,
    )


def test_a_kind_is_measured_as_if_it_stood_alone(
    clips: Split, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = np.random.default_rng(0).random((CLIPS, 3 * CLIPS))
    results = kind_metrics(scores, clips)
    columns = np.arange(3 * CLIPS) % 3 > 0
    alone = retrieval_metrics(scores[:, columns], clips.image_of[columns])
    assert {name: results[f"order_{name}"] for name in alone} == alone
    assert clips.first(2).kinds == clips.kinds[:6]
    assert results["order_rsum_low"] <= alone["rsum"] <= results["order_rsum_high"]
    print_kinds({"a": results}, ["free", "order"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert f"| order | a | {alone['i2t_r1']:.1f} |" in lines[3]


def test_a_method_that_cannot_tell_alike_clips_apart_gets_half(clips: Split) -> None:
    assert clips.alike is not None
    blind = (clips.alike[:, None] == clips.alike[clips.image_of][None]).astype(float)
    knows = (np.arange(CLIPS)[:, None] == clips.image_of[None]).astype(float)
    for scores, share in ((blind, 50.0), (knows, 100.0)):
        results = kind_metrics(scores, clips)
        assert (results["free_above_alike"], results["order_above_alike"]) == (share, share)
    better = kind_differences(knows, blind, clips)["order"]
    assert better["difference"] == pytest.approx(
        kind_metrics(knows, clips)["order_rsum"] - kind_metrics(blind, clips)["order_rsum"]
    )
    assert 0 < better["low"] <= better["difference"] <= better["high"]
