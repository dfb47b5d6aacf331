"""Joins a method and its two encoders in one module, and encodes splits with the module."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyview.models import Method, Views
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.layers import drop_elements
from polyview.models.views import lengths_to_mask
from polyview.training.data.split import Split
from polyview.training.data.texts import TokenTable
from polyview.training.loop.config import TrainConfig

TEXT_BATCH_SIZE = 128


class DualEncoder(nn.Module):
    """A method with its two encoders.

    `has_summary` states for images and for texts whether the first feature is a summary ([CLS]),
    which size augmentation never drops. Without `image_encoder` the inputs are image features.
    """

    def __init__(
        self,
        method: Method,
        text_encoder: TextEncoder,
        config: TrainConfig,
        image_encoder: ImageEncoder | None = None,
        has_summary: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__()
        self.method, self.text_encoder, self.image_encoder = method, text_encoder, image_encoder
        self.config, self.has_summary = config, has_summary

    def train(self, mode: bool = True) -> DualEncoder:
        """Sets the mode; batch norms of the image encoder stay in eval mode."""
        super().train(mode)
        if self.image_encoder is not None:
            for module in self.image_encoder.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def image_features(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns features (B, N, d) and their mask (B, N); encodes `images` if they are pixels."""
        if self.image_encoder is None:
            return images, mask
        features: Tensor = self.image_encoder(images)  # (B, N, d)
        return features, torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)

    def forward(
        self, images: Tensor, mask: Tensor, rows: Tensor, ids: Tensor, lengths: Tensor
    ) -> tuple[Views, Views]:
        """Encodes B pairs, given as in `Batch`; returns the views of B images and of B texts."""
        features, mask = self.image_features(images, mask)  # (B_img, N, d), (B_img, N)
        words = word_features(self.text_encoder, ids, lengths)  # (B, L, d)
        word_mask = lengths_to_mask(lengths, ids.shape[1])  # (B, L)
        if self.training:
            features = F.dropout(features, self.config.feature_dropout)
            mask, word_mask = (
                drop_elements(side_mask, self.config.size_augmentation, keep_first=has_summary)
                for side_mask, has_summary in zip((mask, word_mask), self.has_summary, strict=True)
            )
        views = self.method.encode_image(features, mask)
        return views[rows], self.method.encode_text(words, word_mask)


def word_features(encoder: TextEncoder, ids: Tensor, lengths: Tensor) -> Tensor:
    """Encodes token ids (B, L) with lengths (B,) into features (B, L, d), 0 at padding.

    Texts of similar length are encoded together, so that a few long captions do not add padding to
    hundreds of short captions.
    """
    if len(ids) <= TEXT_BATCH_SIZE:
        return encoder(ids, lengths)
    order = lengths.argsort(stable=True)
    batches = []
    for texts in order.split(TEXT_BATCH_SIZE):
        longest = int(lengths[texts].max())
        batch = encoder(ids[texts, :longest], lengths[texts])  # (b, l, d)
        batches.append(F.pad(batch, (0, 0, 0, ids.shape[1] - longest)))
    return torch.cat(batches)[order.argsort()]


@torch.inference_mode()
def encode_split(
    model: DualEncoder, data: Split, table: TokenTable, device: torch.device
) -> tuple[Views, Views]:
    """Encodes all images and texts of a split with a model in eval mode, on the device.

    The split holds features (N_img, N, d), or pixels if the model has an image encoder.
    """
    method, image_views, text_views = model.method, [], []
    batch_size = 256 if model.image_encoder is None else 64
    for start in range(0, data.image_count, batch_size):
        batch = slice(start, start + batch_size)
        images = torch.from_numpy(np.asarray(data.features[batch], np.float32)).to(device)
        mask = torch.from_numpy(data.mask(batch, images.shape[1])).to(device)
        image_views.append(method.encode_image(*model.image_features(images, mask)).embeddings)
    for start in range(0, len(table.lengths), 512):
        rows = np.arange(start, min(start + 512, len(table.lengths)))
        ids, lengths = map(torch.from_numpy, table.rows(rows))
        words = model.text_encoder(ids.to(device), lengths.to(device))
        word_mask = lengths_to_mask(lengths, ids.shape[1]).to(device)
        text_views.append(method.encode_text(words, word_mask).embeddings)
    return Views(torch.cat(image_views)), Views(torch.cat(text_views))
