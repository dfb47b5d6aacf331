"""ResNet and ResNeXt with the names and the layouts that the papers' releases store.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun: Deep Residual Learning for Image Recognition,
CVPR 2016; Saining Xie, Ross Girshick, Piotr Dollár, Zhuowen Tu, Kaiming He: Aggregated Residual
Transformations for Deep Neural Networks, CVPR 2017 (groups).

`transformers` has no grouped convolutions and other names; weights of the releases (PVSE,
VSE-infinity) load here as they are, without the classifier. Two layouts occur:

    ==================  ==============================  ==============================
    part                "torchvision"                   "caffe" (bottom-up attention)
    ==================  ==============================  ==============================
    stride of a block   on the 3 x 3 convolution        on the first 1 x 1 convolution
    stem's max-pool     padded by 1                     not padded, sizes rounded up
    ==================  ==============================  ==============================
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.encoders.encoder import ImageEncoder

LAYOUTS = ("torchvision", "caffe")
STAGES = 4


class _Basic(nn.Module):
    """Two 3 x 3 convolutions with a shortcut, ResNet-18 and 34."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + _shorten(self.downsample, x))


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut, ResNet-50 and larger."""

    def __init__(
        self, inputs: int, width: int, outputs: int, stride: int, groups: int, early: bool
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if early else (1, stride)
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        return torch.relu(self.bn3(self.conv3(out)) + _shorten(self.downsample, x))


class ResNet(ImageEncoder):
    """A residual network; its last map before pooling is the image's set of features.

    Args:
        stem: channels behind the first convolution.
        widths: channels inside the blocks of each of the four stages.
        channels: channels behind the blocks of each stage; the last are d.
        blocks: blocks of each stage.
        bottleneck: whether blocks are bottlenecks; the others have no groups, and one layout.
        groups: of the 3 x 3 convolutions; 32 for ResNeXt-101 32x8d.
        layout: one of `LAYOUTS`.
        pooled: average the map to a single feature, what PVSE reads of a clip's frame.
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
        if not len(widths) == len(channels) == len(blocks) == STAGES:
            raise ValueError(f"a ResNet has {STAGES} stages: {widths}, {channels}, {blocks}")
        if layout not in LAYOUTS:
            raise ValueError(f'layout must be one of {", ".join(LAYOUTS)}, not "{layout}"')
        self.dim, self.pooled = channels[-1], pooled
        self.caffe = layout == "caffe"
        self.conv1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.pool = nn.MaxPool2d(3, 2, 0, ceil_mode=True) if self.caffe else nn.MaxPool2d(3, 2, 1)
        inputs = stem
        for stage in range(STAGES):
            stack: list[nn.Module] = []
            width, outputs = widths[stage], channels[stage]
            for block in range(blocks[stage]):
                stride = 2 if stage > 0 and block == 0 else 1
                stack.append(
                    _Bottleneck(inputs, width, outputs, stride, groups, self.caffe)
                    if bottleneck
                    else _Basic(inputs, width, outputs, stride)
                )
                inputs = outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*stack))

    def grid(self, size: int) -> tuple[int, int]:
        """See `ImageEncoder.grid`."""
        if self.pooled:
            return 1, 1
        side = (size - 1) // 2 + 1  # the first convolution
        side = -(-(side - 3) // 2) + 1 if self.caffe else (side - 1) // 2 + 1
        for _ in range(STAGES - 1):
            side = (side - 1) // 2 + 1
        return side, side

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`."""
        x = self.pool(torch.relu(self.bn1(self.conv1(pixels))))
        for stage in range(STAGES):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        if self.pooled:
            x = x.mean(dim=(2, 3), keepdim=True)  # (B, d, 1, 1)
        return x.flatten(2).transpose(1, 2)  # (B, N, d)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _shorten(shortcut: nn.Module | None, x: Tensor) -> Tensor:
    return x if shortcut is None else shortcut(x)
