"""Evidence adds up to the score: for every method and option, whatever the sets."""

import pytest
import torch
from torch import Tensor

from polyview import models
from polyview.models import METHODS, Method
from polyview.models.aggregators import AGGREGATORS
from polyview.models.evidence import Evidence, Parts, mean_evidence
from polyview.models.views import lengths_to_mask
from polyview.models.vse_infty import VSEPP
from tests.models.conftest import CASES, IMAGE_DIM, TEXT_DIM

Case = tuple[str, dict[str, object]]
POOLINGS = ("gpo", "mean", "max", "kmax", *AGGREGATORS)
MORE: list[Case] = [
    *(("vse_infty", {"pooling": p, "text_pooling": p, "pool_count": 3}) for p in POOLINGS),
    ("mv_vse", {"views": 4, "mlp_dim": 8, "released_gpo": True}),
    ("mv_vse", {"own_projections": True, "released_gpo": True, "mlp_dim": 8}),
    ("pvse", {"views": 0}),
    ("pvse", {"views": 1, "legacy_text": True}),
    ("pvse", {"views": 3, "fusion": "concat", "match": "concat"}),
    ("pvse", {"views": 3, "fusion": "local"}),
    ("pvse", {"views": 3, "fusion": "concat", "image_global": "states"}),
    ("avse", {"temperature": 0.1}),
    ("avse", {"temperature": 0.02, "iterations": 3}),
    ("avse", {"views": 3, "block_dim": 4, "released_gpo": True}),
    ("avse", {"views": 2, "sampled_features": True}),
    ("mvam", {"code_space": "encoder"}),
    ("mvam", {"learned_temperature": 0.05}),
]
RELEASED = {"released_gpo": True, "released_text": True, "sampled_features": True}
OFFICIAL: list[Case] = [  # as export/official.py builds them
    ("vse_infty", {"mlp_dim": 8, "released_gpo": True}),
    ("mv_vse", {"aggregator": "released", "views": 2}),
    ("pvse", {"views": 2, "legacy_text": True}),
    ("pvse", {"views": 3, "legacy_text": True, "image_global": "legacy"}),
    ("avse", {"match": "maxsim", "block_dim": 4, "views": 2, **RELEASED}),
    ("avse", {"match": "mean", "views": 3}),
]
SPLIT = CASES + MORE + OFFICIAL


def build(case: Case, seed: int = 3) -> Method:
    torch.manual_seed(seed)
    name, arguments = case
    return models.build(name, IMAGE_DIM, TEXT_DIM, {"embed_dim": 16, **arguments}).eval()


def label(case: Case) -> str:
    return " ".join([case[0], *(f"{name}={value}" for name, value in case[1].items())])


@pytest.fixture(params=SPLIT, ids=label)
def method(request: pytest.FixtureRequest) -> Method:
    return build(request.param)


