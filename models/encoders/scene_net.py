"""SceneNet, a small residual network (He et al., CVPR 2016) as an image encoder."""

import math

import torch
from torch import Tensor, nn

from polyview.models.encoders.encoder import ImageEncoder

_STEM_STRIDE = 4  # stride of the first convolution, in pixels


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al., CVPR 2016)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
                nn.Conv2d(in_channels, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, in_channels, H, W) to (B, channels, H / stride, W / stride)."""
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class SceneNet(ImageEncoder):
    """A small residual network whose last map is the image's set of features.

    Args:
        widths: channels of the stem and of each stage; every stage halves the map.
        blocks: residual blocks in each stage after the stem.
        parts: numbers (rows, columns) of equal parts of the map. Their averages are concatenated to
            a single feature, for a frame of a clip. None keeps the cells as features.
    """

    def __init__(
        self,
        widths: tuple[int, ...] = (48, 64, 128, 256),
        blocks: tuple[int, ...] = (1, 1, 2),
        parts: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if len(widths) != len(blocks) + 1:
            raise ValueError(f"{len(blocks)} stages need {len(blocks) + 1} widths, not {widths}")
        self.parts = parts
        self.dim = widths[-1] * (math.prod(parts) if parts else 1)
        self.stride = _STEM_STRIDE * 2 ** len(blocks)
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], _STEM_STRIDE + 3, _STEM_STRIDE, 3, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        )
        stages: list[nn.Module] = []
        for in_channels, channels, count in zip(widths, widths[1:], blocks, strict=False):
            stages += [
                _Block(channels if block else in_channels, channels, stride=1 if block else 2)
                for block in range(count)
            ]
        self.stages = nn.Sequential(*stages)

    def grid(self, size: int) -> tuple[int, int]:
        if self.parts:
            return 1, 1
        return size // self.stride, size // self.stride

    def forward(self, pixels: Tensor) -> Tensor:
        """Encodes pixels (B, 3, H, W) into features (B, N, d), row-major; N = 1 with `parts`."""
        cells = self.stages(self.stem(pixels))  # (B, channels, H, W)
        if self.parts:
            row_weights, column_weights = map(_average_weights, cells.shape[2:], self.parts)
            averages = row_weights @ cells @ column_weights.mT  # (B, channels, rows, columns)
            return averages.flatten(2).transpose(1, 2).flatten(1)[:, None]  # (B, 1, d)
        return cells.flatten(2).transpose(1, 2)


def _average_weights(length: int, count: int) -> Tensor:
    """Returns weights (count, length) that average `length` cells in `count` equal parts."""
    length = int(length)  # `length` is a tensor while the encoder is traced
    edges = torch.arange(count + 1) * (length / count)
    start, end = edges[:-1, None], edges[1:, None]
    index = torch.arange(length)
    return (end.minimum(index + 1) - start.maximum(index)).clamp_min(0) * (count / length)
