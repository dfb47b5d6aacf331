"""The image encoder of AVSE's release: a ViT that reads an image several times, in parts.

Yang Liu, Mengyuan Liu, Shudong Huang, Jiancheng Lv: Asymmetric Visual Semantic Embedding Framework
for Efficient Vision-Language Alignment, AAAI 2025. Its release samples by "radial bias": each view
keeps [CLS] and the patches nearest to a centre, the transformer's layers see those alone, and there
is no last layer norm. The release draws the centres anew in every pass, in evaluation, too. Here
they are fixed, so that an image always has the same embedding.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from models.encoders.encoder import ImageEncoder
from models.encoders.huggingface import build_network

EVAL_SHARE = 0.9  # of the token count, [CLS] included, that a view keeps patches


class SampledViT(ImageEncoder):
    """Every element's states in each view side by side, 0 where a view left the element out.

    Args:
        config: a `ViTConfig` as JSON.
        centres: a patch for each view, row-major from 0; None spreads two over the image.
        share: how many patches a view keeps, over the number of tokens.
    """

    summary_token: ClassVar[bool] = True
    kept: Tensor
    place: Tensor

    def __init__(
        self,
        config: dict[str, Any],
        centres: tuple[int, ...] | None = None,
        share: float = EVAL_SHARE,
    ) -> None:
        super().__init__()
        self.model = build_network("ViTModel", config, add_pooling_layer=False)
        self.model.layernorm = None  # the release goes without it
        self.side = int(self.model.config.image_size // self.model.config.patch_size)
        patches = self.side**2
        count = int((patches + 1) * share)
        if centres is None:
            # the middles of the upper left and of the lower right quarter
            near, far = self.side // 4, self.side - 1 - self.side // 4
            centres = (near * self.side + near, far * self.side + far)
        if not centres or any(not 0 <= centre < patches for centre in centres):
            raise ValueError(f"view centres must be patches from 0 to {patches - 1}, not {centres}")
        if not 1 <= count <= patches:
            raise ValueError(f"share {share} keeps {count} of {patches} patches")
        nearest = torch.stack([_nearest(centre, self.side, count) for centre in centres])
        tokens = torch.cat([torch.zeros(len(nearest), 1, dtype=torch.int64), nearest + 1], dim=1)
        # where each token stands in each view; behind the end where it was left out
        place = torch.full((len(nearest), patches + 1), count + 1)
        place.scatter_(1, tokens, torch.arange(count + 1).expand(len(nearest), -1))
        self.register_buffer("kept", tokens, persistent=False)  # (n, count + 1)
        self.register_buffer("place", place, persistent=False)  # (n, N)
        self.dim = len(nearest) * int(self.model.config.hidden_size)

    def grid(self, size: int) -> tuple[int, int]:
        """See `ImageEncoder.grid`."""
        if size != self.model.config.image_size:
            raise ValueError(
                f"this transformer reads {self.model.config.image_size} pixels a side, not {size}"
            )
        return self.side, self.side

    def forward(self, pixels: Tensor) -> Tensor:
        """See `ImageEncoder.forward`; d is n times the transformer's width."""
        tokens = self.model.embeddings(pixels)  # (B, N, h)
        views = []
        for kept, place in zip(self.kept, self.place, strict=True):
            hidden = tokens[:, kept]  # (B, count + 1, h)
            for layer in self.model.layers:
                hidden = layer(hidden)
            nothing = torch.zeros_like(hidden[:, :1])
            views.append(torch.cat([hidden, nothing], dim=1)[:, place])  # (B, N, h)
        return torch.cat(views, dim=2)


def _nearest(centre: int, side: int, count: int) -> Tensor:
    """The `count` patches nearest to a patch, itself first; of equally near ones the first."""
    row, column = divmod(centre, side)
    places = torch.arange(side)
    square = (places[:, None] - row) ** 2 + (places[None] - column) ** 2  # (side, side)
    return square.flatten().argsort(stable=True)[:count]
