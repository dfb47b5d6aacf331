"""Encoders: exact lengths, sensible shapes."""

import pytest
import torch

from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.encoders.scene_net import SceneNet
from tests import reference


def test_bigru_is_exact_whatever_the_padding() -> None:
    torch.manual_seed(1)
    encoder = BiGRUTextEncoder(30, 6, 8).eval()
    lengths = torch.tensor([5, 1, 3])
    ids = torch.randint(2, 30, (3, 7)) * (torch.arange(7) < lengths[:, None])
    out = encoder(ids, lengths)
    for b, length in enumerate(lengths.tolist()):
        expected = reference.bigru(encoder, ids[b, :length])
        torch.testing.assert_close(out[b, :length], expected, rtol=1e-5, atol=1e-6)
        assert out[b, length:].abs().max() == 0


def test_fewer_directions_are_parts_of_the_bigru() -> None:
    torch.manual_seed(2)
    lengths = torch.tensor([4, 2])
    ids = torch.randint(1, 30, (2, 4)) * (torch.arange(4) < lengths[:, None])
    words, ahead = (BiGRUTextEncoder(30, 6, 8, directions=d) for d in (0, 1))
    assert (words.dim, ahead.dim) == (6, 8)
    torch.testing.assert_close(words(ids, lengths), words.embed(ids))
    assert ahead.forward_gru is not None
    for b, length in enumerate(lengths.tolist()):
        states, _ = ahead.forward_gru(ahead.embed(ids[b : b + 1, :length]))
        torch.testing.assert_close(ahead(ids, lengths)[b, :length], states[0])
    assert ahead(ids, lengths)[1, 2:].abs().max() == 0
    with pytest.raises(ValueError, match="0, 1 or 2 directions, not 3"):
        BiGRUTextEncoder(30, directions=3)


@pytest.mark.parametrize("size", [64, 224])
def test_scene_net_gives_a_row_major_grid(size: int) -> None:
    torch.manual_seed(0)
    net = SceneNet(widths=(8, 8, 12, 16), blocks=(1, 1, 1)).eval()
    rows, columns = net.grid(size)
    pixels = torch.zeros(1, 3, size, size)
    features = net(pixels)
    assert features.shape == (1, rows * columns, 16)
    pixels[..., : size // 8, -size // 8 :] = 1.0  # something in the top right corner
    change = (net(pixels) - features).abs().sum(-1)[0]
    assert int(change.argmax()) == columns - 1
