"""MV-VSE: views, scores and losses against loops, official GPOs and the release."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyview.models import Views
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.layers import l2_normalize
from polyview.models.mv_vse import MVVSE, MVVSEConfig
from polyview.models.views import lengths_to_mask
from polyview.training.objectives import losses
from tests.golden.loading import check, double, grad, load, released_gpo, renamed
from tests.models.conftest import HOLES, IMAGE_DIM, TEXT_DIM, encoded
from tests.papers.conftest import IDS, terms_of, views_of


def test_own_projections_are_pooled_by_the_gpo_of_each_view() -> None:
    features = torch.randn(2, 6, 10)
    method: Any = MVVSE(10, 8, MVVSEConfig(8, own_projections=True))
    with torch.no_grad():
        views = method.encode_image(features, HOLES).embeddings
        for k, pool in enumerate(method.pool_image):
            projected = method.project_image[k](features, HOLES)[1:, HOLES[1]]
            pooled = pool(projected, torch.ones(1, 3, dtype=torch.bool))[0]
            torch.testing.assert_close(views[1, k], l2_normalize(pooled), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_other_aggregators() -> None:
    features, words = torch.randn(2, 6, 10), torch.randn(2, 6, 8)
    for aggregator, pool in (("mean", torch.mean), ("released", torch.amax)):
        method = MVVSE(10, 8, MVVSEConfig(8, views=2, aggregator=aggregator))
        views = method.encode_image(features, HOLES).embeddings
        for k, project in enumerate(method.project_image):
            expected = pool(project(features, HOLES)[1, HOLES[1]], dim=0)
            torch.testing.assert_close(views[1, k], l2_normalize(expected))
    text = method.encode_text(words, HOLES).embeddings  # the release pools the last word
    torch.testing.assert_close(text[:, 0], l2_normalize(words[[0, 1], [5, 3]]))


def test_attention_is_the_cosine_of_cell_and_view() -> None:
    features = torch.randn(2, 6, 10)
    method = MVVSE(10, 8, MVVSEConfig(8, views=2, own_projections=True))
    views: Any = method.encode_image(features, HOLES, attention=True)
    for k, project in enumerate(method.project_image):
        cells = project(features, HOLES)[1, HOLES[1]]
        cosines = torch.cosine_similarity(cells, views.embeddings[1, k], dim=1)
        torch.testing.assert_close(views.attention[1, k, HOLES[1]], cosines)


FILES = ("mvvse_losses_a", "mvvse_losses_b", "mvvse_losses_single")
PAPER: dict[str, Callable[[Tensor, Tensor, losses.Cost], Tensor]] = {
    "max": lambda scores, own, cost: losses.pair_costs(scores.amax(dim=0), own, cost),
    "avg": lambda scores, own, cost: losses.pair_costs(scores, own, cost).mean(dim=0),
    "up": losses.upper_bound_loss,
    "rough": functools.partial(losses.upper_bound_loss, rough=True),
}


def dot_scores(views: Tensor, texts: Tensor) -> Tensor:
    """Returns the products (K, B, B) of views (K, B, D) and texts (B, D)."""
    return torch.einsum("kbd,td->kbt", views, texts)


def cosines(views: Tensor, texts: Tensor) -> Tensor:
    """Returns `dot_scores` of normalised embeddings, Eq. (5)."""
    return dot_scores(*(nn.functional.normalize(rows, dim=-1) for rows in (views, texts)))


def test_the_objective_offers_every_loss_of_the_table() -> None:
    made = method, images, texts = views_of("mv_vse", own_projections=True)
    for name, cost in (("triplet", losses.Hinge(0.2)), ("softmax", losses.Softmax())):
        values = method.view_scores(images, texts), losses.same_image(IDS), cost
        for loss, compute in PAPER.items():
            (term,) = terms_of("mv_vse", made=made, loss=loss, cost=name).values()
            torch.testing.assert_close(term, compute(*values).sum())
        terms = terms_of("mv_vse", made=made, lam=0.6, cost=name)  # mixed by default
        torch.testing.assert_close(terms["max"], 0.6 * PAPER["max"](*values).sum())
        torch.testing.assert_close(terms["up"], 0.4 * losses.upper_bound_loss(*values).sum())
        released = terms_of("mv_vse", made=made, loss="released", cost=name)
        assert released.keys() == {"upper", "lower"}
    bounds = (terms_of("mv_vse", made=made, loss=loss, margin=0.01) for loss in ("up", "rough"))
    smaller, larger = (terms["up"].item() for terms in bounds)
    assert 0 < smaller < larger  # some views violate a constraint, but not all


@pytest.mark.parametrize("kind", PAPER)
def test_captions_of_the_same_image_are_no_negatives(kind: str) -> None:
    scores, own, cost = torch.rand(3, 4, 4), losses.same_image(IDS), losses.Hinge(0.2)
    raised = scores + 10 * (own & ~torch.eye(4).bool())
    assert torch.equal(PAPER[kind](raised, own, cost), PAPER[kind](scores, own, cost))
    assert not PAPER[kind](scores, torch.ones(4, 4).bool(), cost).any()  # without negatives


def leaves(data: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the stored embeddings of views and texts as leaves with gradients."""
    views, texts = (data[f"{part}_embeddings"].clone() for part in ("view", "text"))
    return views.requires_grad_(), texts.requires_grad_()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", PAPER)
