"""What every method must keep to, whatever its paper."""

import re
from pathlib import Path

import pytest
import torch

from polyview import models
from polyview.models import Method, Views
from tests.models.conftest import IMAGE_DIM, TEXT_DIM, encoded

SIZES = torch.tensor([9, 1, 4])


def _set(dim: int, size: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return torch.randn(3, size, dim), torch.arange(size) < SIZES[:, None]


@pytest.mark.parametrize("side", ["encode_image", "encode_text"])
def test_padding_changes_nothing(method: Method, side: str) -> None:
    features, mask = _set(IMAGE_DIM if side == "encode_image" else TEXT_DIM)
    encode = getattr(method, side)
    views = encode(features, mask, attention=True)
    junk = torch.where(mask[..., None], features, torch.tensor(1e3))
    longer = torch.cat([junk, torch.full_like(junk[:, :2], -1e3)], dim=1)
    longer_mask = torch.cat([mask, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
    padded = encode(longer, longer_mask, attention=True)
    torch.testing.assert_close(padded.embeddings, views.embeddings, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(padded.attention[..., :9], views.attention, rtol=1e-4, atol=1e-5)
    assert padded.attention[..., 9:].abs().max() == 0
    assert (views.attention * ~mask[:, None]).abs().max() == 0


def test_order_of_an_image_set_matters_to_those_that_say_so(method: Method) -> None:
    features, mask = _set(IMAGE_DIM)
    order = torch.tensor([4, 8, 0, 2, 6, 1, 3, 7, 5])
    if method.summary_token:
        order = torch.tensor([0, 8, 4, 2, 6, 1, 3, 7, 5])
    views = method.encode_image(features, mask, attention=True)
    shuffled = method.encode_image(features[:, order], mask[:, order], attention=True)
    if method.order_matters:
        moved = (shuffled.embeddings - views.embeddings).abs().amax(dim=(1, 2))
        assert moved[0] > 1e-3
        return
    assert views.attention is not None
    if method.views_are_elements:
        texts = method.encode_text(*_set(TEXT_DIM))
        scores = method.score(views, texts)
        torch.testing.assert_close(method.score(shuffled, texts), scores)
        return
    torch.testing.assert_close(shuffled.embeddings, views.embeddings, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        shuffled.attention, views.attention[..., order], rtol=1e-4, atol=1e-5
    )


def test_gradient_reaches_every_parameter(method: Method) -> None:
    features, mask = _set(IMAGE_DIM)
    images = method.train().encode_image(features.requires_grad_(), mask)
    texts = method.encode_text(*_set(TEXT_DIM))
    weights = torch.randn(3, 3)
    scores = method.score(images, texts) + method.view_scores(images, texts).sum(dim=0)
    (scores * weights).sum().backward()  # some views may be the best of no pair
    assert features.grad is not None  # CLIP's weights are in its encoders
    assert features.grad.any()
    silent = [n for n, p in method.named_parameters() if p.grad is None or not p.grad.any()]
    # a bias in front of a batch norm cannot change anything, and neither can one before a softmax
    allowed = ("mlp.0.bias", "score.2.bias")
    assert [name for name in silent if not name.endswith(allowed)] == []


def test_scores_rise_with_the_largest_product_where_rows_are_searched(method: Method) -> None:
    images = method.encode_image(*_set(IMAGE_DIM))
    texts = method.encode_text(*_set(TEXT_DIM))
    scores = method.score(images, texts)
    assert method.view_scores(images, texts).shape == (images.embeddings.shape[1], 3, 3)
    rows = [
        views.embeddings.reshape(3, -1, method.row_dim(*views.embeddings.shape[1:]))
        for views in (images, texts)
    ]
    largest = torch.einsum("ivd,twd->itvw", *rows).amax(dim=(2, 3))
    ratio = scores.sum() / largest.sum()
    same = ratio > 0 and torch.allclose(scores, ratio * largest, rtol=1e-5, atol=1e-6)
    assert same or not method.row_search


def test_a_score_depends_on_its_pair_alone(method: Method) -> None:
    images = method.encode_image(*_set(IMAGE_DIM))
    texts = method.encode_text(*_set(TEXT_DIM))
    scores, views = method.score(images, texts), method.view_scores(images, texts)
    for i in range(3):
        for t in range(3):
            pair = images[i : i + 1], texts[t : t + 1]
            torch.testing.assert_close(method.score(*pair)[0, 0], scores[i, t])
            torch.testing.assert_close(method.view_scores(*pair)[:, 0, 0], views[:, i, t])


def test_extras_are_for_training_only(method: Method) -> None:
    assert not method.encode_image(*_set(IMAGE_DIM)).extras
    method.train()
    for encode, dim in ((method.encode_image, IMAGE_DIM), (method.encode_text, TEXT_DIM)):
        assert all(len(tensor) == 3 for tensor in encode(*_set(dim)).extras.values())


def test_attention_is_a_share_of_the_set_or_a_cosine(method: Method) -> None:
    features, mask = _set(IMAGE_DIM)
    with torch.no_grad():
        views = method.encode_image(features, mask, attention=True)
    maps, second = views.attention, views.embeddings.any(dim=2)  # (B, V, N), (B, V)
    assert maps is not None
    assert method.views_are_elements or second.all()
    if method.attention_sums_to_one:
        assert maps.min() >= 0
        torch.testing.assert_close(maps.sum(-1), second.to(maps.dtype), rtol=1e-4, atol=1e-5)
    assert float(maps.abs().max()) <= 1 + 1e-5
    item = maps[1, second[1], 0]  # the set of one element
    assert float(item.min()) == pytest.approx(1.0, abs=1e-4)


@torch.no_grad()
def test_every_method_answers_with_finite_arrays_that_the_page_words(method: Method) -> None:
    images, texts = encoded(method, count=1, cells=20, words=6)
    page = (Path(__file__).parents[2] / "app/page/inside.js").read_text("utf-8")
    titles = re.findall(r"^  (\w+): \[", page, re.MULTILINE)
    knobs = re.findall(r"(\w+): \"", page[page.index("const KNOBS") :].partition(";")[0])
    assert {knob.name for knob in method.knobs} <= set(knobs)
    for arrays in (method.inside(images), method.inside(images, texts)):
        names = [array.name for array in arrays]
        assert len(set(names)) == len(names)
        assert set(names) <= set(titles)
        for array in arrays:
            assert bool(array.values.isfinite().all())
            assert array.values.dim() == len(array.axes) in (0, 2)
            for row, column in array.marks:
                assert array.values[row, column].isfinite()


def test_double_precision_goes_through(method: Method) -> None:
    method.double()
    for side, dim in (("image", IMAGE_DIM), ("text", TEXT_DIM)):
        features, mask = torch.randn(2, 5, dim).double(), torch.ones(2, 5, dtype=torch.bool)
        views = getattr(method, f"encode_{side}")(features, mask)
        assert views.embeddings.dtype == torch.float64


CONTEXT = {"contextual_image": "transformer", "contextual_layers": 2, "contextual_heads": 2}


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("vse", {}, "choose one of"),
        ("vsepp", {"depth": 3}, "depth"),
        ("vse_infty", {"pooling": "median"}, "pooling"),
        ("vse_infty", {"text_pooling": "lstm"}, "text_pooling"),
        ("vse_infty", {"pooling": "kmax", "pool_count": 0}, "pool_count"),
        ("mv_vse", {"views": 0}, "views"),
        ("mv_vse", {"aggregator": "max"}, "aggregator|gpo"),
        ("pvse", {"views": -1}, "views"),
        ("pvse", {"embed_dim": 7}, "embed_dim"),
        ("pvse", {"fusion": "sum"}, "fusion"),
        ("pvse", {"match": "best"}, "match"),
        ("pvse", {"image_global": "gru"}, "image_global"),
        ("avse", {"block_dim": 3}, "block_dim"),
        ("avse", {"train_share": 0.0}, "train_share"),
        ("avse", {"test_share": 1.5}, "test_share"),
        ("avse", {"match": "hungarian"}, "match"),
        ("avse", {"match": "mean", "sampled_features": True}, "mean"),
        ("avse", {"iterations": 0}, "iterations"),
        ("scan", {"direction": "both"}, "direction"),
        ("scan", {"words": 0}, "words"),
        ("scan", {"sharpness": 0.0}, "sharpness"),
        ("mvam", {"views": 0}, "views"),
        ("mvam", {**CONTEXT, "contextual_image": "gru"}, "contextual_image"),
        ("mvam", {**CONTEXT, "contextual_width": 8, "contextual_heads": 3}, "contextual_width"),
        ("mvam", {**CONTEXT, "contextual_layers": 0}, "contextual_layers"),
        ("mvam", {**CONTEXT, "contextual_layers": 49}, "contextual_layers"),
        ("mvam", {**CONTEXT, "contextual_dropout": 1.0}, "contextual_dropout"),
        ("late", CONTEXT, "elements alone"),
        ("clip", {}, "rows of 8 and 9"),
        ("clip", {"rows": False}, "of an earlier version"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    name: str, arguments: dict[str, object], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        models.build(name, 8, 9, {"embed_dim": 8, **arguments})


def test_a_selection_takes_everything_along() -> None:
    views = Views(torch.randn(5, 2, 3), torch.rand(5, 2, 4), {"residuals": torch.randn(5, 2, 6)})
    some = views[torch.tensor([3, 1])]
    assert torch.equal(some.embeddings, views.embeddings[[3, 1]])
    assert views.attention is not None
    assert some.attention is not None
    assert torch.equal(some.attention, views.attention[[3, 1]])
    assert torch.equal(some.extras["residuals"], views.extras["residuals"][[3, 1]])
    with pytest.raises(ValueError, match=r"must be \(B, V, D\), not \(2, 3\)"):
        Views(torch.zeros(2, 3))
