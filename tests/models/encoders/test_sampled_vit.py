"""AVSE's released image encoder: each view is the transformer over its own patches."""

import pytest
import torch

from polyview.models.avse import AVSE, AVSEConfig
from polyview.models.encoders.published import SampledViT

CONFIG = {
    "model_type": "vit",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "image_size": 64,
    "patch_size": 16,
}


def test_views_read_their_own_patches_alone() -> None:
    torch.manual_seed(1)
    encoder = SampledViT(CONFIG, (0, 10)).eval()
    assert encoder.dim == 16
    pixels = torch.randn(2, 3, 64, 64)
    first = encoder(pixels).unflatten(2, (2, 8))[:, :, 0]  # (B, N, h)
    seen = (first != 0).any(dim=2)
    assert seen.sum(dim=1).tolist() == [16, 16]  # 90 % of 17 tokens, and [CLS]
    assert not seen[:, 16].any()  # the corner opposite to patch 0
    changed = pixels.clone()
    changed[:, :, 48:, 48:] += 1.0
    torch.testing.assert_close(encoder(changed).unflatten(2, (2, 8))[:, :, 0], first)
    hidden = encoder.model.embeddings(pixels)[:, :16]
    for layer in encoder.model.layers:
        hidden = layer(hidden)
    torch.testing.assert_close(first[:, :16], hidden)


def test_centres_spread_by_default_and_must_exist() -> None:
    assert SampledViT(CONFIG).kept[:, 1].tolist() == [1 + 5, 1 + 10]  # of 4 x 4 patches
    with pytest.raises(ValueError, match="patches from 0 to 15"):
        SampledViT(CONFIG, (3, 16))
    with pytest.raises(ValueError, match="not 32"):
        SampledViT(CONFIG).grid(32)


def test_the_method_pools_each_view_over_what_it_holds() -> None:
    torch.manual_seed(2)
    method = AVSE(
        8, 4, AVSEConfig(6, released_gpo=True, sampled_features=True, match="maxsim")
    ).eval()
    features = torch.randn(2, 5, 8)
    features[:, 1, :4] = 0.0
    features[:, 3, 4:] = 0.0
    mask = torch.ones(2, 5, dtype=torch.bool)
    views = method.encode_image(features, mask, attention=True)
    assert views.attention is not None
    assert (views.attention == 0).nonzero()[:, 1:].tolist() == [[0, 1], [1, 3]] * 2
    moved = features.clone()
    moved[:, 3, :4] += 1.0  # the first view's part
    other = method.encode_image(moved, mask)
    torch.testing.assert_close(other.embeddings[:, 1], views.embeddings[:, 1])
    assert not torch.equal(other.embeddings[:, 0], views.embeddings[:, 0])
    with pytest.raises(ValueError, match="side by side cannot be 7"):
        AVSE(7, 4, AVSEConfig(6, sampled_features=True))
