"""MVAM and its baselines: views, scores and losses, against loops and a float64 reading."""

import math

import pytest
import torch
from torch import Tensor

from polyview.models import Views
from polyview.models.mvam import MVAM, BaseAttention, BaseSummary, ViewCodes
from polyview.models.views import lengths_to_mask
from polyview.training.objectives import build_objective
from polyview.training.objectives.losses import info_nce
from polyview.training.objectives.mvam import attention_overlap
from tests import reference
from tests.golden.loading import check, double, grad, load
from tests.models.conftest import IMAGE_DIM, TEXT_DIM
from tests.papers.terms import IDS, by_name, encoded, terms_of, views_of

MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.fixture
def features() -> torch.Tensor:
    torch.manual_seed(9)
    return torch.randn(2, 6, 8)


def test_score_is_the_cosine_of_the_joined_views(features: torch.Tensor) -> None:
    method = MVAM(8, 8, 5, views=3, code_space="view")
    images, texts = method.encode_image(features, MASK), method.encode_text(features, MASK)
    raw = method.image_codes(method.project_image(features, MASK), MASK)[0]
    other = method.text_codes(method.project_text(features), MASK)[0]
    expected = torch.cosine_similarity(raw[0].flatten(), other[1].flatten(), dim=0)
    torch.testing.assert_close(method.score(images, texts)[0, 1], expected)
    parts = method.view_scores(images, texts)
    torch.testing.assert_close(parts.sum(dim=0), method.score(images, texts))


def test_codes_may_meet_the_features_before_the_projection(features: torch.Tensor) -> None:
    method = MVAM(8, 8, 5, views=3, code_space="encoder")
    views = method.encode_image(features, MASK, attention=True)
    assert views.attention is not None
    for b in range(2):
        real = features[b, MASK[b]]
        raw, weights = reference.attend(method.image_codes.codes, real)
        torch.testing.assert_close(views.attention[b][:, MASK[b]], weights, rtol=1e-5, atol=1e-6)
        pooled = method.project_image(raw[None], torch.ones(1, 3, dtype=torch.bool))[0]
        expected = pooled / pooled.norm()
        torch.testing.assert_close(views.embeddings[b], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="code_space must be one of view, encoder"):
        MVAM(8, 8, code_space="pixel")


def test_summary_pooling_reads_the_first_element_only(features: torch.Tensor) -> None:
    method = BaseSummary(8, 8, 5)
    other = features.clone()
    other[:, 1:] = 7.0
    first, second = (method.encode_image(x, MASK).embeddings for x in (features, other))
    assert torch.equal(first, second)
    expected = torch.tanh(method.project_image(features[:, 0]))
    torch.testing.assert_close(first[:, 0], torch.nn.functional.normalize(expected, dim=1))


def test_temperature_is_learned_on_demand() -> None:
    assert MVAM(8, 8).log_temperature is None
    learned = MVAM(8, 8, learned_temperature=0.07).log_temperature
    assert learned is not None
    assert learned.exp().item() == pytest.approx(0.07)
    with pytest.raises(ValueError, match="learned_temperature must be 0 or more"):
        MVAM(8, 8, learned_temperature=-1.0)
    with pytest.raises(ValueError, match="views must be 1 or more"):
        MVAM(8, 8, views=0)


def test_padding_has_a_finite_gradient_under_the_root() -> None:
    scores = torch.randn(2, 3, 5, requires_grad=True)
    padding = torch.tensor([False, False, False, True, True])
    attention = scores.masked_fill(padding, -torch.inf).softmax(dim=2)
    attention_overlap(attention, square_root=True).backward()
    assert torch.isfinite(grad(scores)).all()
    assert grad(scores).abs().sum() > 0


def test_mvam_weighs_both_sides_overlap() -> None:
    _, images, texts = views_of("mvam")
    maps = [v.extras["attention"] for v in (images, texts)]
    for root in (False, True):
        terms = terms_of("mvam", diversity=2.0, square_root=root)
        expected = sum(attention_overlap(m, square_root=root) for m in maps)
        torch.testing.assert_close(terms["diversity"], 2.0 * expected)


