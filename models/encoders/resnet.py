"""ResNet and ResNeXt with the parameter names and layouts of the papers' releases.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun: Deep Residual Learning for Image Recognition,
CVPR 2016; Saining Xie, Ross Girshick, Piotr Dollár, Zhuowen Tu, Kaiming He: Aggregated Residual
Transformations for Deep Neural Networks, CVPR 2017 (groups).

The ResNet of `transformers` has no grouped convolutions and uses other names. The released weights
of PVSE and VSE-infinity load here unchanged, without the classifier. There are two layouts:

    ==================  ==============================  ==============================
    layer               "torchvision"                   "caffe" (bottom-up attention)
    ==================  ==============================  ==============================
    stride of a block   on the 3 x 3 convolution        on the first 1 x 1 convolution
    stem's max-pool     padded by 1                     not padded, sizes rounded up
    ==================  ==============================  ==============================
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyview.models.encoders.encoder import ImageEncoder

LAYOUTS = ("torchvision", "caffe")
STAGES = 4


class _Block(nn.Module):
    """Convolutions (channels, kernel, stride, groups), each with a batch norm, and a shortcut."""

    def __init__(self, in_channels: int, convolutions: Sequence[tuple[int, int, int, int]]) -> None:
        super().__init__()
        self.count, width, total_stride = len(convolutions), in_channels, 1
        for number, (channels, kernel, stride, groups) in enumerate(convolutions, 1):
            padding = kernel // 2
            layer = nn.Conv2d(width, channels, kernel, stride, padding, groups=groups, bias=False)
            self.add_module(f"conv{number}", layer)
            self.add_module(f"bn{number}", nn.BatchNorm2d(channels))
            width, total_stride = channels, total_stride * stride
        self.downsample: nn.Module | None = None
        if total_stride > 1 or width != in_channels:
            shortcut = nn.Conv2d(in_channels, width, 1, total_stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, in_channels, H, W) to (B, channels, H / stride, W / stride)."""
        out = x
        for number in range(1, self.count + 1):
            out = self.get_submodule(f"conv{number}")(out if number == 1 else torch.relu(out))
            out = self.get_submodule(f"bn{number}")(out)
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(ImageEncoder):
    """A residual network; its last map before pooling is the image's set of features.

    Args:
        stem: channels after the first convolution.
        widths: channels inside the blocks of each of the four stages.
        channels: channels after each stage; the last is d.
        blocks: number of blocks in each stage.
        bottleneck: whether blocks are bottlenecks; basic blocks ignore `groups`.
        groups: number of groups of the 3 x 3 convolutions; 32 for ResNeXt-101 32x8d.
        layout: one of `LAYOUTS`.
        pooled: average the map to one feature, as PVSE does for the frames of a clip.
    """

    def __init__(
        self,
        stem: int = 64,
        widths: Sequence[int] = (64, 128, 256, 512),
        channels: Sequence[int] = (256, 512, 1024, 2048),
        blocks: Sequence[int] = (3, 4, 6, 3),
        bottleneck: bool = True,
        groups: int = 1,
        layout: str = "torchvision",
        pooled: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.pooled = channels[-1], pooled
        self.caffe = layout == "caffe"
        self.conv1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.pool = nn.MaxPool2d(3, 2, 0, ceil_mode=True) if self.caffe else nn.MaxPool2d(3, 2, 1)
        in_channels = stem
        for stage in range(STAGES):
            stack: list[nn.Module] = []
            width, out_channels = widths[stage], channels[stage]
            for block in range(blocks[stage]):
                stride = 2 if stage > 0 and block == 0 else 1
                stride1, stride2 = (stride, 1) if self.caffe else (1, stride)
                # (channels, kernel, stride, groups) of each convolution
                shapes = [(width, 1, stride1, 1), (width, 3, stride2, groups)]
                shapes.append((out_channels, 1, 1, 1))
                if not bottleneck:  # ResNet-18 and 34
                    shapes = [(width, 3, stride, 1), (out_channels, 3, 1, 1)]
                stack.append(_Block(in_channels, shapes))
                in_channels = out_channels
            self.add_module(f"layer{stage + 1}", nn.Sequential(*stack))

    def grid(self, size: int) -> tuple[int, int]:
        if self.pooled:
            return 1, 1
        side = (size - 1) // 2 + 1  # the first convolution
        side = -(-(side - 3) // 2) + 1 if self.caffe else (side - 1) // 2 + 1  # the max-pool
        for _ in range(STAGES - 1):  # the first stage keeps the size
            side = (side - 1) // 2 + 1
        return side, side

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.bn1(self.conv1(pixels))))
        for stage in range(STAGES):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        if self.pooled:
            x = x.mean(dim=(2, 3), keepdim=True)  # (B, d, 1, 1)
        return x.flatten(2).transpose(1, 2)  # (B, N, d)
