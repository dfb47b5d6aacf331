"""PVSE: heads, scores, losses and clips against loops and the official code."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyview.models import Views
from polyview.models.layers import l2_normalize
from polyview.models.pvse import PVSE, LastStates, PIENet
from polyview.models.views import lengths_to_mask
from polyview.training.objectives import pvse as objectives
from tests.golden.loading import check, check_gradients, grad, load, renamed
from tests.models.conftest import HOLES, IMAGE_DIM, TEXT_DIM, encoded, sets
from tests.papers.conftest import IDS, terms_of, views_of


@pytest.fixture
def local() -> Tensor:
    return torch.randn(2, 6, 10)


def test_last_states_skip_masked_elements(local: Tensor) -> None:
    for legacy in (False, True):
        states = LastStates(10, 8, legacy)
        dense = local[1:, HOLES[1]]
        expected = states(dense, torch.ones(1, 3, dtype=torch.bool))
        torch.testing.assert_close(states(local, HOLES)[1:], expected)


def test_without_pie_nets_the_global_feature_remains(local: Tensor) -> None:
    method: Any = PVSE(10, 10, 8, views=0)
    images = method.encode_image(local, HOLES, attention=True)
    linear = method.image_global.weight, method.image_global.bias
    expected = l2_normalize(nn.functional.linear(local[1, HOLES[1]].mean(dim=0), *linear))
    torch.testing.assert_close(images.embeddings[1, 0], expected)
    assert images.attention is None
    texts = method.encode_text(local, HOLES).embeddings[:, 0]
    torch.testing.assert_close(texts, l2_normalize(method.text_global(local, HOLES)))


def test_without_the_global_feature_the_residual_remains(local: Tensor) -> None:
    concat = PVSE(10, 10, 8, views=3, fusion="concat")
    assert concat.encode_image(local, HOLES).embeddings.shape == (2, 3, 16)
    method: Any = PVSE(10, 10, 8, fusion="local")
    _, residual, _ = method.image_net(local, None, HOLES)
    expected = l2_normalize(method.image_net.norm(residual))
    torch.testing.assert_close(method.encode_image(local, HOLES).embeddings, expected)


def test_joined_views_score_their_cosine() -> None:
    first, second = l2_normalize(torch.randn(2, 3, 2, 8))
    scores = PVSE(4, 4, 8, match="concat").score(Views(first), Views(second))
    joined = torch.cosine_similarity(first[1].flatten(), second[2].flatten(), dim=0)
    torch.testing.assert_close(scores[1, 2], joined)


@pytest.mark.parametrize("released", [True, False])
def test_equal_rows_have_no_discrepancy_and_a_finite_gradient(released: bool) -> None:
    images = torch.randn(4, 2, 5, requires_grad=True)
    texts = images.detach().clone()
    loss = objectives.maximum_mean_discrepancy(images, texts, released=released)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.isfinite(grad(images)).all()


def test_nearly_equal_rows_keep_their_distance() -> None:
    images = torch.randn(1, 1, 512)
    expected = 2 - 2 * math.exp(-0.5 * 1e-4 * 512**0.5)
    got = objectives.maximum_mean_discrepancy(images, images + 1e-4, released=True).item()
    assert got == pytest.approx(expected, rel=1e-2)


def test_hardest_negatives_start_after_the_warmup_epochs() -> None:
    first, second = (
        terms_of("pvse", epoch, hardest=True, released=True, warmup_epochs=1)["mil"]
        for epoch in (0, 1)
    )
    assert second > first == terms_of("pvse", released=True)["mil"]


def test_the_softmax_cost_is_the_cross_entropy_of_both_directions() -> None:
    method, images, texts = views_of("pvse")
    own = torch.arange(len(IDS))
    others = (IDS[:, None] == IDS) & (own[:, None] != own)  # captions of the same image
    scores = method.score(images, texts).masked_fill(others, -torch.inf) / 0.1
    entropy = nn.functional.cross_entropy
    expected = 0.1 * (entropy(scores, own) + entropy(scores.T, own))
    values = terms_of("pvse", cost="softmax", temperature=0.1)["mil"]
    torch.testing.assert_close(values, expected)


def test_loss_terms_are_weighted() -> None:
    _, images, texts = views_of("pvse")
    sides = [v.extras["residuals"] for v in (images, texts)]
    terms = terms_of("pvse", diversity=0.3, discrepancy=0.0)
    expected = 0.3 * (objectives.gram_diversity(sides[0]) + objectives.gram_diversity(sides[1]))
    torch.testing.assert_close(terms["diversity"], expected)
    assert terms.keys() == {"mil", "diversity"}
    terms = terms_of("pvse", diversity=0.3, discrepancy=0.2, relative=True)
    torch.testing.assert_close(terms["diversity"], 0.3 * terms["mil"])
    torch.testing.assert_close(terms["discrepancy"], 0.2 * terms["mil"])
    without = terms_of("pvse", made=views_of("pvse", views=0))
    assert without.keys() == {"mil", "discrepancy"}


PIE_NAMES = {"attention.w_1.": "w1.", "attention.w_2.": "w2.", "fc.": "w3.", "layer_norm.": "norm."}
LOSSES = ("multi_mean", "multi_hardest", "multi_order", "single_mean", "single_hardest")


def pie_net(data: dict[str, Tensor], prefix: str) -> PIENet:
    weights = renamed(data, prefix, PIE_NAMES)
    hidden, local_dim = weights["w1.weight"].shape
    net = PIENet(local_dim, len(weights["w3.bias"]), len(weights["w2.weight"]))
    assert net.w1.out_features == hidden  # A = D / 2
    net.load_state_dict(weights)
    return net


@pytest.mark.parametrize("kind", ["multi_masked", "multi_unmasked", "single_masked"])
def test_golden_pie_net(kind: str) -> None:
    data = load(f"pienet_{kind}")
    net = pie_net(data, "pie_net.")
    local = data["local_features"].requires_grad_()
    whole = data["global_features"].requires_grad_()
    mask = ~data.get("pad_mask", torch.zeros(local.shape[:2], dtype=torch.bool))
    if "lengths" in data:
        assert torch.equal(mask, lengths_to_mask(data["lengths"], local.shape[1]))
    embedding, residual, attention = net(local, whole, mask)
    check(attention.mT, data["attention"])
    check(residual, data["residual"].view_as(residual))
    check(embedding, data["embedding"].view_as(embedding))
    loss = (embedding * data["upstream_embedding"].view_as(embedding)).sum()
    (loss + (residual * data["upstream_residual"].view_as(residual)).sum()).backward()
    check(grad(local), data["grad_local_features"])
    check(grad(whole), data["grad_global_features"])
    check_gradients(net, renamed(data, "grad.pie_net.", PIE_NAMES))


def test_golden_image_head() -> None:
    data = load("pvse_image_head_7x7")
    local = data["feature_map"].flatten(2).mT  # (B, 49, C), row-major
    embed_dim, image_dim = data["img_enc.fc.weight"].shape
    method: Any = PVSE(image_dim, 4, embed_dim, data["embedding"].shape[1])
    method.image_global.load_state_dict(renamed(data, "img_enc.fc.", {}))
    method.image_net = pie_net(data, "img_enc.pie_net.")
    views = method.encode_image(local, torch.ones(local.shape[:2]).bool(), attention=True)
    check(views.embeddings, data["embedding"])
    check(views.attention.mT, data["attention"])
    check(views.extras["residuals"], data["residual"])


@pytest.mark.parametrize("mode", ["default", "legacy"])
def test_golden_text_encoder(mode: str) -> None:
    data = load("pvse_text_encoder")
    words = nn.functional.embedding(data["tokens"], data["txt_enc.embed.weight"])  # (B, L, w)
    mask = lengths_to_mask(data["lengths"], words.shape[1])
    views, embed_dim = data[f"embedding_{mode}"].shape[1:]
    method: Any = PVSE(4, words.shape[2], embed_dim, views, legacy_text=mode == "legacy")
    method.text_global.load_state_dict(renamed(data, "txt_enc.rnn.", {}, to="gru."))
    method.text_net = pie_net(data, "txt_enc.pie_net.")
    encoded = method.encode_text(words, mask, attention=True)
    check(encoded.embeddings, data[f"embedding_{mode}"])
    check(encoded.attention.mT, data[f"attention_{mode}"])
    check(encoded.extras["residuals"], data[f"residual_{mode}"])


def order_scores(images: Tensor, texts: Tensor) -> Tensor:
    """Returns the scores (B, B) of views (B, K, D) as order embeddings, the release's `order`."""
    excess = (texts[None, :, None] - images[:, None, :, None]).clamp_min(0)  # (B, B, K, K, D)
    return -excess.norm(dim=-1).amin(dim=(2, 3))


