"""PVSE: heads, scores, losses and clips, against loops and the official code."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyview.models import Views
from polyview.models.layers import l2_normalize
from polyview.models.pvse import PVSE, Changes, LastStates, MeanFeature, PIENet
from polyview.models.views import lengths_to_mask
from polyview.training.objectives.pvse import (
    gram_diversity,
    maximum_mean_discrepancy,
    multiple_instance,
)
from tests import reference
from tests.golden.loading import check, check_gradients, grad, load, load_weights, renamed
from tests.models.conftest import HOLES, IMAGE_DIM, TEXT_DIM, encoded
from tests.papers.terms import IDS, terms_of, views_of


@pytest.fixture
def local() -> Tensor:
    return torch.randn(2, 6, 10)


def test_last_states_skip_what_the_mask_leaves_out(local: Tensor) -> None:
    for legacy in (False, True):
        states = LastStates(10, 8, legacy)
        dense = local[1:, HOLES[1]]
        expected = states(dense, torch.ones(1, 3, dtype=torch.bool))
        torch.testing.assert_close(states(local, HOLES)[1:], expected)


def test_without_pie_nets_the_global_feature_remains(local: Tensor) -> None:
    method = PVSE(10, 10, 8, views=0)
    assert isinstance(method.image_global, MeanFeature)
    assert method.text_global is not None
    images = method.encode_image(local, HOLES, attention=True)
    linear = method.image_global.weight, method.image_global.bias
    expected = l2_normalize(torch.nn.functional.linear(local[1, HOLES[1]].mean(dim=0), *linear))
    torch.testing.assert_close(images.embeddings[1, 0], expected)
    assert images.attention is None
    texts = method.encode_text(local, HOLES).embeddings[:, 0]
    torch.testing.assert_close(texts, l2_normalize(method.text_global(local, HOLES)))


def test_without_the_global_feature_the_residual_remains(local: Tensor) -> None:
    concat = PVSE(10, 10, 8, views=3, fusion="concat")
    assert concat.encode_image(local, HOLES).embeddings.shape == (2, 3, 16)
    method = PVSE(10, 10, 8, fusion="local")
    assert method.image_net is not None
    _, residual, _ = method.image_net(local, None, HOLES)
    expected = l2_normalize(method.image_net.norm(residual))
    torch.testing.assert_close(method.encode_image(local, HOLES).embeddings, expected)


def test_joined_views_score_their_cosine() -> None:
    images, texts = (Views(l2_normalize(torch.randn(3, 2, 8))) for _ in range(2))
    method = PVSE(4, 4, 8, match="concat")
    joined = torch.cosine_similarity(
        images.embeddings[1].flatten(), texts.embeddings[2].flatten(), 0
    )
    torch.testing.assert_close(method.score(images, texts)[1, 2], joined)
    assert method.row_dim(2, 8) == 16


@pytest.mark.parametrize("released", [True, False])
def test_equal_rows_have_no_discrepancy_and_a_finite_gradient(released: bool) -> None:
    images = torch.randn(4, 2, 5, requires_grad=True)
    texts = images.detach().clone()
    loss = maximum_mean_discrepancy(images, texts, released=released)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.isfinite(grad(images)).all()


def test_nearly_equal_rows_keep_their_distance() -> None:
    images = torch.randn(1, 1, 512)
    texts = images + 1e-4
    distance = 1e-4 * 512**0.5
    expected = 2 - 2 * float(torch.exp(torch.tensor(-0.5 * distance)))
    got = maximum_mean_discrepancy(images, texts, released=True).item()
    assert got == pytest.approx(expected, rel=1e-2)


def test_hardest_negatives_begin_after_the_first_epochs() -> None:
    values: dict[str, Any] = {"hardest": True, "released": True, "warmup_epochs": 1}
    losses = [terms_of("pvse", epoch, **values)["mil"] for epoch in (0, 1)]
    plain = terms_of("pvse", released=True)["mil"]
    assert losses[0] == plain
    assert losses[1] > plain


def test_the_softmax_cost_is_the_cross_entropy_of_both_directions() -> None:
    method, images, texts = views_of("pvse")
    own = torch.arange(len(IDS))
    others = (IDS[:, None] == IDS) & (own[:, None] != own)  # captions of the same image
    scores = method.score(images, texts).masked_fill(others, -torch.inf) / 0.1
    entropy = nn.functional.cross_entropy
    expected = 0.1 * (entropy(scores, own) + entropy(scores.T, own))
    values = terms_of("pvse", cost="softmax", temperature=0.1)["mil"]
    torch.testing.assert_close(values, expected)


def test_terms_are_weighed() -> None:
    _, images, texts = views_of("pvse")
    sides = [v.extras["residuals"] for v in (images, texts)]
    terms = terms_of("pvse", diversity=0.3, discrepancy=0.0)
    expected = 0.3 * (gram_diversity(sides[0]) + gram_diversity(sides[1]))
    torch.testing.assert_close(terms["diversity"], expected)
    assert terms.keys() == {"mil", "diversity"}
    terms = terms_of("pvse", diversity=0.3, discrepancy=0.2, relative=True)
    torch.testing.assert_close(terms["diversity"], 0.3 * terms["mil"])
    torch.testing.assert_close(terms["discrepancy"], 0.2 * terms["mil"])
    without = terms_of("pvse", made=views_of("pvse", views=0))
    assert without.keys() == {"mil", "discrepancy"}


PIE_NAMES = {"attention.w_1.": "w1.", "attention.w_2.": "w2.", "fc.": "w3.", "layer_norm.": "norm."}
LOSSES = ("multi_mean", "multi_hardest", "single_mean", "single_hardest")


def pie_net(data: dict[str, Tensor], prefix: str) -> PIENet:
    weights = renamed(data, prefix, PIE_NAMES)
    hidden, local_dim = weights["w1.weight"].shape
    net = PIENet(local_dim, len(weights["w3.bias"]), len(weights["w2.weight"]))
    assert net.w1.out_features == hidden  # A = D / 2
    load_weights(net, weights)
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
    check(l2_normalize(embedding), data["embedding_l2norm"].view_as(embedding))
    loss = (embedding * data["upstream_embedding"].view_as(embedding)).sum()
    (loss + (residual * data["upstream_residual"].view_as(residual)).sum()).backward()
    check(grad(local), data["grad_local_features"])
    check(grad(whole), data["grad_global_features"])
    check_gradients(net, renamed(data, "grad.pie_net.", PIE_NAMES))


def test_golden_image_head() -> None:
    data = load("pvse_image_head_7x7")
    local = data["feature_map"].flatten(2).mT  # (B, 49, C), row-major
    embed_dim, image_dim = data["img_enc.fc.weight"].shape
    method = PVSE(image_dim, 4, embed_dim, data["embedding"].shape[1])
    assert method.image_global is not None
    load_weights(method.image_global, renamed(data, "img_enc.fc.", {}))
    method.image_net = pie_net(data, "img_enc.pie_net.")
    views = method.encode_image(local, torch.ones(local.shape[:2]).bool(), attention=True)
    assert views.attention is not None
    check(views.embeddings, data["embedding"])
    check(views.attention.mT, data["attention"])
    check(views.extras["residuals"], data["residual"])


@pytest.mark.parametrize("mode", ["default", "legacy"])
def test_golden_text_encoder(mode: str) -> None:
    data = load("pvse_text_encoder")
    words = nn.functional.embedding(data["tokens"], data["txt_enc.embed.weight"])  # (B, L, w)
    mask = lengths_to_mask(data["lengths"], words.shape[1])
    views, embed_dim = data[f"embedding_{mode}"].shape[1:]
    method = PVSE(4, words.shape[2], embed_dim, views, legacy_text=mode == "legacy")
    assert method.text_global is not None
    load_weights(method.text_global, renamed(data, "txt_enc.rnn.", {}, to="gru."))
    method.text_net = pie_net(data, "txt_enc.pie_net.")
    encoded = method.encode_text(words, mask, attention=True)
    assert encoded.attention is not None
    check(encoded.embeddings, data[f"embedding_{mode}"])
    check(encoded.attention.mT, data[f"attention_{mode}"])
    check(encoded.extras["residuals"], data[f"residual_{mode}"])


class LossCase:
    """Inputs of a loss file with K on its own axis, and the paths from them to the losses."""

    def __init__(self, kind: str) -> None:
        self.data = data = load(f"pvse_loss_{kind}")
        batch, views = len(data["img_emb"]), int(data["num_embeds"])
        names = ("img_emb", "txt_emb", "img_residual", "txt_residual")
        self.inputs = {n: data[n].view(batch, views, -1).requires_grad_() for n in names}
        self.embeddings, self.residuals = (
            [self.inputs[f"{side}_{part}"] for side in ("img", "txt")]
            for part in ("emb", "residual")
        )
        self.scores = PVSE(4, 4, 4, views).score(*map(Views, self.embeddings))
        self.own = torch.eye(batch, dtype=torch.bool)
        self.hardest = bool(data["max_violation"])
        margin = float(data["margin"])  # the ranking loss is as released
        form = {"released": True, "hardest": self.hardest}
        self.ranking = multiple_instance(self.scores, self.own, margin, **form)

    def diversity(self, *, released: bool) -> Tensor:
        """Both sides' diversity loss."""
        first, second = (gram_diversity(side, released=released) for side in self.residuals)
        return first + second

    def discrepancy(self, gamma: float, *, released: bool) -> Tensor:
        """The discrepancy of the two sides' embeddings."""
        images, texts = self.embeddings
        return maximum_mean_discrepancy(images, texts, gamma, released=released)


