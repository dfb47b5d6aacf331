"""Residual networks in the releases' two layouts; numbers are checked where checkpoints convert."""

from typing import Any

import pytest
import torch

from polyview.models.encoders.resnet import LAYOUTS, ResNet

SMALL: dict[str, Any] = {
    "stem": 4,
    "widths": (4, 4, 4, 4),
    "channels": (8, 8, 8, 8),
    "blocks": (1, 1, 1, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [32, 63, 65, 100, 224])
def test_grid_is_what_comes_out(layout: str, size: int) -> None:
    network = ResNet(**SMALL, layout=layout).eval()
    rows, columns = network.grid(size)
    with torch.no_grad():
        assert network(torch.zeros(1, 3, size, size)).shape == (1, rows * columns, 8)


def test_published_sizes() -> None:
    assert ResNet().grid(224) == (7, 7)
    assert ResNet(**SMALL, layout="caffe").grid(512) == (16, 16)
    # parameters without the classifier: of ResNet-50 and of ResNet-18 (He et al.)
    assert sum(p.numel() for p in ResNet().parameters()) == 23_508_032
    eighteen = ResNet(64, (64, 128, 256, 512), (64, 128, 256, 512), (2, 2, 2, 2), bottleneck=False)
    assert sum(p.numel() for p in eighteen.parameters()) == 11_176_512