def sets(sizes: list[int], dim: int, seed: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randn(len(sizes), max(sizes), dim, generator=torch.Generator().manual_seed(seed))
    return drawn, lengths_to_mask(torch.tensor(sizes), max(sizes))


def assert_adds_up(results: Evidence, scores: Tensor) -> None:
    """To 1e-4 of the score, or to what float32 can tell of its parts where they cancel out."""
    parts = (
        results.cells.abs().sum((-2, -1))
        + results.whole_sentence.abs().sum(-1)
        + results.base.abs()
    )
    assert ((results.score - scores).abs() <= 1e-4 * scores.abs() + 1e-6 * (1 + parts)).all()


@torch.inference_mode()
def check(method: Method, images: tuple[Tensor, Tensor], texts: tuple[Tensor, Tensor]) -> None:
    """Compares parts with views, and evidence with the scores, of every image with every text."""
    views, words = method.encode_image(*images), method.encode_text(*texts)
    image_parts, text_parts = method.image_parts(*images), method.text_parts(*texts)
    for made, parts, mask in ((views, image_parts, images[1]), (words, text_parts, texts[1])):
        torch.testing.assert_close(parts.total, made.embeddings, rtol=1e-4, atol=2e-6)
        assert not parts.rows[:, :, :-2].mT.masked_select(~mask[:, None, None]).any()
    for text in range(len(words)):
        item = Parts(text_parts.rows[text : text + 1])
        own = words[text : text + 1]
        results = method.evidence(image_parts, item)
        assert results.cells.shape == (len(views), images[1].shape[1], texts[1].shape[1])
        assert_adds_up(results, method.score(views, own)[:, 0])
        by_view = method.evidence(image_parts, item, per_view=True)
        assert_adds_up(by_view, method.view_scores(views, own)[..., 0].T)


def test_parts_add_up_to_views_and_evidence_to_scores(method: Method) -> None:
    check(method, sets([9, 1, 4, 9], IMAGE_DIM, 0), sets([5, 1, 12], TEXT_DIM, 1))


@torch.inference_mode()
def test_padding_and_the_rest_of_the_batch_change_nothing(method: Method) -> None:
    (cells, real), text = sets([7, 2, 5], IMAGE_DIM, 0), sets([6], TEXT_DIM, 1)
    together = method.evidence(method.image_parts(cells, real), method.text_parts(*text))
    for item, size in enumerate([7, 2, 5]):
        junk = torch.full((1, 3, IMAGE_DIM), 1e3)
        padded = torch.cat([cells[item : item + 1, :size], junk], dim=1)
        mask = lengths_to_mask(torch.tensor([size]), size + 3)
        words = torch.cat([text[0], torch.full((1, 2, TEXT_DIM), -1e3)], dim=1)
        parts = method.text_parts(words, lengths_to_mask(torch.tensor([6]), 8))
        alone = method.evidence(method.image_parts(padded, mask), parts)
        torch.testing.assert_close(
            alone.cells[0, :size, :6], together.cells[item, :size], rtol=1e-4, atol=2e-6
        )
        whole = together.whole_sentence[item, :size]
        torch.testing.assert_close(alone.whole_sentence[0, :size], whole, rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(alone.base[0], together.base[item], rtol=1e-4, atol=2e-6)
        assert not alone.cells[:, size:].any()
        assert not alone.cells[..., 6:].any()


@torch.inference_mode()
def test_another_image_can_be_the_question(method: Method) -> None:
    images, question = sets([9, 4], IMAGE_DIM, 0), sets([5], IMAGE_DIM, 1)
    results = method.evidence(method.image_parts(*images), method.image_parts(*question))
    views = method.encode_image(*images), method.encode_image(*question)
    assert results.cells.shape == (2, 9, 5)
    assert_adds_up(results, method.score(*views)[:, 0])


def test_ensembles_and_terms_add_up() -> None:
    images, texts = sets([9, 4], IMAGE_DIM, 0), sets([5], TEXT_DIM, 1)
    chosen = [build(("vse_infty", {})), build(("pvse", {})), build(("avse", {}))]
    parts = [m.evidence(m.image_parts(*images), m.text_parts(*texts)) for m in chosen]
    scores = [m.score(m.encode_image(*images), m.encode_text(*texts))[:, 0] for m in chosen]
    assert_adds_up(mean_evidence(parts), torch.stack(scores).mean(0))
    assert_adds_up(parts[1].scaled(-2.5), -2.5 * scores[1])


def test_what_cannot_be_told_apart_goes_to_the_whole_sentence() -> None:
    images, texts = sets([9], IMAGE_DIM, 0), sets([5], TEXT_DIM, 1)
    for views, shared in ((0, True), (2, False)):
        method = build(("pvse", {"views": views}))
        results = method.evidence(method.image_parts(*images), method.text_parts(*texts))
        assert results.whole_sentence.any()
        assert shared == (not results.cells.any())
    local = build(("pvse", {"fusion": "local"}))
    results = local.evidence(local.image_parts(*images), local.text_parts(*texts))
    assert not results.whole_sentence.any()


def test_a_summary_brings_everything() -> None:
    method = build(("base_cls", {}))
    images, texts = sets([9], IMAGE_DIM, 0), sets([5], TEXT_DIM, 1)
    results = method.evidence(method.image_parts(*images), method.text_parts(*texts))
    assert results.cells[0].nonzero().tolist() == [[0, 0]]


def test_the_bias_of_a_layer_norm_is_the_constant() -> None:
    norm = torch.nn.LayerNorm(8)
    torch.nn.init.normal_(norm.bias)
    parts = Parts.of(torch.randn(1, 1, 3, 8)).layer_norm(norm)
    assert not parts.rows[:, :, -2].any()
    torch.testing.assert_close(parts.rows[0, 0, -1], norm.bias)


def test_a_pooled_cell_that_is_alone_brings_its_own_cosines() -> None:
    """With average pooling evidence is the cosine shared out: checked by hand."""
    method = build(("vsepp", {"embed_dim": TEXT_DIM}))
    images, texts = sets([3], IMAGE_DIM, 0), sets([2], TEXT_DIM, 1)
    results = method.evidence(method.image_parts(*images), method.text_parts(*texts))
    assert isinstance(method, VSEPP)
    cells = method.project_image(*images)[0]
    lengths = cells.mean(0).norm() * texts[0][0].mean(0).norm()
    torch.testing.assert_close(results.cells[0], cells @ texts[0][0].T / 6 / lengths)


def test_every_method_is_covered() -> None:
    assert {name for name, _ in SPLIT} == set(METHODS)


def test_more_blocks_than_memory_are_refused() -> None:
    method = build(("avse", {"embed_dim": 1024, "block_dim": 1}))
    images, texts = sets([2] * 4, IMAGE_DIM, 0), sets([2], TEXT_DIM, 1)
    with pytest.raises(ValueError, match=r"\(2048, 1024\) blocks of 4 pairs"):
        method.evidence(method.image_parts(*images), method.text_parts(*texts))
