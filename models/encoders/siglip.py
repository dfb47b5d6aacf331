"""SigLIP's two encoders (Zhai et al., ICCV 2023), which share a space as they are.

They have no maps into a joint space as CLIP has. Of an image, one learned query attends to the
patches; of a text, the last of `max_length` places counts, padding or not. So each encoder puts
what sums up the whole where CLIP's do, and every other element into the same space beside it.
"""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.huggingface import build_network
from models.encoders.patches import patches
from models.views import lengths_to_mask


class SiglipImageEncoder(ImageEncoder):
    """[IMG], which the query found, then the patches, each as if it alone were attended to.

    Args:
        config: a `SiglipVisionConfig` as JSON.
    """

    summary_token: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        if not config.get("vision_use_head", True):
            raise ValueError("this SigLIP has no head that sums up an image; take one that has")
        self.model = build_network("SiglipVisionModel", config)
        self.dim = int(self.model.config.hidden_size)

    def grid(self, size: int) -> tuple[int, int]:
        """See `ImageEncoder.grid`."""
        return patches(self.model.config, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`."""
        output = self.model(pixels)
        head = self.model.head
        attention: nn.MultiheadAttention = head.attention
        weight, bias = attention.in_proj_weight[-self.dim :], attention.in_proj_bias[-self.dim :]
        values = nn.functional.linear(output.last_hidden_state, weight, bias)
        alone = attention.out_proj(values)  # (B, N, d)
        alone = alone + head.mlp(head.layernorm(alone))
        return torch.cat([output.pooler_output[:, None], alone], dim=1)  # (B, 1 + N, d)


class SiglipTextEncoder(TextEncoder):
    """The tokens, of which the last, [EOS], is the whole text.

    Args:
        config: a `SiglipTextConfig` as JSON.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("SiglipTextModel", config)
        self.dim = int(self.model.config.projection_size)
        self.max_length = int(self.model.config.max_position_embeddings)
        self.padding = int(self.model.config.pad_token_id)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """See `TextEncoder.forward`."""
        longest = ids.shape[1]
        places = torch.arange(cast(int, self.max_length), device=ids.device)  # (M,)
        given = ids[:, places.clamp(max=longest - 1)]  # (B, M)
        padded = torch.where(places < lengths[:, None], given, self.padding)
        output = self.model(padded)
        tokens = self.model.head(output.last_hidden_state)[:, :longest]  # (B, L, d)
        last = (places[:longest] == lengths[:, None] - 1)[..., None]  # (B, L, 1)
        features = torch.where(last, output.pooler_output[:, None], tokens)
        return features * lengths_to_mask(lengths, longest)[..., None]
