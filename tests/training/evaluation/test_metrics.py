"""Metrics, view statistics, deletion and calibration against loops and the authors' code."""

import itertools
import math
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyview import models
from polyview.export.pack.calibration import Calibration, sigmoid, weighted_sum
from polyview.export.pack.validation import check
from polyview.models import Views
from polyview.models.pvse import PVSE
from polyview.training.data.split import Split, VisibleObjects
from polyview.training.evaluation import views
from polyview.training.evaluation.calibration import ask, fit, fit_logistic, measure, quantile_line
from polyview.training.evaluation.evidence import _score_sets, deletion_areas, find_mentions
from polyview.training.evaluation.kinds import kind_metrics, print_kinds, rsum_differences
from polyview.training.evaluation.metrics import (
    DRAWS,
    SEED,
    best_ranks,
    difference_of_hits,
    folded_metrics,
    image_hits,
    retrieval_metrics,
)
from polyview.training.evaluation.questions import Questions
from polyview.training.evaluation.views import caption_cosines
from tests.golden.loading import load

IMAGE_OF = np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 7, 7, 8, 9, 10, 11, 11, 12])
ALIKE = np.array([3, 3, 0, 0, 1, 1, 1, 2, 4, 4, 5, 5, 5])
CLIPS = 8


def _scores(seed: int) -> np.ndarray:
    truth = np.arange(13)[:, None] == IMAGE_OF
    return np.random.default_rng(seed).normal(size=truth.shape) + truth


def test_median_ranks_are_normalised_and_scores_without_ranks_refused() -> None:
    scores = _scores(0)
    table = retrieval_metrics(scores, IMAGE_OF)
    assert table["t2i_nmr"] == table["t2i_medr"] / 13
    assert table["i2t_nmr"] == table["i2t_medr"] / 20
    scores[3, 7] = np.nan
    with pytest.raises(ValueError, match="a score is NaN"):
        retrieval_metrics(scores, IMAGE_OF)
    with pytest.raises(ValueError, match="image 1 has no caption"):
        retrieval_metrics(np.zeros((2, 1), np.float32), np.array([0]))


def _rank_of_best(row: list[float], positives: set[int]) -> int:
    """Returns the zero-based rank of the best positive; negatives win ties."""
    best = max(row[p] for p in positives)
    return sum(value >= best for i, value in enumerate(row) if i not in positives)


def _rsum_of_draw(scores: np.ndarray, drawn: list[int]) -> float:
    """Returns the rsum of the drawn images and their captions as queries."""
    i2t, t2i = [], []
    for image in drawn:
        captions = np.flatnonzero(image == IMAGE_OF)
        i2t.append(_rank_of_best(scores[image].tolist(), set(captions.tolist())))
        t2i += [_rank_of_best(scores[:, c].tolist(), {image}) for c in captions]
    recalls = [np.mean([rank < k for rank in ranks]) for ranks in (i2t, t2i) for k in (1, 5, 10)]
    return 100 * float(sum(recalls))


@pytest.mark.parametrize("alike", [None, ALIKE], ids=["images", "groups of alike images"])
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
    assert caption_cosines(texts[[0, 3]], image_of[[0, 3]]) == {}  # one caption per image


