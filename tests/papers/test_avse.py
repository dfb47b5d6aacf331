"""AVSE: views, blocks, Sinkhorn, scores and losses against loops and the release."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from polyview.models import Views
from polyview.models.avse import AVSE, AVSEConfig
from polyview.models.sinkhorn import log_plan, match_blocks
from polyview.models.views import NamedArray, lengths_to_mask
from polyview.training.objectives.avse import dimension_wise_regulariser
from tests.golden.loading import check, double, grad, load, released_gpo, renamed
from tests.models.conftest import IMAGE_DIM, TEXT_DIM, encoded
from tests.papers.conftest import by_name, hinge_triplet, terms_of, views_of

SIZES = torch.tensor([40, 1, 11])
MASK = torch.arange(40) < SIZES[:, None]


@pytest.fixture
def features() -> Tensor:
    return torch.randn(3, 40, 10)


def test_groups_have_the_papers_sizes_and_are_random_in_training(features: Tensor) -> None:
    method = AVSE(10, 8, AVSEConfig(8))
    for training, share in ((True, 0.75), (False, 0.9)):
        groups = method.train(training).sample_groups(features, MASK)
        expected = (share * SIZES).round().clamp_min(1).long()
        assert torch.equal(groups.sum(dim=2), expected.expand(2, 3))
        assert not (groups & ~MASK).any()
    method.train()
    draws = torch.stack([method.sample_groups(features, MASK) for _ in range(200)]).float()
    shares = draws.mean(dim=0)[:, 0]  # of the set of 40
    assert float((shares - 0.75).abs().max()) < 0.15
    assert not torch.equal(draws[0, 0], draws[0, 1])


def test_groups_in_evaluation_depend_on_the_elements_only(features: Tensor) -> None:
    method = AVSE(10, 8, AVSEConfig(8)).eval()
    groups = method.sample_groups(features, MASK)
    assert torch.equal(groups, AVSE(10, 8, AVSEConfig(16)).eval().sample_groups(features, MASK))
    order = torch.randperm(40)
    assert torch.equal(method.sample_groups(features[:, order], MASK[:, order]), groups[..., order])
    left_out = MASK & ~groups
    assert not (left_out[0] & left_out[1]).any()


def test_averaged_groups_are_compared_by_cosine(features: Tensor) -> None:
    torch.manual_seed(1)
    method = AVSE(10, 8, AVSEConfig(8, views=3, match="mean")).eval()
    apart = AVSE(10, 8, AVSEConfig(8, views=3, match="maxsim", block_dim=8)).eval()
    apart.load_state_dict(method.state_dict())  # the same weights in the same groups
    texts = method.encode_text(torch.randn(4, 5, 8), torch.ones(4, 5, dtype=torch.bool))
    means = apart.encode_image(features, MASK).embeddings.mean(dim=1)  # over the groups: (3, 8)
    expected = torch.cosine_similarity(means[:, None], texts.embeddings[:, 0], dim=2)
    torch.testing.assert_close(method.score(method.encode_image(features, MASK), texts), expected)
    assert method.row_search


def test_scores_in_chunks_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    method = AVSE(10, 8, AVSEConfig(8))
    images = Views(method.unit_blocks(torch.randn(150, 2, 8)))
    texts = Views(method.unit_blocks(torch.randn(7, 1, 8)))
    whole = method.score(images, texts)
    monkeypatch.setattr("polyview.models.avse._PAIRS_PER_STEP", 20)
    monkeypatch.setattr("polyview.models.avse._IMAGES_PER_PRODUCT", 8)
    torch.testing.assert_close(method.score(images, texts), whole)


@pytest.mark.parametrize(("z", "temperature"), [(0.0, 1.0), (2.0, 0.3), (-1.0, 0.08), (0.5, 0.01)])
def test_blocks_and_logarithms_give_the_same_plan(z: float, temperature: float) -> None:
    affinity = torch.rand(4, 3, 50) * 2 - 1
    upstream = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(0))
    results = []
    for compute in (match_blocks, lambda *a: log_plan(*a)[:-1, :-1].exp()):
        leaves = affinity.clone().requires_grad_(), torch.tensor(z, requires_grad=True)
        plan = compute(*leaves, 20, temperature)
        (plan * upstream).sum().backward()
        results.append((plan, *map(grad, leaves)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 / temperature)


@pytest.mark.parametrize("views", [2, 3])
def test_avse_regularises_pairs_of_views(views: int) -> None:
    made = views_of("avse", views=views)
    groups = made[1].extras["groups"].unbind(dim=1)
    expected = [dimension_wise_regulariser(a, b) for a, b in itertools.combinations(groups, 2)]
    terms = terms_of("avse", made=made, regulariser=0.5)
    torch.testing.assert_close(terms["regulariser"], 0.5 * torch.stack(expected).mean())
    assert terms_of("avse", made=views_of("avse", views=1)).keys() == {"triplet"}


FILES = ("avse_matching_a", "avse_matching_b", "avse_matching_three_views")


def avse(data: dict[str, Tensor], match: str, iterations: int = 20) -> AVSE:
    block_dim, text_dim = int(data["block_dim"]), data["text_embedding"].shape[1]
    views = data["image_embedding"].shape[1] // text_dim
    config = AVSEConfig(text_dim, block_dim, views, match=match, iterations=iterations)
    method = AVSE(4, text_dim, config)
    if method.dustbin is not None:
        method.dustbin.data = data["dustbin_z"].clone()
    return method


def scored(method: AVSE, data: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the scores of the stored embeddings, and the embeddings of images and texts."""
    image, text = (data[f"{side}_embedding"].requires_grad_() for side in ("image", "text"))
    images = Views(method.unit_blocks(image.unflatten(1, (-1, text.shape[1]))))
    return method.score(images, Views(method.unit_blocks(text[:, None]))), image, text


