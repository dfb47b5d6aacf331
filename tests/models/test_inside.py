"""What methods show of themselves agrees with what they compute."""

import math

import pytest
import torch

from models import Method, Views
from models.avse import AVSE
from models.mv_vse import MVVSE
from models.mvam import MVAM, BaseAttention
from models.panel import Knob, Panel
from models.pvse import PVSE
from models.vse_infty import VSEInfinity
from tests import reference
from tests.models import conftest
from tests.models.conftest import IMAGE_DIM, TEXT_DIM


def encoded(method: Method, words: int = 6) -> tuple[Views, Views]:
    return conftest.encoded(method, count=1, cells=20, words=words)


def by_title(panels: list[Panel]) -> dict[str, Panel]:
    found = {panel.title: panel for panel in panels}
    assert len(found) == len(panels)
    return found


@torch.no_grad()
def test_every_method_answers_with_finite_panels(method: Method) -> None:
    images, texts = encoded(method)
    for panels in (method.inside(images), method.inside(images, texts)):
        for panel in panels:
            assert bool(panel.values.isfinite().all())
            for row, column in panel.marks:
                assert row < len(panel.rows)
                assert column < len(panel.columns)
            if panel.limits is not None:
                low, high = panel.limits
                assert low - 1e-5 <= float(panel.values.min())
                assert float(panel.values.max()) <= high + 1e-5


@torch.no_grad()
def test_the_pooling_curve_is_that_of_the_sets_size() -> None:
    method = VSEInfinity(IMAGE_DIM, TEXT_DIM, 16)
    picture, text = method.inside(*encoded(method))
    assert (len(picture.columns), len(text.columns)) == (20, 6)
    torch.testing.assert_close(picture.values.sum(dim=1), torch.ones(1))
    expected = method.pool_image.coefficients(torch.tensor([20]))
    torch.testing.assert_close(picture.values, expected)
    assert "of 20 values" in picture.meaning


@torch.no_grad()
def test_every_view_has_its_own_curve() -> None:
    method = MVVSE(IMAGE_DIM, TEXT_DIM, 16)
    picture, text = method.inside(*encoded(method))
    assert picture.rows == ("view 1", "view 2", "view 3")
    assert not torch.allclose(picture.values[0], picture.values[1], atol=1e-5)
    assert text.rows == ("text",)


@torch.no_grad()
def test_the_marked_pair_is_the_score() -> None:
    method = PVSE(IMAGE_DIM, TEXT_DIM, 16, views=3)
    images, texts = encoded(method)
    (grid,) = method.inside(images, texts)
    assert tuple(grid.values.shape) == (3, 3)
    ((row, column),) = grid.marks
    assert grid.values[row, column] == method.score(images, texts)[0, 0]
    assert grid.values[1, 2] == pytest.approx(
        float(images.embeddings[0, 1] @ texts.embeddings[0, 2]), abs=1e-6
    )
    assert method.inside(images) == []


@torch.no_grad()
def test_the_plan_and_the_scores_are_those_of_the_matching() -> None:
    method = AVSE(IMAGE_DIM, TEXT_DIM, 16, block_dim=4, temperature=0.5)
    images, texts = encoded(method)
    shown = by_title(method.inside(images, texts))
    affinity, plan = shown["Affinity of blocks"], shown["Sinkhorn plan"]
    assert tuple(affinity.values.shape) == (8, 4)
    assert affinity.rows[5] == "view 2, block 2"
    assert not affinity.marks
    torch.testing.assert_close(plan.values.sum(dim=0), torch.tensor([1.0, 1, 1, 1, 8]))
    expected = torch.tensor(reference.sinkhorn(affinity.values / 0.5, 0.0, 20))
    torch.testing.assert_close(plan.values, expected, rtol=1e-4, atol=1e-5)
    score = float(method.score(images, texts))
    assert sum(float(plan.values[cell]) for cell in plan.marks) == pytest.approx(score, abs=1e-5)
    assert float(shown["Score by Sinkhorn, 20 iterations"].values) == pytest.approx(score, abs=1e-5)
    best = float(affinity.values.amax(dim=0).sum())
    assert float(shown["Score by MaxSim"].values) == pytest.approx(best)


@torch.no_grad()
def test_the_readers_settings_reach_the_plan_only() -> None:
    method = AVSE(IMAGE_DIM, TEXT_DIM, 16, block_dim=4)
    images, texts = encoded(method)
    before = method.score(images, texts)
    once = by_title(method.inside(images, texts, {"iterations": 1}))
    expected = torch.tensor(reference.sinkhorn(once["Affinity of blocks"].values, 0.0, 1))
    torch.testing.assert_close(once["Sinkhorn plan"].values, expected, rtol=1e-4, atol=1e-5)
    maxsim = by_title(method.inside(images, texts, {"match": "maxsim"}))
    assert "Sinkhorn plan" not in maxsim
    marked = maxsim["Affinity of blocks"]
    total = sum(float(marked.values[cell]) for cell in marked.marks)
    assert total == pytest.approx(float(maxsim["Score by MaxSim"].values))
    assert torch.equal(method.score(images, texts), before)
    with pytest.raises(ValueError, match="match must be one of sinkhorn, maxsim, not"):
        method.inside(images, texts, {"match": "hungarian"})


def test_without_a_dustbin_there_is_nothing_to_choose() -> None:
    method = AVSE(IMAGE_DIM, TEXT_DIM, 16, match="maxsim")
    assert method.knobs == ()
    shown = by_title(method.inside(*encoded(method)))
    assert shown["Affinity of blocks"].marks
    assert "Sinkhorn plan" not in shown


@torch.no_grad()
def test_spread_is_the_entropy_of_the_attention() -> None:
    method = MVAM(IMAGE_DIM, TEXT_DIM, 8, views=4)
    images, texts = encoded(method)
    shown = by_title(method.inside(images, texts))
    spread = shown["Spread of each view's attention"]
    assert images.attention is not None
    assert texts.attention is not None
    for row, maps in enumerate((images.attention[0], texts.attention[0])):
        for view, weights in enumerate(maps.tolist()):
            entropy = -sum(w * math.log(w) for w in weights) / math.log(len(weights))
            assert float(spread.values[row, view]) == pytest.approx(entropy, abs=1e-5)
    codes = shown["The text's view codes"].values
    a, b = method.text_codes.codes[1], method.text_codes.codes[3]
    assert float(codes[1, 3]) == pytest.approx(
        float(torch.cosine_similarity(a, b, dim=0)), abs=1e-5
    )


@torch.no_grad()
def test_one_code_has_nothing_to_compare_but_its_spread() -> None:
    method = BaseAttention(IMAGE_DIM, TEXT_DIM, 8)
    (spread,) = method.inside(*encoded(method, words=1))
    assert tuple(spread.values.shape) == (2, 1)
    assert float(spread.values[1, 0]) == 0.0  # one word: nothing to spread over


@pytest.mark.parametrize("value", [0, 51, 2.5, True, "three", None])
def test_a_number_out_of_range_is_refused(value: object) -> None:
    knob = Knob("iterations", "Iterations", 20, low=1, high=50)
    assert knob.read({}) == 20
    with pytest.raises(ValueError, match="iterations must be a whole number from 1 to 50"):
        knob.read({"iterations": value})  # type: ignore[dict-item]


def test_panels_refuse_values_without_names() -> None:
    with pytest.raises(ValueError, match='"x" names'):
        Panel("matrix", "x", "", torch.zeros(2, 2), ("a", "b"), ("a",))
