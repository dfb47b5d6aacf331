"""The contextual transformer equals naive layers; `conftest` has methods with a transformer."""

import math

import pytest
import torch
from torch import Tensor, nn

from polyview import models
from polyview.models.contextual import ContextConfig, ContextTransformer
from polyview.models.views import lengths_to_mask
from polyview.training.loop.trainer import refuse_without_summary
from tests.models.conftest import LAYERS, SUMMARIES


def written_out(context: ContextTransformer, features: Tensor, heads: int) -> Tensor:
    """Returns the states (1 + N, width) of one set (N, d), head by head."""
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
def test_states_equal_naive_layers(gradients: bool) -> None:
    torch.manual_seed(1)
    config = ContextConfig(contextual_image="transformer", **LAYERS)  # type: ignore[arg-type]
    context = ContextTransformer(5, config).eval()
    features, mask = torch.randn(3, 6, 5), lengths_to_mask(torch.tensor([6, 1, 4]), 6)
    with torch.set_grad_enabled(gradients):  # without gradients torch uses fused layers
        states, real = context(features.masked_fill(~mask[..., None], 1e3), mask)
        for row, size in enumerate((6, 1, 4)):
            expected = written_out(context, features[row, :size], heads=2)
            torch.testing.assert_close(states[row, : 1 + size], expected, rtol=1e-4, atol=1e-5)
    assert real.sum(dim=1).tolist() == [7, 2, 5]
    assert not states[~real].any()


def test_a_contextual_transformer_adds_the_missing_summary() -> None:
    image_alone, without = {"contextual_text": "none"}, {"contextual_summary": False}
    image_only, both, bare = (
        models.build("base_cls", 8, 8, {**SUMMARIES, **changes})
        for changes in (image_alone, {}, without)
    )
    with pytest.raises(ValueError, match=r"the text encoder has none; .*contextual_text="):
        refuse_without_summary("base_cls", image_only, (False, False))
    with pytest.raises(ValueError, match="the image and the text encoder has none"):
        refuse_without_summary("base_cls", bare, (False, False))
    refuse_without_summary("base_cls", image_only, (False, True))
    refuse_without_summary("base_cls", both, (False, False))
    plain = models.build("base_cls", 8, 8, {})
    assert plain.state_dict().keys() < both.state_dict().keys()