def by_pair(plan: Tensor, data: dict[str, Tensor]) -> Tensor:
    """Reshapes (p, q, pairs) to (B_img, B_txt, p, q)."""
    shape = data["affinity_eq1"].shape[:2]
    return plan.unflatten(2, shape).permute(2, 3, 0, 1)


@pytest.mark.parametrize("name", FILES)
def test_golden_scores_and_plans(name: str) -> None:
    """Scores and plans of the paper; the logarithm of the plan of the release."""
    data = double(load(name))
    for iterations in (1, 5, 100, 20):
        method = avse(data, "sinkhorn", iterations)
        scores, image, text = scored(method, data)
        check(scores, data[f"paper_scores_iters{iterations}"])
    (scores * data["upstream"]).sum().backward()
    for tensor, part in ((image, "image"), (text, "text"), (method.get_parameter("dustbin"), "z")):
        check(grad(tensor), data[f"paper_grad_{part}"], 1e-6)
    z = data["dustbin_z"]
    affinity = data["affinity_eq1"].permute(2, 3, 0, 1).flatten(2)  # (p, q, pairs)
    check(by_pair(log_plan(affinity, z, 20).exp(), data), data["paper_plan_iters20"], 1e-9)
    check(by_pair(match_blocks(affinity, z), data), data["paper_plan_iters20"][..., :-1, :-1], 1e-7)
    for iterations in (1, 20):
        released = by_pair(log_plan(affinity.float(), z.float(), iterations), data)
        check(released, data[f"official_sinkhorn_log_plan_iters{iterations}"])


@pytest.mark.parametrize("name", FILES)
def test_golden_released_scores(name: str) -> None:
    data = load(name)
    scores, image, text = scored(avse(data, "maxsim"), data)
    check(scores, data["official_scores_no_sinkhorn"])
    check(scores, data["paper_scores_without_sinkhorn"])
    (scores * data["upstream"]).sum().backward()
    check(grad(image), data["official_grad_image"])
    check(grad(text), data["official_grad_text"])


@pytest.mark.parametrize("kind", ["sum", "hardest"])
def test_golden_released_losses(kind: str) -> None:
    data = load("avse_losses")
    scores, image, text = scored(avse(data, "maxsim"), data)
    own, margin = torch.eye(len(scores), dtype=torch.bool), float(data["margin"])
    matching = hinge_triplet(scores, own, margin, hardest=kind == "hardest")
    first, second = image.chunk(2, dim=1)
    regulariser = dimension_wise_regulariser(
        first, second, float(data["lambda1_code"]), released=True
    )
    check(matching, data[f"official_matching_{kind}"])
    check(regulariser, data[f"official_reg_{kind}"])
    (matching + regulariser).backward()
    check(grad(image), data[f"official_grad_image_{kind}"])
    check(grad(text), data[f"official_grad_text_{kind}"])


def test_golden_paper_regulariser() -> None:
    data = double(load("avse_losses"))
    first, second = (v.clone().requires_grad_() for v in data["image_embedding"].chunk(2, dim=1))
    weight = float(data["lambda1_code"])
    loss = dimension_wise_regulariser(first, second, weight)
    check(loss, data["reg_paper"], 1e-6)
    loss.backward()
    check(grad(first), data["paper_grad_view1"], 1e-6)
    check(grad(second), data["paper_grad_view2"], 1e-6)


def test_golden_image_head() -> None:
    data = load("avse_image_head")
    embed_dim, image_dim = data["image_encoder.fc.weight"].shape
    method = AVSE(image_dim, 4, AVSEConfig(embed_dim, released_gpo=True))
    method.project_image.load_state_dict(renamed(data, "image_encoder.fc.", {}, to="linear."))
    method.pool_image = released_gpo(data, "image_encoder.gpool.")
    values = torch.cat([data["view1_features"], data["view2_features"]], dim=1)  # in one set
    first = torch.arange(values.shape[1]) < data["view1_features"].shape[1]
    halves = torch.stack([first, ~first])[:, None].expand(-1, len(values), -1)
    method.sample_groups = lambda *_: halves  # type: ignore[method-assign]
    views = method.encode_image(values, torch.ones(values.shape[:2]).bool())
    check(views.extras["groups"].flatten(1), data["image_embedding"])


