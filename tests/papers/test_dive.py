"""DivE: slots, similarity and losses, against loops written from the paper."""

import math
from itertools import permutations

import pytest
import torch

from models import Views
from models.dive import DivE, SetPrediction, best_assignment, smooth_chamfer
from models.layers import l2_normalize
from models.views import lengths_to_mask
from tests.papers.terms import IDS, terms_of, views_of
from training.objectives.dive import slot_uniformity
from training.objectives.losses import same_image
from training.objectives.pvse import multiple_instance

MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.fixture
def elements() -> torch.Tensor:
    torch.manual_seed(8)
    return torch.randn(2, 6, 8)


@torch.no_grad()
def loop(net: SetPrediction, elements: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots (K, D) and last attention (K, N) of one set (N, D), element by element."""
    slots = net.slots.clone()
    rows = net.norm_elements(elements)
    for _ in range(net.iterations):
        asked = net.query(net.norm_slots(slots))
        shares = torch.empty(len(slots), len(rows))
        for n, row in enumerate(rows):
            scores = torch.stack([slot @ net.key(row) / math.sqrt(len(row)) for slot in asked])
            shares[:, n] = scores.softmax(dim=0)  # the slots compete for each element
        attention = shares / shares.sum(dim=1, keepdim=True)
        gathered = [
            sum(a * net.value(row) for a, row in zip(w, rows, strict=True)) for w in attention
        ]
        slots = slots + net.gather(torch.stack(gathered))
        slots = slots + net.mlp(slots)
    return net.norm_last(slots), attention


@pytest.mark.parametrize("iterations", [1, 4])
def test_slots_equal_the_loop(elements: torch.Tensor, iterations: int) -> None:
    net = SetPrediction(8, 3, iterations)
    slots, attention = net(elements, MASK)
    for b in range(2):
        expected, shares = loop(net, elements[b, MASK[b]])
        torch.testing.assert_close(slots[b], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(attention[b][:, MASK[b]], shares, rtol=1e-4, atol=1e-5)
        assert not attention[b][:, ~MASK[b]].any()


def test_views_are_residuals_of_the_global_feature(elements: torch.Tensor) -> None:
    method = DivE(8, 8, 8, views=3).train()
    views = method.encode_image(elements, MASK)
    assert views.embeddings.shape == (2, 3, 8)
    residuals = views.extras["residuals"]
    projected = method.project_image(elements, MASK)
    whole = method.norm_image(method.pool_image(projected, MASK)[0])
    expected = l2_normalize(residuals + whole[:, None])
    torch.testing.assert_close(views.embeddings, expected)
    torch.testing.assert_close(residuals, method.set_image(projected, MASK)[0])


def test_similarity_is_a_soft_chamfer_distance() -> None:
    torch.manual_seed(2)
    method = DivE(8, 8, 5, alpha=16.0)
    images = Views(l2_normalize(torch.randn(3, 4, 5)))
    texts = Views(l2_normalize(torch.randn(2, 4, 5)))
    scores = method.score(images, texts)
    for i, image in enumerate(images.embeddings):
        for t, text in enumerate(texts.embeddings):
            of_image = sum(math.log(sum(math.exp(16 * float(x @ y)) for y in text)) for x in image)
            of_text = sum(math.log(sum(math.exp(16 * float(x @ y)) for x in image)) for y in text)
            expected = of_image / (2 * 16 * 4) + of_text / (2 * 16 * 4)
            assert float(scores[i, t]) == pytest.approx(expected, abs=1e-5)
    cosines = torch.tensor([[0.9, 0.1], [0.2, 0.3]])[..., None]
    sharp = float(smooth_chamfer(cosines, 1000.0)[0])
    assert sharp == pytest.approx(((0.9 + 0.3) / 2 + (0.9 + 0.3) / 2) / 2, abs=1e-3)  # best pairs


def test_slots_that_are_alike_cost(elements: torch.Tensor) -> None:
    same = torch.ones(2, 3, 8)
    assert float(slot_uniformity(same)) == pytest.approx(1.0)
    assert float(slot_uniformity(5 * same)) == pytest.approx(1.0)  # by their directions alone
    across = torch.eye(3, 8).expand(2, -1, -1)
    assert float(slot_uniformity(across)) == pytest.approx(math.exp(-4))  # |x - y|^2 = 2
    assert float(slot_uniformity(elements[:, :1])) == 0.0
    unit = l2_normalize(elements)
    gaps = [
        math.exp(-2 * float((one - other).square().sum()))
        for row in unit
        for i, one in enumerate(row)
        for other in row[i + 1 :]
    ]
    assert float(slot_uniformity(elements)) == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)


def test_the_objective_holds_the_paper_s_terms() -> None:
    method, images, texts = views_of("dive")
    terms = terms_of("dive")
    assert terms.keys() == {"mil", "diversity", "discrepancy"}
    positives = same_image(IDS, IDS)
    scores = method.score(images, texts)
    hardest = multiple_instance(scores, positives, 0.1, released=True, hardest=True)
    torch.testing.assert_close(terms["mil"], hardest)
    sides = (images.extras["residuals"], texts.extras["residuals"])
    torch.testing.assert_close(terms["diversity"], 0.01 * sum(map(slot_uniformity, sides)))


@pytest.mark.parametrize("alpha", [0.5, 16.0, 200.0])
def test_evidence_holds_for_any_alpha(elements: torch.Tensor, alpha: float) -> None:
    method = DivE(8, 8, 8, alpha=alpha).eval()
    words = torch.randn(2, 4, 8), lengths_to_mask(torch.tensor([4, 2]), 4)
    with torch.no_grad():
        parts = method.image_parts(elements, MASK), method.text_parts(*words)
        found = method.evidence(*parts).score
        images, texts = method.encode_image(elements, MASK), method.encode_text(*words)
        expected = method.score(images, texts).diagonal()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [{"views": 0}, {"iterations": 0}, {"alpha": 0.0}])
def test_sizes_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be 1 or more, and alpha"):
        DivE(8, 8, 8, **wrong)  # type: ignore[arg-type]


def test_sets_may_be_matched_one_to_one() -> None:
    torch.manual_seed(3)
    images, texts = (Views(l2_normalize(torch.randn(n, 4, 8))) for n in (3, 5))
    method = DivE(8, 8, 8, match="assignment").eval()
    scores, parts = method.score(images, texts), method.view_scores(images, texts)
    for i, image in enumerate(images.embeddings):
        for t, text in enumerate(texts.embeddings):
            sums = {
                order: sum(float(image[v] @ text[w]) for v, w in enumerate(order))
                for order in permutations(range(4))
            }
            order = max(sums, key=lambda order: sums[order])
            assert float(scores[i, t]) == pytest.approx(sums[order] / 4, abs=1e-6)
            for v, w in enumerate(order):
                expected = float(image[v] @ text[w]) / 4
                assert float(parts[v, i, t]) == pytest.approx(expected, abs=1e-6)


def test_every_view_has_a_partner_and_learns() -> None:
    torch.manual_seed(4)
    images, texts = torch.randn(6, 3, 8), torch.randn(6, 3, 8)
    images.requires_grad_()
    DivE(8, 8, 8, views=3, match="assignment").score(Views(images), Views(texts)).sum().backward()
    assert images.grad is not None
    assert images.grad.flatten(1).abs().sum(dim=1).min() > 0
    assert images.grad.abs().sum(dim=2).min() > 0  # of the largest cosine one view alone would
    partners = best_assignment(torch.randn(3, 3, 20))
    assert torch.equal(partners.sort(dim=0).values, torch.arange(3)[:, None].expand(3, 20))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"match": "hungarian"}, "match must be one of chamfer, assignment"),
        ({"match": "assignment", "views": 7}, "match assignment takes up to 6 views, not 7"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, str | int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DivE(8, 8, 8, **arguments)  # type: ignore[arg-type]
