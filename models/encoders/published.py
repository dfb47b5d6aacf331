"""Published backbones as encoders, built on the networks of `transformers`.

`config` is the network's Hugging Face configuration as plain JSON, which checkpoints store;
`export/encoders/` reads the weights. Building an encoder imports `transformers`.
"""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.encoders.huggingface import build_network
from polyview.models.views import lengths_to_mask

EVAL_SHARE = 0.9  # patches in a view of `SampledViT`, as a share of all tokens


class _ConvNet(ImageEncoder):
    """A convolutional network. Its features are cells of the last map, `stride` pixels apart."""

    model: Any
    stride: int

    def grid(self, size: int) -> tuple[int, int]:
        side = -(-size // self.stride)
        return side, side

    def forward(self, pixels: Tensor) -> Tensor:
        cells = self.model(pixels).last_hidden_state.flatten(2)  # (B, d, N), row-major
        return cast(Tensor, cells.transpose(1, 2))


class MobileNetV2ImageEncoder(_ConvNet):
    """MobileNetV2 (Sandler et al., CVPR 2018): 7 x 7 cells of width 1,280 at 224 pixels."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("MobileNetV2Model", config, add_pooling_layer=False)
        self.dim = int(self.model.conv_1x1.convolution.out_channels)
        self.stride = int(self.model.config.output_stride)


class ResNetImageEncoder(_ConvNet):
    """ResNet (He et al., CVPR 2016); ResNet-50: 7 x 7 cells of width 2,048 at 224 pixels."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("ResNetModel", config)
        sizes = self.model.config.hidden_sizes
        self.dim = int(sizes[-1])
        # the stem halves the image twice, and each stage once; for the first stage this is optional
        optional_halvings = 1 if self.model.config.downsample_in_first_stage else 0
        self.stride = 2 ** (2 + len(sizes) - 1 + optional_halvings)


class _VisionTransformer(ImageEncoder):
    """A transformer over patches, whose first element summarises the image."""

    summary_token: ClassVar[bool] = True
    model: Any

    def grid(self, size: int) -> tuple[int, int]:
        """Returns patch rows and columns; raises ValueError if the network needs another size."""
        config = self.model.config
        if size != config.image_size:
            raise ValueError(
                f"this transformer reads {config.image_size} x {config.image_size} pixels, not "
                f"{size} x {size}; use the preprocessing of its checkpoint"
            )
        side = size // config.patch_size
        return side, side


class ViTImageEncoder(_VisionTransformer):
    """ViT (Dosovitskiy et al., ICLR 2021): [CLS] and the patches after the last layer norm."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("ViTModel", config, add_pooling_layer=False)
        self.dim = int(self.model.config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        return cast(Tensor, self.model(pixels).last_hidden_state)


class SampledViT(_VisionTransformer):
    """The image encoder of AVSE's release: a ViT that reads several samples of an image.

    The feature of an element concatenates its states in all views, 0 for views without the element.
    The release samples by "radial bias": each view keeps [CLS] and the patches nearest to a centre,
    the transformer's layers read only these, and there is no final layer norm. The release draws
    new centres in every pass, even in evaluation. This class fixes the centres, so that an image
    always has the same embedding (Liu et al., AAAI 2025, see `models/avse.py`).

    Args:
        config: a `ViTConfig` as JSON.
        centres: the centre patch of each view, row-major from 0; None for two default centres.
    """

    token_indices: Tensor
    token_positions: Tensor

    def __init__(self, config: dict[str, Any], centres: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.model = build_network("ViTModel", config, add_pooling_layer=False)
        self.model.layernorm = None  # as in the release
        self.side = side = self.grid(self.model.config.image_size)[0]
        patch_count = side**2
        count = int((patch_count + 1) * EVAL_SHARE)  # patches in a view
        if centres is None:
            # centres of the upper left and lower right quarters
            first, last = side // 4, side - 1 - side // 4
            centres = (first * side + first, last * side + last)
        if not centres or any(not 0 <= centre < patch_count for centre in centres):
            raise ValueError(f"centres must be patches from 0 to {patch_count - 1}, not {centres}")
        nearest = torch.stack([_nearest_patches(centre, side, count) for centre in centres])
        tokens = torch.cat([torch.zeros(len(nearest), 1, dtype=torch.int64), nearest + 1], dim=1)
        # index of each token in a view; absent tokens have count + 1, where `forward` appends 0
        positions = torch.full((len(nearest), patch_count + 1), count + 1)
        positions.scatter_(1, tokens, torch.arange(count + 1).expand(len(nearest), -1))
        self.register_buffer("token_indices", tokens, persistent=False)  # (n, count + 1)
        self.register_buffer("token_positions", positions, persistent=False)  # (n, N)
        self.dim = len(nearest) * int(self.model.config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`; d is the number of views times the transformer's width h."""
        tokens = self.model.embeddings(pixels)  # (B, N, h)
        views = []
        for indices, positions in zip(self.token_indices, self.token_positions, strict=True):
            hidden = tokens[:, indices]  # (B, count + 1, h)
            for layer in self.model.layers:
                hidden = layer(hidden)
            zeros = torch.zeros_like(hidden[:, :1])
            views.append(torch.cat([hidden, zeros], dim=1)[:, positions])  # (B, N, h)
        return torch.cat(views, dim=2)


class CLIPImageEncoder(_VisionTransformer):
    """CLIP's vision transformer (Radford et al., ICML 2021): [IMG], then the patches.

    Every element passes the final layer norm, which CLIP itself applies only to [IMG]. `projected`
    maps every element to the joint space; [IMG] is then CLIP's image embedding, not normalised.
    """

    def __init__(self, config: dict[str, Any], projected: bool = False) -> None:
        super().__init__()
        self.model = build_network("CLIPVisionModel", config)
        self.projection, self.dim = _build_projection(self.model.config, projected)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.model.post_layernorm(self.model(pixels).last_hidden_state)  # (B, N, h)
        return cast(Tensor, hidden if self.projection is None else self.projection(hidden))


class SiglipImageEncoder(_VisionTransformer):
    """SigLIP's vision transformer (Zhai et al., ICCV 2023): [IMG], then the patches.

    SigLIP has no projection to a joint space. [IMG] is the output of a learned query that attends
    to the patches. The feature of a patch is the output if the query attends to that patch alone.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        if not config.get("vision_use_head", True):
            raise ValueError(
                "this SigLIP has no pooling head (vision_use_head is false); use a model with it"
            )
        self.model = build_network("SiglipVisionModel", config)
        self.dim = int(self.model.config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        output = self.model(pixels)
        head = self.model.head
        attention: nn.MultiheadAttention = head.attention
        weight, bias = attention.in_proj_weight[-self.dim :], attention.in_proj_bias[-self.dim :]
        values = nn.functional.linear(output.last_hidden_state, weight, bias)  # value projection
        patches = attention.out_proj(values)  # (B, N, d)
        patches = patches + head.mlp(head.layernorm(patches))
        return torch.cat([output.pooler_output[:, None], patches], dim=1)  # (B, 1 + N, d)


class BertTextEncoder(TextEncoder):
    """The last hidden states of BERT (Devlin et al., NAACL 2019) or a similar network (MiniLM).

    Each text starts with [CLS] and ends with [SEP]. `config` includes `model_type`, one of the
    types in `export/encoders/sources.py`.
    """

    summary_token: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("AutoModel", config)
        self.model.pooler = None  # `forward` does not use its output
        self.dim = int(self.model.config.hidden_size)
        # RoBERTa's position ids start at 2, its padding id + 1
        offset = 2 if self.model.config.model_type == "roberta" else 0
        self.max_length = int(self.model.config.max_position_embeddings) - offset

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        mask = lengths_to_mask(lengths, ids.shape[1])  # (B, L)
        hidden: Tensor = self.model(ids, attention_mask=mask.long()).last_hidden_state  # (B, L, d)
        return hidden * mask[..., None]


class CLIPTextEncoder(TextEncoder):
    """CLIP's text transformer (Radford et al., ICML 2021).

    Features are the states after the last layer norm. Attention is causal, so only the last
    element of each text, [EOS], depends on the whole text; `models.layers.last_element` selects it.
    `projected` maps every element to the joint space.
    """

    def __init__(self, config: dict[str, Any], projected: bool = False) -> None:
        super().__init__()
        self.model = build_network("CLIPTextModel", config)
        self.projection, self.dim = _build_projection(self.model.config, projected)
        self.max_length = int(self.model.config.max_position_embeddings)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        mask = lengths_to_mask(lengths, ids.shape[1])  # (B, L)
        hidden: Tensor = self.model(ids, attention_mask=mask.long()).last_hidden_state  # (B, L, h)
        if self.projection is not None:
            hidden = self.projection(hidden)
        return hidden * mask[..., None]


class SiglipTextEncoder(TextEncoder):
    """SigLIP's text transformer (Zhai et al., ICCV 2023); the last token represents the text.

    SigLIP's text embedding is the state at the last of `max_length` positions, which is usually
    padding. Here it replaces the state of each text's last token, [EOS].
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("SiglipTextModel", config)
        self.dim = int(self.model.config.projection_size)
        self.max_length = int(self.model.config.max_position_embeddings)
        self.padding = int(self.model.config.pad_token_id)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        length = ids.shape[1]
        output = self.model(self.pad(ids, lengths))
        tokens = self.model.head(output.last_hidden_state)[:, :length]  # (B, L, d)
        positions = torch.arange(length, device=ids.device)
        is_last = (positions == lengths[:, None] - 1)[..., None]  # (B, L, 1)
        features = torch.where(is_last, output.pooler_output[:, None], tokens)
        return features * lengths_to_mask(lengths, length)[..., None]

    def pad(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Pads token ids (B, L) to (B, `max_length`) with SigLIP's padding token."""
        positions = torch.arange(cast(int, self.max_length), device=ids.device)
        extended_ids = ids[:, positions.clamp(max=ids.shape[1] - 1)]  # (B, max_length)
        return torch.where(positions < lengths[:, None], extended_ids, self.padding)


def _build_projection(config: Any, projected: bool) -> tuple[nn.Linear | None, int]:
    """Builds CLIP's projection to the joint space, or None; also returns the features' width d."""
    if not projected:
        return None, int(config.hidden_size)
    width = int(config.projection_dim)
    return nn.Linear(config.hidden_size, width, bias=False), width


def _nearest_patches(centre: int, side: int, count: int) -> Tensor:
    """Returns the indices (count,) of the patches nearest to `centre`, by distance, then index."""
    row, column = divmod(centre, side)
    index = torch.arange(side)
    squared_distances = (index[:, None] - row) ** 2 + (index[None] - column) ** 2  # (side, side)
    return squared_distances.flatten().argsort(stable=True)[:count]