def test_golden_text_head() -> None:
    data = load("avse_text_head")
    hidden = data["hidden_states"]
    mask = lengths_to_mask(data["lengths"], hidden.shape[1])
    embed_dim, text_dim = data["txt_enc.fc.weight"].shape
    method = AVSE(4, text_dim, AVSEConfig(embed_dim, released_gpo=True, released_text=True)).eval()
    names = {"fc.": "linear.", "mlp.layers.0.": "mlp.0.", "mlp.bns.0.": "mlp.1."}
    names |= {"mlp.layers.1.": "mlp.3."}
    used = ("linear.", "mlp.0.", "mlp.1.", "mlp.3.")  # the release never uses its second batch norm
    weights = renamed(data, "txt_enc.", names)
    method.project_text.load_state_dict({k: v for k, v in weights.items() if k.startswith(used)})
    method.norm_text.load_state_dict(renamed(data, "txt_enc.ln.", {}))
    method.pool_text = released_gpo(data, "txt_enc.gpool.")
    projected = method.project_text(hidden, mask)
    check(projected[mask], data["projected"][mask])
    blocks = method.encode_text(hidden, mask).embeddings.unflatten(2, (-1, method.block_dim))
    expected = nn.functional.normalize(data["text_embedding"].view_as(blocks), dim=3)
    check(blocks, expected)


def sinkhorn(affinity: Tensor, z: float, iterations: int) -> Tensor:
    """Returns the plan (p + 1, q + 1) of one pair, rows scaled first: AVSE, section 3.2."""
    p, q = affinity.shape
    plan = [[math.exp(v) for v in row] + [math.exp(z)] for row in affinity.tolist()]
    plan.append([math.exp(z)] * (q + 1))
    rows, columns = [1.0] * p + [float(q)], [1.0] * q + [float(p)]
    for _ in range(iterations):
        for i, expected in enumerate(rows):
            scale = expected / sum(plan[i])
            plan[i] = [v * scale for v in plan[i]]
        for j, expected in enumerate(columns):
            scale = expected / sum(row[j] for row in plan)
            for row in plan:
                row[j] *= scale
    return torch.tensor(plan)


def marked(array: NamedArray) -> float:
    return sum(float(array.values[cell]) for cell in array.marks)


@torch.no_grad()
def test_the_displayed_plan_is_that_of_the_score_or_of_the_settings() -> None:
    method = AVSE(IMAGE_DIM, TEXT_DIM, AVSEConfig(16, block_dim=4, temperature=0.5))
    images, texts = encoded(method)
    displayed, score = by_name(method.inside(images, texts)), float(method.score(images, texts))
    affinity, plan = displayed["affinity"], displayed["plan"]
    assert tuple(affinity.values.shape) == (8, 4)
    assert not affinity.marks
    check(plan.values, sinkhorn(affinity.values / 0.5, 0.0, 20))
    assert marked(plan) == pytest.approx(score, abs=1e-5)
    assert float(displayed["sinkhorn_score"].values) == pytest.approx(score, abs=1e-5)
    once = by_name(method.inside(images, texts, iterations=1))
    check(once["plan"].values, sinkhorn(affinity.values / 0.5, 0.0, 1))
    maxsim = by_name(method.inside(images, texts, match="maxsim"))
    assert "plan" not in maxsim
    best = float(affinity.values.amax(dim=0).sum())
    for shown in (displayed, maxsim):
        assert float(shown["maxsim_score"].values) == pytest.approx(best)
    assert marked(maxsim["affinity"]) == pytest.approx(best)
    assert float(method.score(images, texts)) == score
    with pytest.raises(ValueError, match="match must be one of sinkhorn, maxsim, not"):
        method.inside(images, texts, match="hungarian")
    for wrong in (0, 101, 2.5, True, "three"):
        with pytest.raises(ValueError, match=r"iterations must be 1 to 100, not "):
            method.inside(images, texts, iterations=wrong)  # type: ignore[arg-type]


@torch.no_grad()
def test_a_method_with_maxsim_displays_a_plan_with_dustbin_zero() -> None:
    method = AVSE(IMAGE_DIM, TEXT_DIM, AVSEConfig(16, match="maxsim"))
    assert [knob.default for knob in method.knobs] == ["maxsim", 20]
    images, texts = encoded(method)
    displayed = by_name(method.inside(images, texts))
    score = float(method.score(images, texts))
    assert marked(displayed["affinity"]) == pytest.approx(score, abs=1e-5)
    assert "plan" not in displayed
    chosen = by_name(method.inside(images, texts, match="sinkhorn"))
    check(chosen["plan"].values, sinkhorn(chosen["affinity"].values, 0.0, 20))