def test_a_learned_temperature_is_used_and_learned() -> None:
    losses = []
    for start in (0.0, 0.1, 1.0):
        method, images, texts = views_of("mvam", learned_temperature=start)
        loss = build_objective("mvam", {})(method, images, texts, IDS, 0)["contrastive"]
        loss.backward()
        losses.append(loss.item())
        if start:
            grad = dict(method.named_parameters())["log_temperature"].grad
            assert grad is not None
            assert grad != 0
    assert losses[0] == pytest.approx(losses[2])
    assert losses[0] != pytest.approx(losses[1])


class Case:
    """The file's inputs through two sets of view codes."""

    def __init__(self, data: dict[str, Tensor]) -> None:
        self.views: dict[str, Tensor] = {}
        self.attention: dict[str, Tensor] = {}
        self.inputs: dict[str, Tensor] = {}
        masks = {"image": torch.ones(data["image_hidden"].shape[:2]).bool()}
        masks["text"] = lengths_to_mask(data["text_lengths"], data["text_hidden"].shape[1])
        for side, mask in masks.items():
            codes = ViewCodes(*data[f"{side}_codes"].shape)
            codes.codes.data = data[f"{side}_codes"].clone()
            hidden = data[f"{side}_hidden"].requires_grad_()
            self.views[side], self.attention[side] = codes(hidden, mask)
            self.inputs |= {f"{side}_hidden": hidden, f"{side}_codes": codes.codes}
        m, dim = data["image_codes"].shape
        joined = {s: v / v.flatten(1).norm(dim=1)[:, None, None] for s, v in self.views.items()}
        self.cosine = MVAM(4, 4, dim, m).score(Views(joined["image"]), Views(joined["text"]))


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_golden_views(precision: str, tolerance: float) -> None:
    data = double(load("mvam_reference"))
    values = (
        data
        if precision == "float64"
        else {k: v.float() if v.is_floating_point() else v for k, v in data.items()}
    )
    case = Case(values)
    for side in ("image", "text"):
        check(case.attention[side], data[f"{side}_attention"], tolerance)
        check(case.views[side], data[f"{side}_views"], tolerance)
        check(case.views[side].flatten(1), data[f"{side}_repr"], tolerance)
    check(case.cosine, data["cosine"], tolerance)
    own = torch.eye(len(case.cosine), dtype=torch.bool)
    check(info_nce(case.cosine, own), data["loss_cl"], tolerance)
    check((data["loss_i2t"] + data["loss_t2i"]) / 2, data["loss_cl"], 1e-12)


@pytest.mark.parametrize("kind", ["base", "sqrt"])
def test_golden_diversity_and_totals(kind: str) -> None:
    data = double(load("mvam_reference"))
    case = Case(data)
    root = kind == "sqrt"
    for side in ("image", "text"):
        for row, expected in enumerate(data[f"div_{kind}_{side}_per_instance"]):
            item = case.attention[side][row : row + 1]
            check(attention_overlap(item, square_root=root), expected, 1e-9)
    sides = [attention_overlap(a, square_root=root) for a in case.attention.values()]
    diversity = sides[0] + sides[1]
    check(diversity, data[f"div_{kind}"], 1e-9)
    own = torch.eye(len(case.cosine), dtype=torch.bool)
    total = info_nce(case.cosine, own) + float(data["beta"]) * diversity
    check(total, data[f"loss_total_{kind}"], 1e-9)
    total.backward()
    for name, tensor in case.inputs.items():
        check(grad(tensor), data[f"grad_{name}_{kind}"], 1e-9)


@torch.no_grad()
def test_spread_is_the_entropy_of_the_attention() -> None:
    method = MVAM(IMAGE_DIM, TEXT_DIM, 8, views=4)
    images, texts = encoded(method)
    displayed = by_name(method.inside(images, texts))
    spread = displayed["attention_spread"]
    assert images.attention is not None
    assert texts.attention is not None
    for row, maps in enumerate((images.attention[0], texts.attention[0])):
        for view, weights in enumerate(maps.tolist()):
            entropy = -sum(w * math.log(w) for w in weights) / math.log(len(weights))
            assert float(spread.values[row, view]) == pytest.approx(entropy, abs=1e-5)
    codes = displayed["text_codes"].values
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
