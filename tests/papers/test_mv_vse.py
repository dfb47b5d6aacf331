"""MV-VSE: views, scores and losses, against loops, official GPOs and the release."""

import functools
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from polyview.models import Views
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.gpo import GPO
from polyview.models.layers import l2_normalize
from polyview.models.mv_vse import MVVSE, MVVSEConfig
from polyview.models.views import lengths_to_mask
from polyview.training.objectives import build_objective
from polyview.training.objectives.losses import (
    Cost,
    Hinge,
    Softmax,
    best_view_loss,
    each_view_loss,
    released_losses,
    same_image,
    shared_scores,
    upper_bound_loss,
)
from tests import reference
from tests.golden.loading import check, grad, load, load_weights, released_gpo, renamed
from tests.models.conftest import IMAGE_DIM, TEXT_DIM
from tests.papers.terms import IDS, encoded, terms_of, views_of


@pytest.fixture
def features() -> torch.Tensor:
    torch.manual_seed(4)
    return torch.randn(2, 6, 10)


MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.mark.parametrize("own", [False, True])
def test_views_equal_the_loop(features: torch.Tensor, own: bool) -> None:
    method = MVVSE(10, 8, MVVSEConfig(8, own_projections=own))
    assert len(method.project_image) == (3 if own else 1)
    with torch.no_grad():
        views = method.encode_image(features, MASK).embeddings
        for b in range(2):
            for k, pool in enumerate(method.pool_image):
                projected = method.project_image[k if own else 0](features, MASK)
                pooled = reference.gpo_pool(cast("GPO", pool), projected[b, MASK[b]])
                expected = l2_normalize(pooled)
                torch.testing.assert_close(views[b, k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("aggregator", "pool"),
    [("mean", lambda x: x.mean(dim=0)), ("released", lambda x: x.amax(dim=0))],
)
def test_other_aggregators(features: torch.Tensor, aggregator: str, pool: object) -> None:
    method = MVVSE(10, 8, MVVSEConfig(8, views=2, aggregator=aggregator))
    views = method.encode_image(features, MASK).embeddings
    for k, project in enumerate(method.project_image):
        projected = project(features, MASK)
        expected = l2_normalize(pool(projected[1, MASK[1]]))  # type: ignore[operator]
        torch.testing.assert_close(views[1, k], expected)
    assert not torch.allclose(views[:, 0], views[:, 1])


def test_the_released_text_is_its_last_word() -> None:
    words = torch.randn(2, 6, 8)
    text = MVVSE(10, 8, MVVSEConfig(8, aggregator="released")).encode_text(words, MASK).embeddings
    torch.testing.assert_close(text[:, 0], l2_normalize(words[[0, 1], [5, 3]]))


def test_attention_is_the_cosine_of_each_cell(features: torch.Tensor) -> None:
    method = MVVSE(10, 8, MVVSEConfig(8, views=2, own_projections=True))
    views = method.encode_image(features, MASK, attention=True)
    assert views.attention is not None
    for k in range(2):
        projected = method.project_image[k](features, MASK)
        for n in (0, 2, 3):
            cosine = torch.cosine_similarity(projected[1, n], views.embeddings[1, k], dim=0)
            torch.testing.assert_close(views.attention[1, k, n], cosine)


def scores_of(seed: int, views: int = 3, batch: int = 6) -> torch.Tensor:
    return torch.rand(views, batch, batch, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 1, 1], [4, 4, 4, 4, 4, 4]])
def test_hinge_forms_equal_the_loop(ids: list[int]) -> None:
    scores, tensor, cost = scores_of(0), torch.tensor(ids), Hinge(0.2)
    own = same_image(tensor, tensor)
    expected = reference.view_losses(scores, ids, 0.2)
    got = {
        "max": best_view_loss(scores, own, cost),
        "avg": each_view_loss(scores, own, cost),
        "up": upper_bound_loss(scores, own, cost),
        "rough": upper_bound_loss(scores, own, cost, rough=True),
    }
    for name, loss in got.items():
        assert loss.tolist() == pytest.approx(expected[name], abs=1e-5), name