@pytest.mark.parametrize("kind", LOSSES)
def test_golden_losses_as_released(kind: str) -> None:
    case = LossCase(kind)
    data, total = case.data, case.ranking
    if "max_scores" in data:
        check(case.scores, data["max_scores"])
    check(total, data["ranking_loss"])
    if "div_loss" in data:  # with one view the release trains on the ranking loss alone
        diversity = case.diversity(released=True)
        discrepancy = case.discrepancy(float(data["mmd_gamma"]), released=True)
        check(diversity, data["div_loss"])
        check(diversity, data["ref_div_frobenius"])
        check(discrepancy, data["mmd_loss"])
        total = total + float(data["div_weight"]) * diversity
        total = total + float(data["mmd_weight"]) * discrepancy
    check(total, data["total_loss"])
    total.backward()
    for name, values in case.inputs.items():
        if f"grad_{name}" in data:
            check(grad(values), data[f"grad_{name}"].view_as(values))


@pytest.mark.parametrize("kind", [k for k in LOSSES if k.startswith("multi")])
def test_golden_losses_of_the_paper_and_of_other_options(kind: str) -> None:
    case = LossCase(kind)
    data, dim = case.data, case.inputs["img_emb"].shape[2]
    check(case.diversity(released=False), data["ref_div_spectral_norm"])
    check(case.discrepancy(0.5, released=False), data["ref_mmd_squared_distance_gamma0.5"])
    by_width = case.discrepancy(1 / dim, released=True)
    check(by_width, data["mmd_loss_gamma_default_1_over_H"])
    # the release's sums are the means times what they are taken over
    batch, rows = len(case.own), 2 * case.inputs["img_emb"].shape[1] * len(case.own)
    items = batch if case.hardest else batch**2
    check(case.ranking * items, data["ranking_loss_sum_reduction"])
    check(case.diversity(released=True) * batch, data["div_loss_sum_reduction"])
    discrepancy = case.discrepancy(float(data["mmd_gamma"]), released=True)
    check(discrepancy * rows**2 / 4, data["mmd_loss_sum_reduction"])


