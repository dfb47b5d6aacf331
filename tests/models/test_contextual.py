"""The contextual transformer equals layers written out; methods over it keep to the contract."""

import math

import pytest
import torch
from torch import Tensor, nn

from polyview import models
from polyview.models import Method
from polyview.models.contextual import ContextConfig, ContextTransformer
from polyview.models.views import lengths_to_mask
from polyview.training.loop.trainer import refuse_without_summary
from tests.models.conftest import IMAGE_DIM, TEXT_DIM
from tests.models.test_evidence import check, sets

SMALL = {"contextual_layers": 2, "contextual_heads": 2, "contextual_width": 8}
BOTH = {"contextual_image": "transformer", "contextual_text": "transformer"}


def written_out(context: ContextTransformer, features: Tensor, heads: int) -> Tensor:
    """One set (N, d) without padding, head after head: (1 + N, width)."""
    assert context.summary is not None
    x = torch.cat([context.summary[None], context.project(features)])
    for layer in context.layers:
        assert isinstance(layer, nn.TransformerEncoderLayer)
        attention = layer.self_attn
        query, key, value = nn.functional.linear(
            layer.norm1(x), attention.in_proj_weight, attention.in_proj_bias
        ).chunk(3, dim=1)
        size = x.shape[1] // heads
        read = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[:, part] @ key[:, part].T / math.sqrt(size)
            read.append(scores.softmax(dim=1) @ value[:, part])
        x = x + attention.out_proj(torch.cat(read, dim=1))
        hidden = nn.functional.gelu(layer.linear1(layer.norm2(x)))
        x = x + layer.linear2(hidden)
    return context.norm(x)


@pytest.mark.parametrize("gradients", [True, False])
def test_states_equal_layers_written_out(gradients: bool) -> None:
    torch.manual_seed(1)
    config = ContextConfig(contextual_image="transformer", **SMALL)  # type: ignore[arg-type]
    context = ContextTransformer(5, config).eval()
    features, mask = torch.randn(3, 6, 5), lengths_to_mask(torch.tensor([6, 1, 4]), 6)
    with torch.set_grad_enabled(gradients):  # without them torch takes another, fused way
        states, real = context(features.masked_fill(~mask[..., None], 1e3), mask)
        for row, size in enumerate((6, 1, 4)):
            expected = written_out(context, features[row, :size], heads=2)
            torch.testing.assert_close(states[row, : 1 + size], expected, rtol=1e-4, atol=1e-5)
    assert real.sum(dim=1).tolist() == [7, 2, 5]
    assert not states[~real].any()


@pytest.fixture(params=["mvam", "base_cls", "avse", "pvse"])
def method(request: pytest.FixtureRequest) -> Method:
    """A method over transformers that put a summary in front of both sets."""
    torch.manual_seed(3)
    arguments = {"embed_dim": 16, **SMALL, **BOTH}
    return models.build(request.param, IMAGE_DIM, TEXT_DIM, arguments).eval()


def test_evidence_of_the_elements_and_the_summary_adds_up(method: Method) -> None:
    check(method, sets([9, 1, 4], IMAGE_DIM, 0), sets([5, 1], TEXT_DIM, 1))


@torch.no_grad()
def test_attention_is_on_the_elements_themselves(method: Method) -> None:
    features, mask = sets([9, 1, 4], IMAGE_DIM, 0)
    maps = method.encode_image(features, mask, attention=True).attention
    assert maps is not None
    assert maps.shape[2] == 9
    assert not maps.masked_select(~mask[:, None]).any()
    if method.attention_sums_to_one:
        assert float(maps.sum(dim=2).max()) <= 1 + 1e-5


def test_a_context_brings_the_summary_that_encoders_lack() -> None:
    image_only = {**SMALL, "contextual_image": "transformer"}
    item = models.build("base_cls", 8, 8, image_only)
    with pytest.raises(ValueError, match=r"the text encoder has none; .*contextual_text="):
        refuse_without_summary("base_cls", item, False, False)
    refuse_without_summary("base_cls", item, False, True)
    both = models.build("base_cls", 8, 8, {**SMALL, **BOTH})
    refuse_without_summary("base_cls", both, False, False)
    bare = models.build("base_cls", 8, 8, {**SMALL, **BOTH, "contextual_summary": False})
    with pytest.raises(ValueError, match="the image and the text encoder has none"):
        refuse_without_summary("base_cls", bare, False, False)


def test_weights_keep_the_names_of_the_method_without_a_context() -> None:
    plain = models.build("mvam", 8, 6, {"embed_dim": 4}).state_dict()
    names = models.build("mvam", 8, 6, {"embed_dim": 4, **SMALL, **BOTH}).state_dict()
    assert plain.keys() < names.keys()
    added = {name.split(".")[0] for name in names.keys() - plain.keys()}
    assert added == {"image_context", "text_context"}
