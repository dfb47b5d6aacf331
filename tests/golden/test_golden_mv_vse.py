"""MV-VSE: views over official GPOs, the paper's losses in float64, and the release's own."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models import Views
from models.encoders.bigru import BiGRUTextEncoder
from models.layers import cosine_scores, l2_normalize
from models.mv_vse import MVVSE
from models.views import lengths_to_mask
from tests.golden.loading import check, load, load_weights, released_gpo, renamed
from training.objectives.losses import Cost, Hinge, Softmax
from training.objectives.mv_vse import (
    best_view_loss,
    each_view_loss,
    released_losses,
    upper_bound_loss,
)

FILES = ("mvvse_losses_a", "mvvse_losses_b", "mvvse_losses_single")
PAPER: dict[str, Callable[[Tensor, Tensor, Cost], Tensor]] = {
    "max": best_view_loss,
    "avg": each_view_loss,
    "up": upper_bound_loss,
    "rough": functools.partial(upper_bound_loss, rough=True),
}


def dot_scores(views: Tensor, texts: Tensor) -> Tensor:
    """(K, B, D), (B, D) -> (K, B, B), for embeddings taken as they are."""
    return cosine_scores(views.transpose(0, 1), texts[:, None])[:, 0]


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
            given = scores, own, cost
            loss = lam * best_view_loss(*given) + (1 - lam) * upper_bound_loss(*given)
        else:
            loss = PAPER[kind](scores, own, cost)
        # unit length holds to float32 only, so that the dot products differ from cosines by 1e-7
        tolerance = 1e-6 if suffix else 1e-9
        check(loss, data[f"paper_{kind}_per_pair"], tolerance)
        check(loss.sum(), data[f"paper_{kind}_sum"], tolerance)
        loss.sum().backward()
        assert views.grad is not None
        assert texts.grad is not None
        check(views.grad, data[f"paper_{kind}_grad_views_of_sum{suffix}"], 1e-9)
        check(texts.grad, data[f"paper_{kind}_grad_text_of_sum{suffix}"], 1e-9)


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
        assert views.grad is not None
        assert texts.grad is not None
        check(views.grad, data[f"official_{kind}{part}_grad_views"])
        check(texts.grad, data[f"official_{kind}{part}_grad_text"])


def test_golden_views_over_official_gpos() -> None:
    data = load("mvvse_gpo_views")
    views, _, embed_dim = data["view_embeddings"].shape
    method = MVVSE(embed_dim, embed_dim, embed_dim, views, released_gpo=True)
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
    method = MVVSE(images.shape[2], embed_dim, embed_dim, views, aggregator="released")
    for k, project in enumerate(method.project_image):
        load_weights(project, renamed(data, f"img_enc.fc_list.{k}.", {}, to="linear."))
    encoded = method.encode_image(images, torch.ones(images.shape[:2]).bool())
    check(encoded.embeddings.transpose(0, 1), data["view_embeddings"])
    encoder = BiGRUTextEncoder(vocabulary, word_dim, embed_dim, directions=1)
    load_weights(encoder, renamed(data, "txt_enc.", {"rnn.": "forward_gru."}))
    mask = lengths_to_mask(data["lengths"], tokens.shape[1])
    texts = method.encode_text(encoder(tokens, data["lengths"]), mask)
    check(texts.embeddings[:, 0], data["text_embedding"])