def test_mv_vse_mixes_its_two_losses() -> None:
    method, images, texts = views_of("mv_vse")
    values = method.view_scores(images, texts), same_image(IDS, IDS), Hinge(0.2)
    terms = terms_of("mv_vse", lam=0.6)
    torch.testing.assert_close(terms["max"], 0.6 * best_view_loss(*values).sum())
    torch.testing.assert_close(terms["up"], 0.4 * upper_bound_loss(*values).sum())


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


FILES = ("mvvse_losses_a", "mvvse_losses_b", "mvvse_losses_single")
PAPER: dict[str, Callable[[Tensor, Tensor, Cost], Tensor]] = {
    "max": best_view_loss,
    "avg": each_view_loss,
    "up": upper_bound_loss,
    "rough": functools.partial(upper_bound_loss, rough=True),
}


def dot_scores(views: Tensor, texts: Tensor) -> Tensor:
    """(K, B, D), (B, D) -> (K, B, B), for embeddings taken as they are."""
    return torch.einsum("kbd,td->kbt", views, texts)


def cosines(views: Tensor, texts: Tensor) -> Tensor:
    """The same through Eq. (5)."""
    return dot_scores(
        nn.functional.normalize(views, dim=-1), nn.functional.normalize(texts, dim=-1)
    )


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [*PAPER, "combined"])
def test_golden_paper_losses(name: str, kind: str) -> None:
    data = load(name)
    views, texts = data["view_embeddings"].double(), data["text_embeddings"].double()
    own = torch.eye(len(texts), dtype=torch.bool)
    cost, lam = Hinge(float(data["margin"])), float(data["lam"])
    for suffix, score in (("", cosines), ("_dot", dot_scores)):
        views, texts = views.detach().requires_grad_(), texts.detach().requires_grad_()
        scores = score(views, texts)
        if kind == "combined":  # Eq. (15)
            values = scores, own, cost
            loss = lam * best_view_loss(*values) + (1 - lam) * upper_bound_loss(*values)
        else:
            loss = PAPER[kind](scores, own, cost)
        # unit length holds to float32 only, so that the dot products differ from cosines by 1e-7
        tolerance = 1e-6 if suffix else 1e-9
        check(loss, data[f"paper_{kind}_per_pair"], tolerance)
        check(loss.sum(), data[f"paper_{kind}_sum"], tolerance)
        loss.sum().backward()
        check(grad(views), data[f"paper_{kind}_grad_views_of_sum{suffix}"], 1e-9)
        check(grad(texts), data[f"paper_{kind}_grad_text_of_sum{suffix}"], 1e-9)


@pytest.mark.parametrize("name", FILES)
def test_golden_scores_and_indicators(name: str) -> None:
    data = load(name)
    scores = cosines(data["view_embeddings"].double(), data["text_embeddings"].double())
    check(scores, data["view_scores"], 1e-9)
    best = scores.amax(dim=0)
    check(best, data["max_scores"], 1e-9)
    # Eqs. (11)-(12) hold exactly where the hinge of the best view is active
    cost, others = Hinge(float(data["margin"])), torch.eye(len(best)).bool()
    left = best.masked_fill(others, -torch.inf)
    for side, rivals in (("text", left), ("image", left.mT)):
        active = (cost(best.diagonal(), rivals) > 0)[:, 0]
        assert torch.equal(active, data[f"paper_indicator_{side}_negative"])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["triplet", "unified"])
def test_golden_released_losses(name: str, kind: str) -> None:
    data = load(name)
    margin, weight = float(data["margin"]), float(data["official_weight"])
    hinge, smooth = Hinge(margin), Softmax(float(data["official_unified_tau"]), margin)
    cost: Cost = hinge if kind == "triplet" else smooth
    own = torch.eye(len(data["text_embeddings"]), dtype=torch.bool)
    for part in ("", "_up", "_low"):
        views = data["view_embeddings"].clone().requires_grad_()
        texts = data["text_embeddings"].clone().requires_grad_()
        upper, lower = released_losses(dot_scores(views, texts), own, cost)
        loss = {"": weight * upper + (1 - weight) * lower, "_up": upper, "_low": lower}[part]
        check(loss, data[f"official_{kind}{part or '_loss'}"])
        loss.backward()
        check(grad(views), data[f"official_{kind}{part}_grad_views"])
        check(grad(texts), data[f"official_{kind}{part}_grad_text"])