@pytest.mark.parametrize("kind", LOSSES)
def test_golden_paper_loss_has_one_direction(kind: str) -> None:
    case = LossCase(kind)
    data, margin = case.data, float(case.data["margin"])
    loss = multiple_instance(case.scores.double(), case.own, margin)
    check(loss, data["ref_mil_paper_one_direction_incl_diagonal"], 1e-6)
    without_itself = data["ref_mil_paper_one_direction_excl_diagonal"]
    check(loss - margin / len(case.own), without_itself, 1e-6)


@torch.no_grad()
def test_the_marked_pair_is_the_score() -> None:
    method = PVSE(IMAGE_DIM, TEXT_DIM, 16, views=3)
    images, texts = encoded(method)
    (grid,) = method.inside(images, texts)
    assert tuple(grid.values.shape) == (3, 3)
    ((row, column),) = grid.marks
    torch.testing.assert_close(grid.values[row, column], method.score(images, texts)[0, 0])
    assert grid.values[1, 2] == pytest.approx(
        float(images.embeddings[0, 1] @ texts.embeddings[0, 2]), abs=1e-6
    )
    assert method.inside(images) == []


CLIPS = (8, 1, 3, 5)  # frames of each


def clips() -> tuple[Tensor, Tensor]:
    """Frames (4, 8, 10) and their mask; what lies beyond a clip's end is large."""
    mask = lengths_to_mask(torch.tensor(CLIPS), 8)
    return torch.where(mask[..., None], torch.randn(4, 8, 10), torch.tensor(1e3)), mask