def test_metrics_of_a_kind_use_its_captions_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight clips in four pairs, each with a caption of one kind and two of another."""
    alike, image_of = np.arange(CLIPS) // 2, np.repeat(np.arange(CLIPS), 3)
    kinds, features = ["free", "order", "order"] * CLIPS, np.zeros((CLIPS, 4, 2))
    clips = Split(["x"] * len(kinds), image_of, features=features, alike=alike, kinds=kinds)
    scores = np.random.default_rng(0).random((CLIPS, 3 * CLIPS))
    results = kind_metrics(scores, clips)
    columns = np.arange(3 * CLIPS) % 3 > 0
    alone = retrieval_metrics(scores[:, columns], image_of[columns])
    assert {name: results[f"order_{name}"] for name in alone} == alone
    assert clips.head(2).kinds == clips.kinds[:6]
    assert results["order_rsum_low"] <= alone["rsum"] <= results["order_rsum_high"]
    print_kinds({"a": results}, clips.kinds)
    assert f"| order | a | {alone['i2t_r1']:.1f} |" in capsys.readouterr().out
    # scores that do not distinguish alike clips reach half
    blind = (alike[:, None] == alike[image_of][None]).astype(float)
    knows = (np.arange(CLIPS)[:, None] == image_of[None]).astype(float)
    rows = [kind_metrics(each, clips) for each in (blind, knows)]
    for kind in ("free", "order"):
        assert [row[f"{kind}_above_alike"] for row in rows] == [50, 100]
    differences = rsum_differences(knows, blind, clips)
    better = differences["order"]
    assert list(differences) == ["", "free", "order"]
    sides = (image_hits(each, clips.image_of, clips.alike)[None] for each in (knows, blind))
    assert differences[""] == difference_of_hits(*sides)
    assert better["difference"] == pytest.approx(rows[1]["order_rsum"] - rows[0]["order_rsum"])
    assert 0 < better["low"] <= better["difference"] <= better["high"]


IMAGES, QUESTIONS = 400, 1500
KINDS = ("caption", "thing", "pair", "inserted", "gibberish", "unknown", "random")


def made_up(seed: int) -> tuple[Questions, np.ndarray]:
    """Makes questions, some without a relevant image, and scores that favour relevant images."""
    random, kinds = np.random.default_rng(seed), np.resize(KINDS, QUESTIONS)
    relevant = random.random((IMAGES, QUESTIONS)) < random.uniform(0, 0.03, QUESTIONS)
    relevant[:, np.isin(kinds, ["gibberish", "unknown", "random"])] = False
    scores = 0.1 * random.normal(size=relevant.shape) + random.uniform(0, 0.3, QUESTIONS)
    scores += relevant * random.uniform(0.1, 0.6, QUESTIONS)
    words, unknown = random.integers(1, 12, QUESTIONS), (kinds == "gibberish") * 1.0
    whole = np.ones(QUESTIONS, np.bool_)
    return Questions(kinds, kinds, relevant, whole, words, unknown), scores


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    about = {"split": "val", "command": "x", "hardware": "y", "seed": 0}
    return check(Calibration, {**fit(*made_up(0), 0), **about})


@pytest.mark.parametrize("images", [30, 150, 400])
def test_calibration_holds_for_new_questions(calibration: Calibration, images: int) -> None:
    questions, scores = made_up(1)
    query = ask(questions.select(np.arange(images), np.arange(QUESTIONS)), scores[:images])
    values = measure(calibration, query)
    assert values["ece"] <= 0.05
    assert values["ece_question"] <= 0.06
    assert values["area"] > 0.7
    assert values["refused_gibberish"] == 1
    assert values["coverage"] > 0.88
    # a better hit is never less probable
    assert (np.diff(calibration.probabilities(query.background, query.hits), axis=1) <= 1e-12).all()
    assert min(calibration.question[:2]) >= 0 >= calibration.question[3]


def test_logistic_regression_recovers_the_weights() -> None:
    random = np.random.default_rng(0)
    rows, true = random.normal(size=(40_000, 3)) * [1, 10, 0.1], (1.5, -0.2, 8.0, 0.5)
    truth = random.random(len(rows)) < sigmoid(weighted_sum(rows, true))
    results = fit_logistic(rows, truth, np.ones(len(rows)), np.array([0, 0, 1]))
    np.testing.assert_allclose(results, true, rtol=0.08)
    bound = fit_logistic(rows, truth, np.ones(len(rows)), np.array([-1, 0, 0]))
    assert bound[0] == 0 < bound[2]


def test_the_quantile_line_has_its_share_of_values_below_everywhere() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 5, 20_000)
    values = 2 * x + random.normal(size=len(x)) * 3
    line = quantile_line(x[:, None], values, np.ones(len(x)), 0.1)
    below = values < weighted_sum(x[:, None], line)
    for start in range(5):
        inside = (x >= start) & (x < start + 1)
        assert below[inside].mean() == pytest.approx(0.1, abs=0.02)


def test_relevant_images_are_removed_for_questions_without_answer() -> None:
    relevant = np.zeros((30, 2), np.bool_)
    relevant[[3, 5], 0] = True
    scores = np.linspace(0, 1, 60).reshape(30, 2)
    kinds, words = np.array(["caption", "gibberish"]), np.array([4, 4])
    questions = Questions(np.array(["a", "b"]), kinds, relevant, np.ones(2, bool), words, words * 0)
    query = ask(questions, scores)
    assert query.has_answer.tolist() == [True, False, False]
    assert query.kinds.tolist() == ["caption", "gibberish", "caption"]
    assert query.background.image_count.tolist() == [30, 30, 28]
    assert query.background.mean[2] == pytest.approx(np.delete(scores[:, 0], [3, 5]).mean())
    assert not query.is_right[2].any()
    assert query.weights[query.has_answer].sum() == pytest.approx(0.5)
    assert query.weights.sum() == pytest.approx(1)


SCORES = ("metrics_random", "metrics_correlated", "metrics_single_image", "metrics_odd_median")
EMBEDDINGS = ("pvse_eval_multi", "pvse_eval_single")
NAMES = ("r1", "r5", "r10", "medr", "meanr")
DIRECTIONS = ("i2t", "t2i")


def arrays(name: str) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in load(name).items()}


def score_views(name: str) -> np.ndarray:
    """Returns PVSE's scores of the embeddings in a golden file."""
    data = load(name)
    sides = [data[f"{side}_embeddings"].double() for side in ("image", "caption")]
    images, texts = (Views(rows if rows.dim() == 3 else rows[:, None]) for rows in sides)
    return PVSE(4, 4, 4).score(images, texts).numpy()


