"""Encoders: pictures and word ids to sets of features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.encoder import ImageEncoder, TextEncoder
from models.pretrained_image import (
    CLIPImageEncoder,
    MobileNetV2ImageEncoder,
    ResNetImageEncoder,
    ViTImageEncoder,
)
from models.pretrained_text import BertTextEncoder, CLIPTextEncoder


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
        """(B, in, H, W) -> (B, channels, H / stride, W / stride)."""
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class SceneNet(ImageEncoder):
    """A small residual network whose last map is the image's set of features.

    Args:
        widths: channels of the stem and of each stage; every stage halves the map.
        blocks: residual blocks in each stage after the stem.
        stem_stride: 4 reads the picture in 4 x 4 steps at once, 2 in 2 x 2 steps.
    """

    def __init__(
        self,
        widths: tuple[int, ...] = (48, 64, 128, 256),
        blocks: tuple[int, ...] = (1, 1, 2),
        stem_stride: int = 4,
    ) -> None:
        super().__init__()
        if len(widths) != len(blocks) + 1:
            raise ValueError(f"{len(widths)} widths need {len(widths) - 1} block counts")
        self.dim = widths[-1]
        self.stride = stem_stride * 2 ** len(blocks)
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], stem_stride + 3, stem_stride, 3, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        )
        stages: list[nn.Module] = []
        for before, after, count in zip(widths, widths[1:], blocks, strict=False):
            stages += [
                _Block(before if i == 0 else after, after, 2 if i == 0 else 1) for i in range(count)
            ]
        self.stages = nn.Sequential(*stages)

    def grid(self, size: int) -> tuple[int, int]:
        """Rows and columns of the feature map of a size x size picture."""
        return size // self.stride, size // self.stride

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) pixels -> (B, N, d) features of the cells, row-major."""
        return self.stages(self.stem(pixels)).flatten(2).transpose(1, 2)


class BiGRUTextEncoder(TextEncoder):
    """Word embedding and a BiGRU whose directions are averaged, as in the papers' RNN variants.

    The backward direction runs over each text reversed within its own length (a gather), which
    gives the numbers of packed sequences and can be exported to ONNX.

    Args:
        vocab_size: rows of the word table; 0 is padding.
        word_dim: width of a word's embedding.
        hidden_dim: width d of the features.
        dropout: applied to word embeddings while training.
        directions: 2, 1 for a forward GRU (MV-VSE's release), or 0 for the word embeddings as they
            are, d = word_dim (PVSE, whose heads read them with a GRU of their own).
    """

    def __init__(
        self,
        vocab_size: int,
        word_dim: int = 300,
        hidden_dim: int = 1024,
        dropout: float = 0.0,
        directions: int = 2,
    ) -> None:
        super().__init__()
        if directions not in (0, 1, 2):
            raise ValueError(f"a text encoder has 0, 1 or 2 directions, not {directions}")
        self.dim = hidden_dim if directions else word_dim
        self.embed = nn.Embedding(vocab_size, word_dim, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.forward_gru: nn.GRU | None = None
        self.backward_gru: nn.GRU | None = None
        if directions:
            self.forward_gru = nn.GRU(word_dim, hidden_dim, batch_first=True)
        if directions == 2:
            self.backward_gru = nn.GRU(word_dim, hidden_dim, batch_first=True)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embed.weight[0].zero_()

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Word ids to contextual word features.

        Args:
            ids: (B, L) int64, 0 beyond each text's length.
            lengths: (B,) int64 in 1..L.

        Returns:
            (B, L, d); padded positions hold 0.
        """
        words = self.dropout(self.embed(ids))  # (B, L, w)
        position = torch.arange(ids.shape[1], device=ids.device)[None]  # (1, L)
        real = position < lengths[:, None]  # (B, L)
        if self.forward_gru is None:
            return words * real[..., None]
        ahead, _ = self.forward_gru(words)  # (B, L, d)
        if self.backward_gru is None:
            return ahead * real[..., None]
        mirror = torch.where(real, lengths[:, None] - 1 - position, position)[
            ..., None
        ]  # (B, L, 1)
        back, _ = self.backward_gru(words.gather(1, mirror.expand(-1, -1, words.shape[2])))
        back = back.gather(1, mirror.expand(-1, -1, back.shape[2]))  # (B, L, d)
        return (ahead + back) / 2 * real[..., None]


IMAGE_ENCODERS: dict[str, type[ImageEncoder]] = {
    "scene_net": SceneNet,
    "mobilenet_v2": MobileNetV2ImageEncoder,
    "resnet": ResNetImageEncoder,
    "vit": ViTImageEncoder,
    "clip_vision": CLIPImageEncoder,
}
TEXT_ENCODERS: dict[str, type[TextEncoder]] = {
    "bigru": BiGRUTextEncoder,
    "bert": BertTextEncoder,
    "clip_text": CLIPTextEncoder,
}
