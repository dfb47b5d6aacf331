"""Properties of every method: padding, order, gradients, scores, attention and weights."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from polyview import models
from polyview.models import Method, Views
from polyview.models.pvse import PVSE
from tests.models.conftest import IMAGE_DIM, LAYERS, TEXT_DIM, encoded, sets

SIDES = (("image", IMAGE_DIM), ("text", TEXT_DIM))
IMAGES, TEXTS = sets([9, 1, 4], IMAGE_DIM, 5), sets([9, 1, 4], TEXT_DIM, 6)


@torch.no_grad()
def test_padding_changes_nothing(method: Method) -> None:
    for side, dim in SIDES:
        features, mask = sets([9, 1, 4], dim, 5)
        encode = getattr(method, f"encode_{side}")
        views = encode(features, mask, attention=True)
        junk = torch.where(mask[..., None], features, torch.tensor(1e3))
        longer = torch.cat([junk, torch.full_like(junk[:, :2], -1e3)], dim=1)
        longer_mask = torch.cat([mask, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
        padded = encode(longer, longer_mask, attention=True)
        torch.testing.assert_close(padded.embeddings, views.embeddings, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(padded.attention[..., :9], views.attention, rtol=1e-4, atol=1e-5)
        assert not padded.attention[..., 9:].any()
        assert not (views.attention * ~mask[:, None]).any()
        assert views.attention.shape[2] == 9  # without the method's own summary


@torch.no_grad()
def test_order_matters_only_to_methods_that_declare_it(method: Method) -> None:
    order = torch.tensor([0, 8, 4, 2, 6, 1, 3, 7, 5])  # a summary token stays first
    features, mask = IMAGES
    views: Any = method.encode_image(features, mask, attention=True)
    shuffled = method.encode_image(features[:, order], mask[:, order], attention=True)
    if method.order_matters:
        assert (shuffled.embeddings - views.embeddings)[0].abs().max() > 1e-3
    elif method.views_are_elements:
        words = method.encode_text(*TEXTS)
        torch.testing.assert_close(method.score(shuffled, words), method.score(views, words))
    else:
        torch.testing.assert_close(shuffled.embeddings, views.embeddings, rtol=1e-5, atol=1e-6)
        maps = views.attention[..., order]
        torch.testing.assert_close(shuffled.attention, maps, rtol=1e-4, atol=1e-5)


def test_gradient_reaches_every_parameter(method: Method) -> None:
    features, mask = IMAGES
    assert not method.encode_image(features, mask).extras  # only in training
    features = features.clone().requires_grad_()
    seen = method.train().encode_image(features, mask)
    read = method.encode_text(*TEXTS)
    assert all(len(tensor) == 3 for views in (seen, read) for tensor in views.extras.values())
    scores = method.score(seen, read) + method.view_scores(seen, read).sum(dim=0)
    (scores * torch.randn(3, 3)).sum().backward()  # some views are the best of no pair
    assert features.grad is not None  # CLIP's weights are in its encoders
    assert features.grad.any()
    silent = [n for n, p in method.named_parameters() if p.grad is None or not p.grad.any()]
    # a bias before a batch norm or a softmax has no effect
    allowed = ("mlp.0.bias", "score.2.bias")
    assert [name for name in silent if not name.endswith(allowed)] == []


@torch.no_grad()
def test_a_score_depends_on_its_pair_alone(method: Method) -> None:
    """With `row_search`, it is proportional to the largest product of rows."""
    seen, read = method.encode_image(*IMAGES), method.encode_text(*TEXTS)
    scores, of_views = method.score(seen, read), method.view_scores(seen, read)
    assert of_views.shape == (seen.embeddings.shape[1], 3, 3)
    for i in range(3):
        for t in range(3):
            pair = seen[i : i + 1], read[t : t + 1]
            torch.testing.assert_close(method.score(*pair)[0, 0], scores[i, t])
            torch.testing.assert_close(method.view_scores(*pair)[:, 0, 0], of_views[:, i, t])
    if method.row_search:
        rows = [
            views.embeddings.reshape(3, -1, method.row_dim(*views.embeddings.shape[1:]))
            for views in (seen, read)
        ]
        largest = torch.einsum("ivd,twd->itvw", *rows).amax(dim=(2, 3))
        ratio = scores.sum() / largest.sum()
        assert ratio > 0
        torch.testing.assert_close(scores, ratio * largest, rtol=1e-5, atol=1e-6)
    exact = method.double()
    seen = exact.encode_image(IMAGES[0].double(), IMAGES[1])
    read = exact.encode_text(TEXTS[0].double(), TEXTS[1])
    torch.testing.assert_close(exact.score(seen, read), scores.double(), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_is_a_share_of_the_set_or_a_cosine(method: Method) -> None:
    views = method.encode_image(*IMAGES, attention=True)
    maps, real = views.attention, views.embeddings.any(dim=2)  # (B, V, N), (B, V)
    assert maps is not None
    assert method.views_are_elements or real.all()
    assert float(maps.abs().max()) <= 1 + 1e-5
    sums, alone = maps.sum(-1), maps[1, real[1], 0]  # of all sets; of the set with one element
    if method.attention_sums_to_one:
        assert maps.min() >= 0
        assert (sums <= 1 + 1e-5).all()
    if "image" not in method.summary_sides:  # a summary has a share of the attention
        torch.testing.assert_close(alone, torch.ones_like(alone), rtol=0, atol=1e-4)
        if method.attention_sums_to_one:
            torch.testing.assert_close(sums, real.to(maps.dtype), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_inside_returns_finite_arrays_that_the_page_names(method: Method) -> None:
    image, text = encoded(method)
    page = (Path(__file__).parents[2] / "app/page/inside.js").read_text("utf-8")
    titles = re.findall(r"^  (\w+): \[", page, re.MULTILINE)
    knobs = re.findall(r"(\w+): \"", page[page.index("const KNOBS") :].partition(";")[0])
    assert {knob.name for knob in method.knobs} <= set(knobs)
    for arrays in (method.inside(image), method.inside(image, text)):
        names = [array.name for array in arrays]
        assert len(set(names)) == len(names)
        assert set(names) <= set(titles)
        for array in arrays:
            assert bool(array.values.isfinite().all())
            assert array.values.dim() == len(array.axes) in (0, 2)
            for row, column in array.marks:
                assert array.values[row, column].isfinite()


@torch.no_grad()
def test_weights_of_views_multiply_their_cosines(method: Method) -> None:
    images, texts = encoded(method, count=4, cells=9, words=9)
    count, plain = images.embeddings.shape[1], method.view_scores(images, texts)
    same = method.apply_view_weights(images, torch.ones(count))
    assert torch.equal(method.score(same, texts), method.score(images, texts))
    stays = torch.arange(count) % 2 == 0  # every second view is off
    scores = method.score(method.apply_view_weights(images, stays.float()), texts)
    if method.views_add_up:
        expected = plain[stays].sum(dim=0)
    else:
        expected = method.score(Views(images.embeddings[:, stays]), texts)
    torch.testing.assert_close(scores, expected)
    weights = torch.linspace(0.2, 0.9, count)
    scores = method.score(method.apply_view_weights(images, weights), texts)
    if method.views_add_up:
        expected = (weights[:, None, None] * plain).sum(dim=0)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    elif method.row_search:
        cosines = torch.einsum("ivd,twd->itvw", images.embeddings, texts.embeddings)
        expected = (weights[:, None] * cosines).amax(dim=(2, 3))
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)


def test_invalid_weights_and_shapes_are_refused() -> None:
    outside = "view weights must be between 0 and 1"
    for weights, message in (
        ([0.0, 0.0], "all view weights are 0; at least one must be above 0"),
        ([1.0], "2 views need 2 weights"),
        *(([1.0, wrong], outside) for wrong in (1.5, -0.5, float("nan"))),
    ):
        with pytest.raises(ValueError, match=message):
            PVSE(8, 8, 4).apply_view_weights(Views(torch.randn(1, 2, 4)), torch.tensor(weights))
    with pytest.raises(ValueError, match=r"must be \(B, V, D\), not \(2, 3\)"):
        Views(torch.zeros(2, 3))


CONTEXT = {**LAYERS, "contextual_image": "transformer"}
# method -> arguments, each of which is invalid
WRONG: dict[str, dict[str, object]] = {
    "vsepp": {"depth": 3},
    "vse_infty": {"pooling": "median", "text_pooling": "lstm"},
    "mv_vse": {"views": 0, "aggregator": "max"},
    "pvse": {"views": -1, "embed_dim": 7, "fusion": "sum", "match": "best", "image_global": "gru"},
    "avse": {
        "block_dim": 3,
        "train_share": 0.0,
        "test_share": 1.5,
        "match": "all",
        "iterations": 0,
    },
    "scan": {"direction": "both", "words": 0, "sharpness": 0.0},
    "mvam": {"views": 0, "code_space": "pixel", "learned_temperature": -1.0},
    "base_cls": {"contextual_image": "gru", "contextual_layers": 49, "contextual_dropout": 1.0},
}
REFUSED: list[tuple[str, dict[str, object], str]] = [
    *((name, {key: v}, key) for name, values in WRONG.items() for key, v in values.items()),
    ("vse", {}, "choose one of"),
    ("vse_infty", {"pooling": "kmax", "pool_count": 0}, "pool_count"),
    ("avse", {"match": "mean", "sampled_features": True}, "mean"),
    ("mvam", {**CONTEXT, "contextual_heads": 3}, "contextual_width"),
    ("mvam", {"contextual_layers": 0}, "contextual_layers 0 must be 1 or more"),
    ("late", CONTEXT, "are elements"),
    ("clip", {}, "image_dim 8 and text_dim 9"),
    ("clip", {"rows": False}, "of an earlier version"),
]


@pytest.mark.parametrize(("name", "arguments", "word"), REFUSED)
def test_invalid_arguments_are_refused(name: str, arguments: dict[str, object], word: str) -> None:
    if "contextual" in word:
        arguments = CONTEXT | arguments
    with pytest.raises(ValueError, match=word):
        models.build(name, 8, 9, {"embed_dim": 8, **arguments})