@pytest.mark.parametrize("kind", LOSSES)
def test_golden_losses(kind: str) -> None:
    data = load(f"pvse_loss_{kind}")
    batch, views, margin = len(data["img_emb"]), int(data["num_embeds"]), float(data["margin"])
    names = ("img_emb", "txt_emb", "img_residual", "txt_residual")
    inputs = {name: data[name].view(batch, views, -1).requires_grad_() for name in names}
    images, texts, *residuals = inputs.values()
    scores, own = PVSE(4, 4, 4, views).score(Views(images), Views(texts)), torch.eye(batch).bool()
    if data["order"]:
        scores = order_scores(images, texts)
    else:
        paper = objectives.multiple_instance(scores.double(), own, margin)
        check(paper, data["ref_mil_paper_one_direction_incl_diagonal"], 1e-6)
    hardest = bool(data["max_violation"])
    total = objectives.multiple_instance(scores, own, margin, released=True, hardest=hardest)
    check(total, data["ranking_loss"])
    if "div_loss" in data:  # with one view, the release has the ranking loss only
        for released, name in ((False, "ref_div_spectral_norm"), (True, "div_loss")):
            diversity = [objectives.gram_diversity(side, released=released) for side in residuals]
            check(diversity[0] + diversity[1], data[name])
        squared = objectives.maximum_mean_discrepancy(images, texts, 0.5)
        check(squared, data["ref_mmd_squared_distance_gamma0.5"])
        gamma = float(data["mmd_gamma"])
        discrepancy = objectives.maximum_mean_discrepancy(images, texts, gamma, released=True)
        check(discrepancy, data["mmd_loss"])
        total = total + float(data["div_weight"]) * (diversity[0] + diversity[1])
        total = total + float(data["mmd_weight"]) * discrepancy
    check(total, data["total_loss"])
    total.backward()
    for name, values in inputs.items():
        if f"grad_{name}" in data:
            check(grad(values), data[f"grad_{name}"].view_as(values))


@torch.no_grad()
def test_the_marked_pair_is_the_score() -> None:
    method = PVSE(IMAGE_DIM, TEXT_DIM, 16, views=3)
    images, texts = encoded(method)
    (grid,) = method.inside(images, texts)
    ((row, column),) = grid.marks
    torch.testing.assert_close(grid.values[row, column], method.score(images, texts)[0, 0])
    torch.testing.assert_close(grid.values, images.embeddings[0] @ texts.embeddings[0].T)


@torch.no_grad()
def test_changes_are_the_mean_plus_the_last_state_of_the_differences() -> None:
    changes: Any = PVSE(10, 6, 8, image_global="changes").eval().image_global
    frames, mask = sets([8, 1, 3, 5], 10, 0)  # four clips
    made = changes(frames, mask)
    for clip, real in enumerate(mask):
        projected = changes.project(frames[clip, real])
        mean = projected.mean(dim=0)
        _, last = changes.states.gru((projected - mean)[None])
        torch.testing.assert_close(made[clip], mean + last.flatten())
