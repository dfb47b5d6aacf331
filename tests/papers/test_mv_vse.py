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
from tests.models.conftest import HOLES, IMAGE_DIM, TEXT_DIM, encoded
from tests.papers.terms import IDS, terms_of, views_of


@pytest.fixture
def features() -> Tensor:
    return torch.randn(2, 6, 10)


@pytest.mark.parametrize("own", [False, True])
def test_views_equal_the_loop(features: Tensor, own: bool) -> None:
    method = MVVSE(10, 8, MVVSEConfig(8, own_projections=own))
    assert len(method.project_image) == (3 if own else 1)
    with torch.no_grad():
        views = method.encode_image(features, HOLES).embeddings
        for b in range(2):
            for k, pool in enumerate(method.pool_image):
                projected = method.project_image[k if own else 0](features, HOLES)
                pooled = reference.gpo_pool(cast("GPO", pool), projected[b, HOLES[b]])
                expected = l2_normalize(pooled)
                torch.testing.assert_close(views[b, k], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("aggregator", "pool"),
    [("mean", lambda x: x.mean(dim=0)), ("released", lambda x: x.amax(dim=0))],
)
def test_other_aggregators(features: Tensor, aggregator: str, pool: object) -> None:
    method = MVVSE(10, 8, MVVSEConfig(8, views=2, aggregator=aggregator))
    views = method.encode_image(features, HOLES).embeddings
    for k, project in enumerate(method.project_image):
        projected = project(features, HOLES)
        expected = l2_normalize(pool(projected[1, HOLES[1]]))  # type: ignore[operator]
        torch.testing.assert_close(views[1, k], expected)
    assert not torch.allclose(views[:, 0], views[:, 1])


def test_the_released_text_is_its_last_word() -> None:
    words = torch.randn(2, 6, 8)
    text = MVVSE(10, 8, MVVSEConfig(8, aggregator="released")).encode_text(words, HOLES).embeddings
    torch.testing.assert_close(text[:, 0], l2_normalize(words[[0, 1], [5, 3]]))


def test_attention_is_the_cosine_of_each_cell(features: Tensor) -> None:
    method = MVVSE(10, 8, MVVSEConfig(8, views=2, own_projections=True))
    views = method.encode_image(features, HOLES, attention=True)
    assert views.attention is not None
    for k in range(2):
        projected = method.project_image[k](features, HOLES)
        for n in (0, 2, 3):
            cosine = torch.cosine_similarity(projected[1, n], views.embeddings[1, k], dim=0)
            torch.testing.assert_close(views.attention[1, k, n], cosine)


def test_mv_vse_mixes_its_two_losses() -> None:
    method, images, texts = views_of("mv_vse")
    values = method.view_scores(images, texts), same_image(IDS, IDS), Hinge(0.2)
    terms = terms_of("mv_vse", lam=0.6)
    torch.testing.assert_close(terms["max"], 0.6 * best_view_loss(*values).sum())
    torch.testing.assert_close(terms["up"], 0.4 * upper_bound_loss(*values).sum())


@pytest.mark.parametrize("cost", ["triplet", "softmax"])
def test_mv_vse_offers_every_loss_of_its_table(cost: str) -> None:
    made = views_of("mv_vse")
    for loss, names in (
        ("mix", {"max", "up"}),
        ("max", {"max"}),
        ("avg", {"avg"}),
        ("up", {"up"}),
        ("rough", {"up"}),
        ("released", {"upper", "lower"}),
    ):
        assert terms_of("mv_vse", made=made, loss=loss, cost=cost).keys() == names


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


@pytest.mark.parametrize("kind", PAPER)
def test_captions_of_the_same_image_are_no_negatives(kind: str) -> None:
    scores, own, cost = torch.rand(3, 4, 4), same_image(IDS, IDS), Hinge(0.2)
    raised = scores + 10 * (own & ~torch.eye(4).bool())
    assert torch.equal(PAPER[kind](raised, own, cost), PAPER[kind](scores, own, cost))
    assert not PAPER[kind](scores, torch.ones(4, 4).bool(), cost).any()  # no negative at all


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
@pytest.mark.parametrize("kind", ["triplet", "unified"])
def test_golden_released_losses(name: str, kind: str) -> None:
    data = load(name)
    margin, weight = float(data["margin"]), float(data["official_weight"])
    smooth = Softmax(float(data["official_unified_tau"]), margin)
    cost: Cost = Hinge(margin) if kind == "triplet" else smooth
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
    views, _, width = data["view_embeddings"].shape
    method = MVVSE(width, width, MVVSEConfig(width, views, released_gpo=True))
    identity = {"linear.weight": torch.eye(width), "linear.bias": torch.zeros(width)}
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
    method = MVVSE(images.shape[2], embed_dim, MVVSEConfig(embed_dim, views, aggregator="released"))
    for k, project in enumerate(method.project_image):
        load_weights(project, renamed(data, f"img_enc.fc_list.{k}.", {}, to="linear."))
    seen = method.encode_image(images, torch.ones(images.shape[:2]).bool())
    check(seen.embeddings.transpose(0, 1), data["view_embeddings"])
    vocabulary, word_dim = data["txt_enc.embed.weight"].shape
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
    made = method, images, texts = views_of("mv_vse", own_projections=True)
    view_scores = method.view_scores(images, texts)
    torch.testing.assert_close(shared_scores(view_scores, 0.0), view_scores.mean(dim=0))
    torch.testing.assert_close(shared_scores(view_scores, 1e4), view_scores.amax(dim=0))
    middle = shared_scores(view_scores, 5.0)
    assert (middle >= view_scores.mean(dim=0)).all()
    assert (middle <= view_scores.amax(dim=0) + 1e-6).all()
    cost = {"cost": "softmax", "temperature": 0.1}
    first, second, later = (
        terms_of("mv_vse", epoch, made, anneal_epochs=2, **cost) for epoch in (0, 1, 2)
    )
    assert first.keys() == second.keys() == {"shared"}
    assert first["shared"].item() != second["shared"].item()
    assert later == terms_of("mv_vse", 2, made, **cost)
