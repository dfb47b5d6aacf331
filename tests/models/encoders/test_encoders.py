"""Encoders: lengths, shapes and gradients; `tests/export/build` compares converted weights."""

from typing import Any

import pytest
import torch
from torch import nn

from polyview.models.avse import AVSE, AVSEConfig
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.encoders.published import SampledViT
from polyview.models.encoders.resnet import LAYOUTS, ResNet
from polyview.models.encoders.scene_net import SceneNet
from polyview.models.gru import gru_states, trains_on_cpu

SMALL: dict[str, Any] = {"stem": 4, "widths": (4,) * 4, "channels": (8,) * 4, "blocks": (1,) * 4}
CONFIG = {
    **{"model_type": "vit", "hidden_size": 8, "intermediate_size": 12},
    **{"num_attention_heads": 2, "num_hidden_layers": 2, "image_size": 64, "patch_size": 16},
}


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("lengths", [[9, 1, 4, 6], [1], [5, 5], [2, 3, 7]])
def test_gru_states_and_gradients_equal_torchs(lengths: list[int], directions: int) -> None:
    gru = nn.GRU(5, 7, batch_first=True, bidirectional=directions == 2).double()
    inputs = torch.randn(len(lengths), 9, 5, dtype=torch.float64, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    want = nn.utils.rnn.pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=9)[0]
    got = gru_states([gru], inputs, torch.tensor(lengths))
    torch.testing.assert_close(got, want, rtol=0.0, atol=1e-12)
    weights, by = torch.randn_like(want), [inputs, *gru.parameters()]
    ours, theirs = (torch.autograd.grad((states * weights).sum(), by) for states in (got, want))
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-11)


def test_bigru_is_the_same_in_training_and_evaluation() -> None:
    module, rows = nn.Identity(), torch.zeros(1)
    assert trains_on_cpu(module, rows)  # training uses gru_states
    assert not trains_on_cpu(module.eval(), rows)
    lengths = torch.tensor([5, 1, 3])
    ids = torch.randint(2, 30, (3, 7))
    for directions, dim in ((0, 6), (1, 8), (2, 8)):
        encoder = BiGRUTextEncoder(30, 6, 8, directions=directions)
        trained = encoder(ids, lengths)
        torch.testing.assert_close(encoder.eval()(ids, lengths), trained, rtol=1e-5, atol=1e-6)
        assert encoder.dim == dim
        assert not trained[1, 1:].any()
        if directions == 0:
            torch.testing.assert_close(trained[0, :5], encoder.embed(ids)[0, :5])
    with pytest.raises(ValueError, match="directions must be 0, 1 or 2, not 3"):
        BiGRUTextEncoder(30, directions=3)


def test_cells_of_scene_net_are_in_row_major_order() -> None:
    size = 64
    net = SceneNet(widths=(8, 8, 12, 16), blocks=(1, 1, 1)).eval()
    rows, columns = net.grid(size)
    pixels = torch.zeros(1, 3, size, size)
    features = net(pixels)
    assert features.shape == (1, rows * columns, 16)
    pixels[..., : size // 8, -size // 8 :] = 1.0  # changes the top right corner
    change = (net(pixels) - features).abs().sum(-1)[0]
    assert int(change.argmax()) == columns - 1


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_grid_is_the_output_shape(layout: str) -> None:
    network = ResNet(**SMALL, layout=layout).eval()
    for size in (32, 63, 65, 100):
        rows, columns = network.grid(size)
        assert network(torch.zeros(1, 3, size, size)).shape == (1, rows * columns, 8)


def test_published_sizes() -> None:
    """Number of parameters of ResNet-50 and ResNet-18 (He et al.) without the classifier."""
    stages = (64, 128, 256, 512)
    with torch.device("meta"):
        fifty = ResNet()
        eighteen = ResNet(64, stages, stages, (2, 2, 2, 2), bottleneck=False)
    assert fifty.grid(224) == (7, 7)
    assert sum(p.numel() for p in fifty.parameters()) == 23_508_032
    assert sum(p.numel() for p in eighteen.parameters()) == 11_176_512


def test_each_view_of_a_sampled_vit_reads_its_own_patches() -> None:
    encoder = SampledViT(CONFIG, (0, 10)).eval()
    assert encoder.dim == 16
    pixels = torch.randn(2, 3, 64, 64)
    first = encoder(pixels).unflatten(2, (2, 8))[:, :, 0]  # (B, N, h)
    seen = (first != 0).any(dim=2)
    assert seen.sum(dim=1).tolist() == [16, 16]  # 90 % of 17 tokens, and [CLS]
    assert not seen[:, 16].any()  # the corner opposite patch 0
    changed = pixels.clone()
    changed[:, :, 48:, 48:] += 1.0
    torch.testing.assert_close(encoder(changed).unflatten(2, (2, 8))[:, :, 0], first)
    hidden = encoder.model.embeddings(pixels)[:, :16]
    for layer in encoder.model.layers:
        hidden = layer(hidden)
    torch.testing.assert_close(first[:, :16], hidden)
    # default centres are evenly spaced
    assert SampledViT(CONFIG).token_indices[:, 1].tolist() == [1 + 5, 1 + 10]  # of 4 x 4 patches
    with pytest.raises(ValueError, match="patches from 0 to 15"):
        SampledViT(CONFIG, (3, 16))
    with pytest.raises(ValueError, match="not 32"):
        SampledViT(CONFIG).grid(32)


def test_avse_pools_each_view_over_its_own_patches() -> None:
    config = AVSEConfig(6, released_gpo=True, sampled_features=True, match="maxsim")
    method = AVSE(8, 4, config).eval()
    features = torch.randn(2, 5, 8)
    features[:, 1, :4] = 0.0
    features[:, 3, 4:] = 0.0
    mask = torch.ones(2, 5, dtype=torch.bool)
    views: Any = method.encode_image(features, mask, attention=True)
    assert (views.attention == 0).nonzero()[:, 1:].tolist() == [[0, 1], [1, 3]] * 2
    moved = features.clone()
    moved[:, 3, :4] += 1.0  # the first view's part
    other = method.encode_image(moved, mask)
    torch.testing.assert_close(other.embeddings[:, 1], views.embeddings[:, 1])
    assert not torch.equal(other.embeddings[:, 0], views.embeddings[:, 0])
    with pytest.raises(ValueError, match="image_dim 7 must be a multiple of"):
        AVSE(7, 4, AVSEConfig(6, sampled_features=True))