def test_golden_views_over_official_gpos() -> None:
    data = load("mvvse_gpo_views")
    views, _, embed_dim = data["view_embeddings"].shape
    width = embed_dim
    method = MVVSE(
        width, width, MVVSEConfig(width, views, released_gpo=True, own_projections=False)
    )
    identity = {"linear.weight": torch.eye(embed_dim), "linear.bias": torch.zeros(embed_dim)}
    load_weights(method.project_image[0], identity)
    for k in range(views):
        method.pool_image[k] = released_gpo(data, f"gpo{k}.")
    mask = lengths_to_mask(data["lengths"], data["features"].shape[1])
    images = method.encode_image(data["features"], mask)
    check(images.embeddings.transpose(0, 1), data["view_embeddings"])
    for k, pool in enumerate(method.pool_image):
        theta = pool.coefficients(data["lengths"])  # type: ignore[operator]
        check(theta, data[f"pool_weights_view{k}"][:, : theta.shape[1]])
    texts = Views(l2_normalize(data["text_embeddings"])[:, None])
    scores = method.view_scores(images, texts)
    check(scores, data["view_scores"])
    check(method.score(images, texts), data["max_scores"])
    assert torch.equal(scores.argmax(dim=0), data["winning_view"])


def test_golden_released_encoders() -> None:
    data = load("mvvse_official_encoders")
    views, _, embed_dim = data["view_embeddings"].shape
    images, tokens = data["images"], data["tokens"]
    vocabulary, word_dim = data["txt_enc.embed.weight"].shape
    method = MVVSE(images.shape[2], embed_dim, MVVSEConfig(embed_dim, views, aggregator="released"))
    for k, project in enumerate(method.project_image):
        load_weights(project, renamed(data, f"img_enc.fc_list.{k}.", {}, to="linear."))
    encoded = method.encode_image(images, torch.ones(images.shape[:2]).bool())
    check(encoded.embeddings.transpose(0, 1), data["view_embeddings"])
    encoder = BiGRUTextEncoder(vocabulary, word_dim, embed_dim, directions=1)
    load_weights(encoder, renamed(data, "txt_enc.", {"rnn.": "forward_gru."}))
    mask = lengths_to_mask(data["lengths"], tokens.shape[1])
    texts = method.encode_text(encoder(tokens, data["lengths"]), mask)
    check(texts.embeddings[:, 0], data["text_embedding"])


@torch.no_grad()
def test_every_view_has_its_own_curve() -> None:
    method = MVVSE(IMAGE_DIM, TEXT_DIM, MVVSEConfig(16))
    image, text = method.inside(*encoded(method))
    assert (image.name, text.name) == ("image_pooling", "text_pooling")
    assert (len(image.values), len(text.values)) == (3, 1)
    assert not torch.allclose(image.values[0], image.values[1], atol=1e-5)


def test_views_share_the_score_at_first() -> None:
    parts = method, images, texts = views_of("mv_vse", own_projections=True)
    view_scores = method.view_scores(images, texts)
    torch.testing.assert_close(shared_scores(view_scores, 0.0), view_scores.mean(dim=0))
    torch.testing.assert_close(shared_scores(view_scores, 1e4), view_scores.amax(dim=0))
    middle = shared_scores(view_scores, 5.0)
    assert (middle >= view_scores.mean(dim=0)).all()
    assert (middle <= view_scores.amax(dim=0) + 1e-6).all()
    values = {"anneal_epochs": 2, "cost": "softmax", "temperature": 0.1}
    objective = build_objective("mv_vse", values)
    first, second, later = (objective(*parts, IDS, epoch) for epoch in (0, 1, 2))
    assert first.keys() == second.keys() == {"shared"}
    assert first["shared"].item() != second["shared"].item()
    later_alone = build_objective("mv_vse", {"cost": "softmax", "temperature": 0.1})
    assert later == later_alone(*parts, IDS, 2)
