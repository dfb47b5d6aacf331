"""AVSE: matching by Sinkhorn in float64, the release's scores, losses and heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models import Views
from models.avse import AVSE
from models.sinkhorn import log_plan, match_blocks
from models.views import lengths_to_mask
from tests.golden.loading import (
    GPO_NAMES,
    check,
    double,
    load,
    load_weights,
    released_gpo,
    renamed,
)
from training.objectives.avse import dimension_wise
from training.objectives.losses import hinge_triplet

FILES = ("avse_matching_a", "avse_matching_b", "avse_matching_three_views")


def avse(data: dict[str, Tensor], match: str, iterations: int = 20) -> AVSE:
    block_dim, text_dim = int(data["block_dim"]), data["text_embedding"].shape[1]
    views = data["image_embedding"].shape[1] // text_dim
    method = AVSE(4, text_dim, text_dim, block_dim, views, match=match, iterations=iterations)
    if method.dustbin is not None:
        method.dustbin.data = data["dustbin_z"].clone()
    return method


def block_views(method: AVSE, data: dict[str, Tensor]) -> tuple[Views, Views]:
    """The stored embeddings as the method's encoders would give them: blocks of unit length."""
    text = data["text_embedding"]
    image = data["image_embedding"].unflatten(1, (-1, text.shape[1]))
    return Views(method._unit_blocks(image)), Views(method._unit_blocks(text[:, None]))


def affinity_of(data: dict[str, Tensor]) -> Tensor:
    """(B_img, B_txt, p, q) -> (p, q, pairs)."""
    return data["affinity_eq1"].permute(2, 3, 0, 1).flatten(2)


def by_pair(plan: Tensor, data: dict[str, Tensor]) -> Tensor:
    """(p, q, pairs) -> (B_img, B_txt, p, q)."""
    shape = data["affinity_eq1"].shape[:2]
    return plan.unflatten(2, shape).permute(2, 3, 0, 1)


@pytest.mark.parametrize("name", FILES)
def test_golden_affinities(name: str) -> None:
    data = double(load(name))
    images, texts = block_views(avse(data, "maxsim"), data)
    blocks = [v.embeddings.unflatten(2, (-1, int(data["block_dim"]))) for v in (images, texts)]
    p, q = (b.flatten(1, 2) for b in blocks)
    check(torch.einsum("ipd,tqd->itpq", p, q), data["affinity_eq1"], 1e-7)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("iterations", [1, 5, 20, 100])
def test_golden_paper_scores(name: str, iterations: int) -> None:
    data = load(name)
    method = avse(data, "sinkhorn", iterations)
    scores = method.score(*block_views(method, data))
    check(scores, data[f"paper_scores_iters{iterations}"])


@pytest.mark.parametrize("name", FILES)
def test_golden_paper_plan(name: str) -> None:
    data = double(load(name))
    affinity, z = affinity_of(data), data["dustbin_z"]
    plan = log_plan(affinity, z, 20).exp()
    check(by_pair(plan, data), data["paper_plan_iters20"], 1e-9)
    check(by_pair(match_blocks(affinity, z), data), data["paper_plan_iters20"][..., :-1, :-1], 1e-7)
    rows, columns = data["marginal_rows"], data["marginal_cols"]
    assert rows.tolist() == [1.0] * (len(rows) - 1) + [len(columns) - 1.0]
    check(plan.sum(dim=1), rows[:, None].expand(-1, plan.shape[2]), 1e-9)
    check(plan.sum(dim=0), columns[:, None].expand(-1, plan.shape[2]), 1e-9)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("iterations", [1, 20])
def test_golden_released_log_plan(name: str, iterations: int) -> None:
    data = load(name)
    plan = log_plan(affinity_of(data).float(), data["dustbin_z"].float(), iterations)
    check(by_pair(plan, data), data[f"official_sinkhorn_log_plan_iters{iterations}"])
    if iterations == 20:
        matched = by_pair(plan, data)[..., :-1, :-1]
        scores = matched.amax(dim=2).sum(dim=2)
        check(scores, data["official_scores_log_plan_iters20"])


@pytest.mark.parametrize("name", FILES)
def test_golden_gradients_of_paper_scores(name: str) -> None:
    data = double(load(name))
    method = avse(data, "sinkhorn")
    image = data["image_embedding"].requires_grad_()
    text = data["text_embedding"].requires_grad_()
    (method.score(*block_views(method, data)) * data["upstream"]).sum().backward()
    assert method.dustbin is not None
    for tensor, name in ((image, "image"), (text, "text"), (method.dustbin, "z")):
        assert tensor.grad is not None
        check(tensor.grad, data[f"paper_grad_{name}"], 1e-6)