def test_golden_paper_losses(name: str, kind: str) -> None:
    data = double(load(name))
    views, texts = leaves(data)
    own = torch.eye(len(texts), dtype=torch.bool)
    loss = PAPER[kind](cosines(views, texts), own, losses.Hinge(float(data["margin"])))
    check(loss, data[f"paper_{kind}_per_pair"], 1e-9)
    loss.sum().backward()
    check(grad(views), data[f"paper_{kind}_grad_views_of_sum"], 1e-9)
    check(grad(texts), data[f"paper_{kind}_grad_text_of_sum"], 1e-9)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["triplet", "unified"])
def test_golden_released_losses(name: str, kind: str) -> None:
    data = load(name)
    margin = float(data["margin"])
    smooth = losses.Softmax(float(data["official_unified_tau"]), margin)
    cost: losses.Cost = losses.Hinge(margin) if kind == "triplet" else smooth
    own = torch.eye(len(data["text_embeddings"]), dtype=torch.bool)
    for place, part in enumerate(("_up", "_low")):
        views, texts = leaves(data)
        loss = losses.released_losses(dot_scores(views, texts), own, cost)[place]
        check(loss, data[f"official_{kind}{part}"])
        loss.backward()
        check(grad(views), data[f"official_{kind}{part}_grad_views"])
        check(grad(texts), data[f"official_{kind}{part}_grad_text"])


def test_golden_views_over_official_gpos() -> None:
    data = load("mvvse_gpo_views")
    views, _, width = data["view_embeddings"].shape
    method = MVVSE(width, width, MVVSEConfig(width, views, released_gpo=True))
    identity = {"linear.weight": torch.eye(width), "linear.bias": torch.zeros(width)}
    method.project_image[0].load_state_dict(identity)
    for k in range(views):
        method.pool_image[k] = released_gpo(data, f"gpo{k}.")
    mask = lengths_to_mask(data["lengths"], data["features"].shape[1])
    images = method.encode_image(data["features"], mask)
    check(images.embeddings.transpose(0, 1), data["view_embeddings"])
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
        project.load_state_dict(renamed(data, f"img_enc.fc_list.{k}.", {}, to="linear."))
    seen = method.encode_image(images, torch.ones(images.shape[:2]).bool())
    check(seen.embeddings.transpose(0, 1), data["view_embeddings"])
    vocabulary, word_dim = data["txt_enc.embed.weight"].shape
    encoder = BiGRUTextEncoder(vocabulary, word_dim, embed_dim, directions=1)
    encoder.load_state_dict(renamed(data, "txt_enc.", {"rnn.": "forward_gru."}))
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


def test_annealed_scores_approach_the_maximum_of_the_views() -> None:
    """The score is their mean in the first epoch."""
    made = method, images, texts = views_of("mv_vse", own_projections=True)
    scores, own = method.view_scores(images, texts), losses.same_image(IDS)
    settings = {"cost": "softmax", "temperature": 0.1}
    for epoch, sharpness in ((0, 0.0), (1, 20.0)):
        shared = ((sharpness * scores).softmax(dim=0) * scores).sum(dim=0)
        expected = losses.pair_costs(shared, own, losses.Softmax(0.1)).sum()
        terms = terms_of("mv_vse", epoch, made, anneal_epochs=2, **settings)
        torch.testing.assert_close(terms["shared"], expected)
    later = terms_of("mv_vse", 2, made, anneal_epochs=2, **settings)
    assert later == terms_of("mv_vse", 2, made, **settings)
