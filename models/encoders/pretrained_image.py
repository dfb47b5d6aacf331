"""Published image backbones as encoders: the networks are those of `transformers`.

Each is built from its Hugging Face configuration as plain JSON, so that a checkpoint can say how to
build it; `export/encoders/` reads the weights. `transformers` is imported only when one is
built.
"""

from typing import Any, ClassVar, cast

from torch import Tensor, nn

from models.encoders.encoder import ImageEncoder
from models.encoders.huggingface import build_network
from models.encoders.patches import patches


class MobileNetV2ImageEncoder(ImageEncoder):
    """MobileNetV2 (Sandler et al., CVPR 2018): the last map before pooling, 7 x 7 x 1280 at 224.

    Args:
        config: a `MobileNetV2Config` as JSON.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("MobileNetV2Model", config, add_pooling_layer=False)
        self.dim = int(self.model.conv_1x1.convolution.out_channels)
        self.stride = int(self.model.config.output_stride)

    def grid(self, size: int) -> tuple[int, int]:
        """See `ImageEncoder.grid`."""
        side = -(-size // self.stride)
        return side, side

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`."""
        return _cells(self.model(pixels).last_hidden_state)


class ResNetImageEncoder(ImageEncoder):
    """ResNet (He et al., CVPR 2016): the last map before pooling, of 7 x 7 x 2048 for ResNet-50.

    Args:
        config: a `ResNetConfig` as JSON; its depths make it a ResNet-50, 101 or 152.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("ResNetModel", config)
        self.dim = int(self.model.config.hidden_sizes[-1])
        # the stem halves the image twice, and every stage but perhaps the first halves it again
        stages = len(self.model.config.hidden_sizes)
        first = 1 if self.model.config.downsample_in_first_stage else 0
        self.halvings = 2 + stages - 1 + first

    def grid(self, size: int) -> tuple[int, int]:
        """See `ImageEncoder.grid`."""
        for _ in range(self.halvings):
            size = -(-size // 2)
        return size, size

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`."""
        return _cells(self.model(pixels).last_hidden_state)


class ViTImageEncoder(ImageEncoder):
    """ViT (Dosovitskiy et al., ICLR 2021): [CLS], then the patches, after the last layer norm.

    Args:
        config: a `ViTConfig` as JSON.
    """

    summary_token: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("ViTModel", config, add_pooling_layer=False)
        self.dim = int(self.model.config.hidden_size)

    def grid(self, size: int) -> tuple[int, int]:
        """See `ImageEncoder.grid`."""
        return patches(self.model.config, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`."""
        return cast(Tensor, self.model(pixels).last_hidden_state)


class CLIPImageEncoder(ImageEncoder):
    """CLIP's vision transformer (Radford et al., ICML 2021): [IMG], then the patches.

    Every element goes through the last layer norm, which CLIP itself applies to [IMG] alone.

    Args:
        config: a `CLIPVisionConfig` as JSON.
        projected: map every element into the space that images and texts share; [IMG] is then what
            CLIP calls the image's embedding, before it is scaled to unit length.
    """

    summary_token: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any], projected: bool = False) -> None:
        super().__init__()
        self.model = build_network("CLIPVisionModel", config)
        width, shared = self.model.config.hidden_size, self.model.config.projection_dim
        self.projection: nn.Linear | None = None
        if projected:
            self.projection = nn.Linear(width, shared, bias=False)
        self.dim = int(shared if projected else width)

    def grid(self, size: int) -> tuple[int, int]:
        """See `ImageEncoder.grid`."""
        return patches(self.model.config, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`."""
        hidden = self.model.post_layernorm(self.model(pixels).last_hidden_state)  # (B, N, h)
        return cast(Tensor, hidden if self.projection is None else self.projection(hidden))


def _cells(feature_map: Tensor) -> Tensor:
    """(B, d, rows, columns) -> (B, N, d), row-major."""
    return feature_map.flatten(2).transpose(1, 2)