@pytest.mark.parametrize("name", FILES)
def test_golden_released_scores(name: str) -> None:
    data = load(name)
    method = avse(data, "maxsim")
    image = data["image_embedding"].requires_grad_()
    text = data["text_embedding"].requires_grad_()
    scores = method.score(*block_views(method, data))
    check(scores, data["official_scores_no_sinkhorn"])
    check(scores, data["paper_scores_without_sinkhorn"])
    (scores * data["upstream"]).sum().backward()
    assert image.grad is not None
    assert text.grad is not None
    check(image.grad, data["official_grad_image"])
    check(text.grad, data["official_grad_text"])


@pytest.mark.parametrize("kind", ["sum", "hardest"])
def test_golden_released_losses(kind: str) -> None:
    data = load("avse_losses")
    method = avse(data, "maxsim")
    image = data["image_embedding"].requires_grad_()
    text = data["text_embedding"].requires_grad_()
    scores = method.score(*block_views(method, data))
    check(scores, data["scores"])
    own, margin = torch.eye(len(scores), dtype=torch.bool), float(data["margin"])
    matching = hinge_triplet(scores, own, margin, hardest=kind == "hardest")
    first, second = image.chunk(2, dim=1)
    regulariser = dimension_wise(first, second, float(data["lambda1_code"]), released=True)
    check(matching, data[f"official_matching_{kind}"])
    check(regulariser, data[f"official_reg_{kind}"])
    check(regulariser, data["reg_official_form_float64"])
    check(matching + regulariser, data[f"official_total_{kind}"])
    (matching + regulariser).backward()
    assert image.grad is not None
    assert text.grad is not None
    check(image.grad, data[f"official_grad_image_{kind}"])
    check(text.grad, data[f"official_grad_text_{kind}"])


def test_golden_paper_regulariser() -> None:
    data = double(load("avse_losses"))
    first, second = (v.clone().requires_grad_() for v in data["image_embedding"].chunk(2, dim=1))
    weight = float(data["lambda1_code"])
    loss = dimension_wise(first, second, weight)
    check(loss, data["reg_paper"], 1e-6)
    check(dimension_wise(first, second, 0.0), data["reg_paper_diagonal_term"], 1e-6)
    others = dimension_wise(first, second, 1.0) - dimension_wise(first, second, 0.0)
    check(others, data["reg_paper_offdiagonal_term"], 1e-6)
    loss.backward()
    assert first.grad is not None
    assert second.grad is not None
    check(first.grad, data["paper_grad_view1"], 1e-6)
    check(second.grad, data["paper_grad_view2"], 1e-6)


def test_golden_image_head() -> None:
    data = load("avse_image_head")
    embed_dim, image_dim = data["image_encoder.fc.weight"].shape
    method = AVSE(image_dim, 4, embed_dim, released_gpo=True)
    load_weights(method.project_image, renamed(data, "image_encoder.fc.", {}, to="linear."))
    method.pool_image = released_gpo(data, "image_encoder.gpool.")
    given = torch.cat([data["view1_features"], data["view2_features"]], dim=1)  # both as one set
    first = torch.arange(given.shape[1]) < data["view1_features"].shape[1]
    halves = torch.stack([first, ~first])[:, None].expand(-1, len(given), -1)
    method.groups = lambda *_: halves  # type: ignore[method-assign]
    views = method.encode_image(given, torch.ones(given.shape[:2]).bool())
    check(views.extras["groups"].flatten(1), data["image_embedding"])


def test_golden_text_head() -> None:
    data = load("avse_text_head")
    hidden, mask = data["hidden_states"], lengths_to_mask(data["lengths"], 7)
    mask = lengths_to_mask(data["lengths"], hidden.shape[1])
    embed_dim, text_dim = data["txt_enc.fc.weight"].shape
    method = AVSE(4, text_dim, embed_dim, released_gpo=True, released_text=True).eval()
    names = {"fc.": "linear.", "mlp.layers.0.": "mlp.0.", "mlp.bns.0.": "mlp.1."}
    names |= {"mlp.layers.1.": "mlp.3."}
    used = ("linear.", "mlp.0.", "mlp.1.", "mlp.3.")  # a second batch-norm is never used
    weights = renamed(data, "txt_enc.", names)
    load_weights(method.project_text, {k: v for k, v in weights.items() if k.startswith(used)})
    load_weights(method.norm_text, renamed(data, "txt_enc.ln.", {}))
    method.pool_text = released_gpo(data, "txt_enc.gpool.")
    projected = method.project_text(hidden, mask)
    check(projected[mask], data["projected"][mask])
    # the head's output before its blocks get unit length
    pooled = method.norm_text(method.pool_text(projected, mask)[0])
    check(pooled, data["text_embedding"])
    blocks = method.encode_text(hidden, mask).embeddings.unflatten(2, (-1, method.block_dim))
    expected = nn.functional.normalize(data["text_embedding"].view_as(blocks), dim=3)
    check(blocks, expected)


def test_golden_gpo_names_cover_the_heads() -> None:
    data = load("avse_text_head")
    assert "score.weight" in renamed(data, "txt_enc.gpool.", GPO_NAMES)