@pytest.mark.parametrize("views", [1, 3])
def test_clips_equal_the_loop(views: int) -> None:
    """Section 3.1's video encoder, and Eqs. (2)-(4) over its frames."""
    frames, mask = clips()
    method = PVSE(10, 6, 8, views, image_global="states").eval()
    assert isinstance(method.image_global, LastStates)
    assert method.image_net is not None
    with torch.no_grad():
        made = method.encode_image(frames, mask, attention=True)
        assert made.attention is not None
        assert made.embeddings.shape == (4, views, 8)
        for clip, size in enumerate(CLIPS):
            own = frames[clip, :size]
            whole = reference.last_states(method.image_global.gru, own)
            expected = l2_normalize(reference.pie_net(method.image_net, own, whole))
            torch.testing.assert_close(made.embeddings[clip], expected, rtol=1e-5, atol=1e-5)
            assert not made.attention[clip, :, size:].any()


def test_a_clip_played_backwards_is_another() -> None:
    frames, mask = clips()
    kinds = (("mean", True), ("states", False), ("legacy", False), ("changes", False))
    for kind, alike in kinds:
        method = PVSE(10, 6, 8, image_global=kind).eval()
        assert method.order_matters != alike
        ahead, back = (method.encode_image(x[:1], mask[:1]) for x in (frames, frames.flip(1)))
        same = torch.allclose(ahead.embeddings, back.embeddings, atol=1e-5)
        assert same == alike


def test_changes_are_the_mean_and_the_states_of_what_differs_from_it() -> None:
    frames, mask = clips()
    method = PVSE(10, 6, 8, image_global="changes").eval()
    assert isinstance(method.image_global, Changes)
    with torch.no_grad():
        made = method.image_global(frames, mask)
        for clip, size in enumerate(CLIPS):
            own = frames[clip, :size]
            mean = method.image_global.project(own).mean(dim=0)
            changes = method.image_global.project(own) - mean
            moved = reference.last_states(method.image_global.states.gru, changes)
            torch.testing.assert_close(made[clip], mean + moved)
        still = frames[:1, :1].expand(-1, 8, -1)  # eight equal frames have no changes either
        whole = method.image_global(still, mask[:1]) - method.image_global.project(still[:, 0])
        nothing = reference.last_states(method.image_global.states.gru, torch.zeros(8, 8))
    torch.testing.assert_close(whole[0], nothing)
