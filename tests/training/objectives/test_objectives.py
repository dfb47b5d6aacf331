"""Objectives: the terms each gives, what they weigh, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import models
from models import METHODS, Method, Views
from training.objectives import OBJECTIVES, build_objective
from training.objectives.avse import dimension_wise
from training.objectives.losses import Hinge, info_nce, same_image
from training.objectives.mv_vse import best_view_loss, upper_bound_loss
from training.objectives.mvam import attention_overlap
from training.objectives.pvse import gram_diversity

IDS = torch.tensor([0, 1, 2, 1])
BATCH = len(IDS)


def views_of(name: str, **arguments: Any) -> tuple[Method, Views, Views]:
    """A method in training mode with the views of a batch."""
    torch.manual_seed(0)
    method = models.build(name, 12, 10, {"embed_dim": 8, **arguments}).train()
    mask = torch.ones(BATCH, 6, dtype=torch.bool)
    images = method.encode_image(torch.randn(BATCH, 6, 12), mask)
    return method, images, method.encode_text(torch.randn(BATCH, 6, 10), mask)


def terms_of(name: str, epoch: int = 5, **arguments: Any) -> dict[str, torch.Tensor]:
    """The terms of a method's objective with other arguments than its defaults."""
    return build_objective(name, arguments)(*views_of(name), IDS, epoch)


def test_every_method_has_an_objective_but_clip_which_comes_ready_made() -> None:
    assert OBJECTIVES.keys() == METHODS.keys() - {"clip"}
    with pytest.raises(ValueError, match=r'"clip" has no objective.*export\.clip'):
        build_objective("clip", {})


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_default_terms_are_finite_and_reach_the_weights(name: str) -> None:
    method, images, texts = views_of(name)
    terms = build_objective(name, {})(method, images, texts, IDS, 0)
    assert all(term.shape == () and torch.isfinite(term) for term in terms.values())
    torch.stack(list(terms.values())).sum().backward()
    grads = [p.grad for p in method.parameters() if p.grad is not None]
    assert all(bool(torch.isfinite(g).all()) for g in grads)
    assert any(bool(g.any()) for g in grads)


def test_mv_vse_mixes_its_two_losses() -> None:
    method, images, texts = views_of("mv_vse")
    given = method.view_scores(images, texts), same_image(IDS, IDS), Hinge(0.2)
    terms = terms_of("mv_vse", lam=0.6)
    torch.testing.assert_close(terms["max"], 0.6 * best_view_loss(*given).sum())
    torch.testing.assert_close(terms["up"], 0.4 * upper_bound_loss(*given).sum())


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("mix", {"max", "up"}),
        ("max", {"max"}),
        ("avg", {"avg"}),
        ("up", {"up"}),
        ("rough", {"up"}),
        ("released", {"upper", "lower"}),
    ],
)
@pytest.mark.parametrize("cost", ["triplet", "softmax"])
def test_mv_vse_offers_every_loss_of_its_table(loss: str, names: set[str], cost: str) -> None:
    assert terms_of("mv_vse", loss=loss, cost=cost).keys() == names


@pytest.mark.parametrize("name", ["vsepp", "vse_infty", "avse"])
def test_the_softmax_cost_is_info_nce_at_the_size_of_hinges(name: str) -> None:
    method, images, texts = views_of(name)
    terms = build_objective(name, {"cost": "softmax", "temperature": 0.2})(
        method, images, texts, IDS, 5
    )
    positives = same_image(IDS, IDS)
    mean = info_nce(method.score(images, texts), positives, 0.2)
    torch.testing.assert_close(terms["softmax"], 2 * BATCH * 0.2 * mean)
    assert terms.keys() - {"softmax"} == ({"regulariser"} if name == "avse" else set())


def test_first_epochs_sum_over_all_negatives() -> None:
    for name in ("vse_infty", "mv_vse", "avse"):
        warm, hard = (sum(terms_of(name, epoch).values()) for epoch in (0, 1))
        assert warm > hard


def test_pvse_takes_hardest_negatives_after_its_first_epochs() -> None:
    losses = [terms_of("pvse", epoch, hardest=True, released=True)["mil"] for epoch in (0, 1)]
    plain = terms_of("pvse", released=True)["mil"]
    assert losses[0] == plain
    assert losses[1] > plain


def test_pvse_weighs_its_terms() -> None:
    _, images, texts = views_of("pvse")
    sides = [v.extras["residuals"] for v in (images, texts)]
    terms = terms_of("pvse", diversity=0.3, discrepancy=0.0)
    expected = 0.3 * (gram_diversity(sides[0]) + gram_diversity(sides[1]))
    torch.testing.assert_close(terms["diversity"], expected)
    assert terms.keys() == {"mil", "diversity"}


def test_relative_weights_are_shares_of_the_ranking_loss() -> None:
    terms = terms_of("pvse", diversity=0.3, discrepancy=0.2, relative=True)
    torch.testing.assert_close(terms["diversity"], 0.3 * terms["mil"])
    torch.testing.assert_close(terms["discrepancy"], 0.2 * terms["mil"])


def test_pvse_without_pie_nets_has_no_diversity() -> None:
    terms = build_objective("pvse", {})(*views_of("pvse", views=0), IDS, 0)
    assert terms.keys() == {"mil", "discrepancy"}


@pytest.mark.parametrize(("views", "pairs"), [(2, [(0, 1)]), (3, [(0, 1), (0, 2), (1, 2)])])
def test_avse_regularises_pairs_of_views(views: int, pairs: list[tuple[int, int]]) -> None:
    method, images, texts = views_of("avse", views=views)
    terms = build_objective("avse", {"regulariser": 0.5})(method, images, texts, IDS, 1)
    groups = images.extras["groups"]
    expected = [dimension_wise(groups[:, a], groups[:, b]) for a, b in pairs]
    torch.testing.assert_close(terms["regulariser"], 0.5 * torch.stack(expected).mean())
    single = build_objective("avse", {})(*views_of("avse", views=1), IDS, 1)
    assert single.keys() == {"triplet"}


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