def owners(scores: np.ndarray) -> np.ndarray:
    """Returns the image of each caption; all images have equally many captions."""
    return np.arange(scores.shape[1]) // (scores.shape[1] // len(scores))


def ranks_of(scores: np.ndarray, direction: str) -> np.ndarray:
    image_of = owners(scores)
    if direction == "t2i":
        return best_ranks(scores.T, [np.array([i]) for i in image_of])
    return best_ranks(scores, [np.flatnonzero(image_of == i) for i in range(len(scores))])


def assert_table(metrics: dict[str, float], expected: list[float]) -> None:
    """Compares the five metrics of both directions, then rsum."""
    values = [metrics[f"{direction}_{name}"] for direction in DIRECTIONS for name in NAMES]
    assert [*values, metrics["rsum"]] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SCORES + EMBEDDINGS)
def test_golden_metrics(name: str) -> None:
    data = arrays(name)
    scores = score_views(name) if name in EMBEDDINGS else data["scores"]
    for direction, axis in (("i2t", 1), ("t2i", 0)):
        assert np.array_equal(ranks_of(scores, direction), data[f"{direction}_ranks0"])
        assert np.array_equal(scores.argmax(axis=axis), data[f"{direction}_top1"])
    expected = [*data["i2t_metrics"], *data["t2i_metrics"], float(data["rsum"])]
    assert_table(retrieval_metrics(scores, owners(scores)), expected)


def test_golden_ties_are_counted_pessimistically() -> None:
    data = arrays("metrics_ties")
    cases = {key.split(".")[0] for key in data}
    assert cases
    for case, direction in itertools.product(cases, DIRECTIONS):
        ranks = ranks_of(data[f"{case}.scores"], direction)
        assert np.array_equal(ranks, data[f"{case}.{direction}_ranks0_pessimistic"])


def test_golden_five_folds() -> None:
    data = arrays("metrics_5fold_small")
    scores = data["scores"]
    image_of, size = owners(scores), len(scores) // len(data["fold_metrics"])
    for fold, expected in enumerate(data["fold_metrics"]):
        inside = image_of // size == fold
        part = scores[fold * size : (fold + 1) * size][:, inside]
        metrics = retrieval_metrics(part, image_of[inside] - fold * size)
        assert_table(metrics, [*expected[:10], expected[12]])  # 10 and 11 are mean recalls
    mean = folded_metrics(scores, image_of, len(data["fold_metrics"]))
    assert_table(mean, [*data["mean_metrics"][:10], data["mean_metrics"][12]])
    whole = [*data["whole_i2t_metrics"], *data["whole_t2i_metrics"], float(data["whole_rsum"])]
    assert_table(retrieval_metrics(scores, image_of), whole)


DOG, BREAD = ("dog", "dogs", "puppy"), ("loaf", "loaf of bread", "loaves of bread")
# a 2 x 2 grid of 2 x 2 pixels: dogs in the first and the last cell, bread in the second
MASK = np.array([[1, 1, 0, 2], [1, 1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0]], np.uint8)


def runtime_of(box: tuple[float, ...] = (0, 0, 1, 1), **parts: Any) -> Any:
    """Returns a stand-in for a runtime whose preprocessing crops images to `box`."""
    preprocess = SimpleNamespace(visible_box=lambda *_: box)
    return SimpleNamespace(grid=(2, 2), preprocess=preprocess, **parts)


