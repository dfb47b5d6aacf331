"""What one run trains, as one module."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models import Method, Views
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.layers import drop_elements
from models.views import lengths_to_mask
from training.data.split import Split
from training.data.texts import TokenTable
from training.loop.config import TrainConfig

TEXTS_AT_ONCE = 128


class DualEncoder(nn.Module):
    """A method with its two encoders, as one module for DDP.

    Args:
        method: the heads and the score.
        text_encoder: gives their text features.
        config: says how much is dropped in training.
        image_encoder: gives their image features where it is trained along; its batch norms keep
            their statistics.
        image_summary: an image's first feature is a summary ([CLS]), which is never dropped.
        text_summary: likewise a text's.
    """

    def __init__(
        self,
        method: Method,
        text_encoder: TextEncoder,
        config: TrainConfig,
        *,
        image_encoder: ImageEncoder | None = None,
        image_summary: bool = False,
        text_summary: bool = False,
    ) -> None:
        super().__init__()
        self.method = method
        self.text_encoder = text_encoder
        self.image_encoder = image_encoder
        self.size_augmentation = config.size_augmentation
        self.feature_dropout = config.feature_dropout
        self.image_summary, self.text_summary = image_summary, text_summary

    def train(self, mode: bool = True) -> DualEncoder:
        """See `nn.Module.train`."""
        super().train(mode)
        for part in self.image_encoder.modules() if self.image_encoder is not None else ():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()
        return self

    def image_features(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, N, d) and mask (B, N), given or made of pixels (B, 3, S, S)."""
        if self.image_encoder is None:
            return images, mask
        features: Tensor = self.image_encoder(images)  # (B, N, d)
        return features, torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)

    def forward(
        self, images: Tensor, mask: Tensor, rows: Tensor, ids: Tensor, lengths: Tensor
    ) -> tuple[Views, Views]:
        """Pairs to views: the image of each of B pairs, and B texts; see `datasets.Batch`."""
        features, mask = self.image_features(images, mask)
        words = word_features(self.text_encoder, ids, lengths)  # (B, L, d)
        spoken = lengths_to_mask(lengths, ids.shape[1])  # (B, L)
        if self.training:
            features = F.dropout(features, self.feature_dropout)
            rate = self.size_augmentation
            mask = drop_elements(mask, rate, keep_first=self.image_summary)
            spoken = drop_elements(spoken, rate, keep_first=self.text_summary)
        seen = self.method.encode_image(features, mask)
        return seen[rows], self.method.encode_text(words, spoken)


def word_features(encoder: TextEncoder, ids: Tensor, lengths: Tensor) -> Tensor:
    """Texts to features, as `encoder` does it, with less padding to compute.

    Texts of like length go through the encoder together: a few long captions would otherwise make
    it read hundreds of short ones to their length.

    Args:
        encoder: reads ids and lengths.
        ids: (B, L), 0 beyond each text's length.
        lengths: (B,) int64 in 1..L.

    Returns:
        (B, L, d); padded positions hold 0.
    """
    if len(ids) <= TEXTS_AT_ONCE:
        return encoder(ids, lengths)
    order = lengths.argsort(stable=True)
    parts = []
    for texts in order.split(TEXTS_AT_ONCE):
        longest = int(lengths[texts].max())
        part = encoder(ids[texts, :longest], lengths[texts])  # (b, l, d)
        parts.append(F.pad(part, (0, 0, 0, ids.shape[1] - longest)))
    return torch.cat(parts)[order.argsort()]


@torch.inference_mode()
def encode_split(
    model: DualEncoder, data: Split, table: TokenTable, device: torch.device
) -> tuple[Views, Views]:
    """Views of all images and of all texts of a split.

    Args:
        model: in eval mode, on the device.
        data: with features (N_img, N, d), or with pixels where the model has an image encoder.
        table: its texts.
        device: where the model computes.
    """
    method, seen, read = model.method, [], []
    at_once = 256 if model.image_encoder is None else 64
    for start in range(0, data.image_count, at_once):
        some = slice(start, start + at_once)
        part = torch.from_numpy(np.asarray(data.features[some], np.float32)).to(device)
        mask = torch.from_numpy(data.mask(some, part.shape[1])).to(device)
        seen.append(method.encode_image(*model.image_features(part, mask)).embeddings)
    for start in range(0, len(table.lengths), 512):
        rows = np.arange(start, min(start + 512, len(table.lengths)))
        ids, lengths = map(torch.from_numpy, table.rows(rows))
        words = model.text_encoder(ids.to(device), lengths.to(device))
        spoken = lengths_to_mask(lengths, ids.shape[1]).to(device)
        read.append(method.encode_text(words, spoken).embeddings)
    return Views(torch.cat(seen)), Views(torch.cat(read))
