"""MVAM and its baselines: views, scores and losses against the equations in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from polyview.models import Views
from polyview.models.layers import l2_normalize
from polyview.models.mvam import MVAM, BaseAttention, BaseSummary, ViewCodes
from polyview.models.views import lengths_to_mask
from polyview.training.objectives.losses import info_nce
from polyview.training.objectives.mvam import attention_overlap
from tests.golden.loading import check, double, grad, load
from tests.models.conftest import HOLES, IMAGE_DIM, TEXT_DIM, encoded
from tests.papers.conftest import by_name, terms_of, views_of


@pytest.fixture
def features() -> Tensor:
    return torch.randn(2, 6, 8)


def test_score_is_the_cosine_of_the_joined_views(features: Tensor) -> None:
    method = MVAM(8, 8, 5, views=3, code_space="view")
    images, texts = method.encode_image(features, HOLES), method.encode_text(features, HOLES)
    projected, words = method.project_image(features, HOLES), method.project_text(features)
    raw = method.image_codes(projected, HOLES, projected)[0]
    other = method.text_codes(words, HOLES, words)[0]
    expected = torch.cosine_similarity(raw[0].flatten(), other[1].flatten(), dim=0)
    torch.testing.assert_close(method.score(images, texts)[0, 1], expected)
    parts = method.view_scores(images, texts)
    torch.testing.assert_close(parts.sum(dim=0), method.score(images, texts))


def test_codes_in_encoder_space_attend_before_the_projection(features: Tensor) -> None:
    method = MVAM(8, 8, 5, views=3, code_space="encoder")
    views: Any = method.encode_image(features, HOLES, attention=True)
    for row in range(2):
        real = features[row : row + 1, HOLES[row]]
        every = torch.ones(real.shape[:2], dtype=torch.bool)
        raw, weights = method.image_codes(real, every, real)
        torch.testing.assert_close(views.attention[row][:, HOLES[row]], weights[0])
        pooled = method.project_image(raw, torch.ones(1, 3, dtype=torch.bool))[0]
        torch.testing.assert_close(views.embeddings[row], pooled / pooled.norm())


def test_summary_pooling_uses_the_first_element(features: Tensor) -> None:
    method = BaseSummary(8, 8, 5)
    expected = l2_normalize(torch.tanh(method.project_image(features[:, 0])))
    torch.testing.assert_close(method.encode_image(features, HOLES).embeddings[:, 0], expected)


def test_the_diversity_term_weighs_the_overlap_of_both_sides() -> None:
    maps = [views.extras["attention"] for views in views_of("mvam")[1:]]
    for root in (False, True):
        terms = terms_of("mvam", diversity=2.0, square_root=root)
        expected = sum(attention_overlap(m, square_root=root) for m in maps)
        torch.testing.assert_close(terms["diversity"], 2.0 * expected)


def test_a_learned_temperature_is_used_and_learned() -> None:
    losses = []
    for start in (0.0, 1.0, 0.1):
        made = method, *_ = views_of("mvam", learned_temperature=start)
        loss = terms_of("mvam", made=made)["contrastive"]
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0] != pytest.approx(losses[2])
    learned = method.get_parameter("log_temperature")
    assert learned.exp().item() == pytest.approx(0.1)
    assert grad(learned) != 0


@pytest.mark.parametrize("kind", ["base", "sqrt"])
def test_golden_views_and_losses(kind: str) -> None:
    data, root = double(load("mvam_reference")), kind == "sqrt"
    masks = {
        "image": torch.ones(data["image_hidden"].shape[:2]).bool(),
        "text": lengths_to_mask(data["text_lengths"], data["text_hidden"].shape[1]),
    }
    inputs: dict[str, Tensor] = {}
    joined, overlaps = [], []
    for side, mask in masks.items():
        codes = ViewCodes(*data[f"{side}_codes"].shape).double()
        codes.load_state_dict({"codes": data[f"{side}_codes"]})
        hidden = data[f"{side}_hidden"].requires_grad_()
        inputs |= {f"{side}_hidden": hidden, f"{side}_codes": codes.codes}
        views, attention = codes(hidden, mask, hidden)
        check(attention, data[f"{side}_attention"], 1e-9)
        check(views, data[f"{side}_views"], 1e-9)
        joined.append(Views(views / views.flatten(1).norm(dim=1)[:, None, None]))
        overlaps.append(attention_overlap(attention, square_root=root))
    diversity = overlaps[0] + overlaps[1]
    check(diversity, data[f"div_{kind}"], 1e-9)
    count, dim = data["image_codes"].shape
    cosine = MVAM(4, 4, dim, count).score(*joined)
    check(cosine, data["cosine"], 1e-9)
    contrastive = info_nce(cosine, torch.eye(len(cosine), dtype=torch.bool))
    check(contrastive, data["loss_cl"], 1e-9)
    total = contrastive + float(data["beta"]) * diversity
    check(total, data[f"loss_total_{kind}"], 1e-9)
    total.backward()
    for name, tensor in inputs.items():
        check(grad(tensor), data[f"grad_{name}_{kind}"], 1e-9)


@torch.no_grad()
def test_spread_is_the_entropy_of_the_attention() -> None:
    method = MVAM(IMAGE_DIM, TEXT_DIM, 8, views=4)
    images, texts = encoded(method)
    displayed = by_name(method.inside(images, texts))
    spread = displayed["attention_spread"]
    for row, maps in enumerate((images.attention, texts.attention)):
        assert maps is not None
        for view, weights in enumerate(maps[0].tolist()):
            entropy = -sum(w * math.log(w) for w in weights) / math.log(len(weights))
            assert float(spread.values[row, view]) == pytest.approx(entropy, abs=1e-5)
    codes = method.text_codes.codes
    cosine = torch.cosine_similarity(codes[1], codes[3], dim=0)
    torch.testing.assert_close(displayed["text_codes"].values[1, 3], cosine)
    alone = BaseAttention(IMAGE_DIM, TEXT_DIM, 8)  # one code has no similarities, only a spread
    (spread,) = alone.inside(*encoded(alone, words=1))
    assert spread.values[1].tolist() == [0.0]  # the entropy of one word