def test_view_statistics_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    corners, method = torch.eye(4), models.build("vsepp", 4, 4, {})
    images = Views(torch.stack([corners[[0, 1]], corners[[2, 2]]]))  # (2, 2, 4)
    texts = Views(corners[[0, 0, 1, 2]][:, None])  # the last ties: its first view wins
    row = views.view_statistics(method, images, texts, np.array([0, 0, 0, 1]))
    entropy = 0.75 * math.log2(4 / 3) + 0.25 * 2
    expected = {"wins_1": 75, "wins_2": 25, "wins_entropy": entropy, "view_cosine": 0.5}
    assert row == pytest.approx(expected)
    views.print_views({"two": row})  # without faithfulness
    printed = capsys.readouterr().out
    assert "two: entropy of the wins 0.81 of at most 1.00 bits, mean cosine" in printed
    assert "two: faithfulness was not measured; it needs attention maps" in printed
    assert "the winning view" not in printed


def test_the_share_of_mentioned_objects_in_each_cell() -> None:
    objects = VisibleObjects([MASK], [(0,), (1,), (0, 1, 2), ()])
    data = Split(["x"] * 4, np.zeros(4, int), features=np.zeros((1, 4, 2)), objects=objects)
    for box, expected in (
        ((0, 0, 1, 1), [[1, 0, 0, 0], [0, 0.25, 0, 0], [1, 0.25, 0, 0.25], [0, 0, 0, 0]]),
        ((0.25, 0.25, 0.75, 0.75), [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]),
        ((0.5, 0, 1, 0.5), [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]),
    ):
        covered = views.mentioned_cells(runtime_of(box), data)
        assert covered is not None
        assert covered.tolist() == expected
    mask = np.random.default_rng(0).integers(0, 4, (11, 9)).astype(np.uint8)
    shares = views.value_shares(mask, (3, 2))  # cells of uneven size
    for cell in range(6):
        inside = [mask[y, x] for y, x in np.ndindex(11, 9) if y * 3 // 11 * 2 + x * 2 // 9 == cell]
        assert shares[cell, :4] == pytest.approx(np.bincount(inside, minlength=4) / len(inside))


def test_faithfulness_needs_a_visible_object() -> None:
    row = np.zeros(1, int)
    with pytest.raises(ValueError, match="no caption mentions a visible object"):
        views.faithfulness(np.ones((1, 2, 4)), np.zeros((1, 4)), row, row)


def test_mentions_are_all_visible_objects_of_their_kind_and_no_other() -> None:
    captions = ["a puppy and a loaf of bread", "some dogs", "on the lawn", "a dog", "an animal"]
    objects = VisibleObjects(
        [MASK, np.zeros((4, 4), np.uint8)],  # nothing is visible on the second image
        [(0, 1), (0, 2), (), (0,), (0,)],
        [[DOG, BREAD, DOG], [DOG]],
    )
    images = [Image.new("RGB", (4, 4))] * 2
    data = Split(captions, np.array([0, 0, 0, 1, 1]), images, objects=objects)

    def read(text: str) -> Any:
        return SimpleNamespace(spans=[each.span() for each in re.finditer(r"\S{1,4}", text)])

    runtime = runtime_of(
        info=SimpleNamespace(image_encoder=SimpleNamespace(file="image_encoder.onnx")),
        reader=SimpleNamespace(read=read),
    )
    mentions = find_mentions(runtime, data)
    assert [(each.text, each.tokens, each.cells.tolist()) for each in mentions] == [
        (0, [1, 2], [True, False, False, True]),
        (0, [5, 6, 7, 8], [False, True, False, False]),
        (1, [1], [True, False, False, True]),
    ]


def test_areas_of_deletion_and_insertion_agree_with_the_loop() -> None:
    worth = torch.tensor([5.0, 0.0, 2.0, 1.0, 4.0])  # the first is a summary, never deleted

    def image_views(features: torch.Tensor, _: str, mask: torch.Tensor) -> Views:
        return Views((features[..., 0] * mask).sum(dim=1)[:, None, None])

    head = SimpleNamespace(score=lambda images, _: images.embeddings[:, 0])
    runtime: Any = SimpleNamespace(image_views=image_views, methods={"sum": head})
    orders = np.array([[0.1, 0.5, 0.2, 0.9], [0.9, 0.2, 0.5, 0.1]])
    score = partial(_score_sets, runtime, "sum", worth[:, None], Views(torch.ones(1, 1, 1)))
    areas, cells = deletion_areas(score, orders), worth[1:].numpy()
    for o, order in enumerate(np.argsort(-orders, axis=1)):
        sums = [cells[order[: round(4 * step / 10)]].sum() for step in range(11)]
        assert areas[0, o] == pytest.approx(np.mean([5 + cells.sum() - x for x in sums[:-1]]))
        assert areas[1, o] == pytest.approx(np.mean([5 + x for x in sums[1:]]))
