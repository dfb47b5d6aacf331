"""Evidence adds up to the score, for all methods and options."""

import pytest
import torch
from torch import Tensor

from polyview.models import Method
from polyview.models.evidence import Evidence, Parts, mean_evidence
from polyview.models.vse_infty import VSEPP
from tests.models.conftest import CASES, IMAGE_DIM, TEXT_DIM, build, label, sets

Sets = tuple[Tensor, Tensor]  # features (B, N, d) and their mask (B, N)
SPLIT = [
    *CASES,  # and methods without attention, with untrained weights, or with a low temperature
    ("vse_infty", {"pooling": "gcn_seq2seq", "text_pooling": "self_attention"}),
    ("pvse", {"views": 0}),
    ("pvse", {"views": 1, "legacy_text": True, "image_global": "legacy"}),
    ("avse", {"views": 1, "temperature": 0.01}),
]


@pytest.fixture(params=SPLIT, ids=label)
def method(request: pytest.FixtureRequest) -> Method:
    return build(request.param)


def evidence_of(method: Method, images: Sets, texts: Sets) -> Evidence:
    return method.evidence(method.image_parts(*images), method.text_parts(*texts))


def assert_adds_up(results: Evidence, scores: Tensor) -> None:
    """Checks the sum to 1e-4 of the score, plus the rounding error of terms that cancel out."""
    parts = results.cells.abs().sum((-2, -1)) + results.whole_sentence.abs().sum(-1)
    parts += results.base.abs()
    assert ((results.score - scores).abs() <= 1e-4 * scores.abs() + 1e-6 * (1 + parts)).all()


@torch.inference_mode()
def test_parts_add_up_to_views_and_evidence_to_scores(method: Method) -> None:
    """Every image with every text, and with an image as the query."""
    images, texts = sets([9, 1, 4, 9], IMAGE_DIM, 0), sets([5, 1, 12], TEXT_DIM, 1)
    views, words = method.encode_image(*images), method.encode_text(*texts)
    image_parts, text_parts = method.image_parts(*images), method.text_parts(*texts)
    for made, parts, mask in ((views, image_parts, images[1]), (words, text_parts, texts[1])):
        torch.testing.assert_close(parts.total, made.embeddings, rtol=1e-4, atol=2e-6)
        assert not parts.rows[:, :, :-2].mT.masked_select(~mask[:, None, None]).any()
    questions = [(text_parts, words, index) for index in range(3)] + [(image_parts, views, 2)]
    for parts, encoded, index in questions:
        item, query = Parts(parts.rows[index : index + 1]), encoded[index : index + 1]
        results = method.evidence(image_parts, item)
        assert results.cells.shape == (4, 9, parts.rows.shape[2] - 2)
        assert_adds_up(results, method.score(views, query)[:, 0])
        by_view = method.evidence(image_parts, item, per_view=True)
        assert_adds_up(by_view, method.view_scores(views, query)[..., 0].T)


def test_ensembles_and_terms_add_up() -> None:
    images, texts = sets([9, 4], IMAGE_DIM, 0), sets([5], TEXT_DIM, 1)
    chosen = [build((name, {})) for name in ("vse_infty", "pvse", "avse")]
    parts = [evidence_of(m, images, texts) for m in chosen]
    scores = [m.score(m.encode_image(*images), m.encode_text(*texts))[:, 0] for m in chosen]
    assert_adds_up(mean_evidence(parts), torch.stack(scores).mean(0))
    assert_adds_up(parts[1].scaled(-2.5), -2.5 * scores[1])


def test_terms_without_a_word_belong_to_the_whole_sentence() -> None:
    images, texts = sets([9], IMAGE_DIM, 0), sets([5], TEXT_DIM, 1)
    for name, value, of_words, of_sentence in (
        ("views", 0, False, True),
        ("views", 2, True, True),
        ("fusion", "local", True, False),
    ):
        results = evidence_of(build(("pvse", {name: value})), images, texts)
        assert bool(results.cells.any()) == of_words
        assert bool(results.whole_sentence.any()) == of_sentence
    summary = evidence_of(build(("base_cls", {})), images, texts)
    assert summary.cells[0].nonzero().tolist() == [[0, 0]]


def test_the_bias_of_a_layer_norm_is_in_the_constant_row() -> None:
    norm = torch.nn.LayerNorm(8)
    torch.nn.init.normal_(norm.bias)
    parts = Parts.of(torch.randn(1, 1, 3, 8)).layer_norm(norm)
    assert not parts.rows[:, :, -2].any()
    torch.testing.assert_close(parts.rows[0, 0, -1], norm.bias)


def test_evidence_of_average_pooling_is_the_mean_of_products() -> None:
    method = build(("vsepp", {"embed_dim": TEXT_DIM}))
    images, texts = sets([3], IMAGE_DIM, 0), sets([2], TEXT_DIM, 1)
    assert isinstance(method, VSEPP)
    cells = method.project_image(*images)[0]
    lengths = cells.mean(0).norm() * texts[0][0].mean(0).norm()
    results = evidence_of(method, images, texts)
    torch.testing.assert_close(results.cells[0], cells @ texts[0][0].T / 6 / lengths)


def test_too_many_blocks_for_memory_are_refused() -> None:
    method = build(("avse", {"embed_dim": 1024, "block_dim": 1}))
    images, texts = sets([2] * 4, IMAGE_DIM, 0), sets([2], TEXT_DIM, 1)
    with pytest.raises(ValueError, match=r"\(2048, 1024\) blocks of 4 pairs"):
        evidence_of(method, images, texts)
