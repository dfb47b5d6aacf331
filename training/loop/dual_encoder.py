"""A method with its two encoders: in training, and in a trained run that is measured."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

import models
from export.build.trained import RunAbout
from export.encoders.sources import describe_image_source, load_text_source
from export.pack.validation import check
from models import Method, Views
from models.checkpoint import load_strict, load_tensors
from models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.files import sha256_of
from models.layers import drop_elements
from models.views import lengths_to_mask
from training.data.features import (
    Extraction,
    load_image_side,
    read_features,
    read_pixels,
    refuse_missing,
)
from training.data.open_split import holds_features, open_split
from training.data.split import Split
from training.data.texts import TokenTable
from training.loop.config import TrainConfig
from training.loop.runs import BEST, CONFIG, TOKENIZER, part_of
from training.settings import from_values

TEXTS_AT_ONCE = 128


class DualEncoder(nn.Module):
    """A method with its two encoders, as one module for DDP.

    Args:
        method: the heads and the score.
        text_encoder: makes text features.
        config: with the rates of dropout in training.
        image_encoder: makes image features where it is trained along; its batch norms keep their
            statistics.
        image_summary: the first feature of an image is a summary ([CLS]), which is never dropped.
        text_summary: likewise of a text.
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
        """Pairs to views: the image of each of B pairs, and B texts; see `Batch`."""
        features, mask = self.image_features(images, mask)  # (B_img, N, d), (B_img, N)
        words = word_features(self.text_encoder, ids, lengths)  # (B, L, d)
        spoken = lengths_to_mask(lengths, ids.shape[1])  # (B, L)
        if self.training:
            features = F.dropout(features, self.feature_dropout)
            rate = self.size_augmentation
            mask = drop_elements(mask, rate, keep_first=self.image_summary)
            spoken = drop_elements(spoken, rate, keep_first=self.text_summary)
        views = self.method.encode_image(features, mask)
        return views[rows], self.method.encode_text(words, spoken)


def word_features(encoder: TextEncoder, ids: Tensor, lengths: Tensor) -> Tensor:
    """Texts to features, as `encoder` computes them, with less padding.

    Texts of similar length are encoded together, so that a few long captions do not lengthen
    hundreds of short ones.

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
    method, image_views, text_views = model.method, [], []
    at_once = 256 if model.image_encoder is None else 64
    for start in range(0, data.image_count, at_once):
        some = slice(start, start + at_once)
        part = torch.from_numpy(np.asarray(data.features[some], np.float32)).to(device)
        mask = torch.from_numpy(data.mask(some, part.shape[1])).to(device)
        image_views.append(method.encode_image(*model.image_features(part, mask)).embeddings)
    for start in range(0, len(table.lengths), 512):
        rows = np.arange(start, min(start + 512, len(table.lengths)))
        ids, lengths = map(torch.from_numpy, table.rows(rows))
        words = model.text_encoder(ids.to(device), lengths.to(device))
        spoken = lengths_to_mask(lengths, ids.shape[1]).to(device)
        text_views.append(method.encode_text(words, spoken).embeddings)
    return Views(torch.cat(image_views)), Views(torch.cat(text_views))


def run_views(
    folder: Path, part: str, extraction: Extraction, data: Path | None = None
) -> tuple[str, Method, Views, Views, Split]:
    """Encodes a split with the best weights of a run.

    Args:
        folder: the run.
        part: which split, see `open_split`.
        extraction: where and how image features are made that are not cached.
        data: folder of the split; None takes the one the run was trained on.

    Returns:
        The method's name, the method, views of N_img images and N_txt texts, and the split.

    Raises:
        FileNotFoundError: the folder holds no run, or an encoder or the data are missing.
        ValueError: it holds something else, or an encoder is not the one it was trained with.
    """
    path, tokenizer = folder / BEST, folder / TOKENIZER
    tensors, values = load_tensors(path)
    if values.get("kind") != "run":
        raise ValueError(f"{folder} holds an image encoder; name the run of a method over it")
    about = check(RunAbout, values, str(path))
    config = from_values(TrainConfig, tomllib.loads((folder / CONFIG).read_text("utf-8")))
    split = _read(folder, open_split(data or Path(config.data), part), config, about, extraction)
    encoder = None
    if about.image_encoder is not None:
        encoder = about.image_encoder.build(IMAGE_ENCODERS, str(path))
    method = models.build(about.method, about.image_dim, about.text_dim, about.arguments)
    model = DualEncoder(method, _text_encoder(folder, about), config, image_encoder=encoder)
    for name, module in model.named_children():
        own = part_of(tensors, f"{name}.")
        if own or name == "method":  # a frozen encoder has its weights already
            load_strict(module, own, str(path))
    if not tokenizer.is_file() or sha256_of(tokenizer) != about.tokenizer_sha256:
        raise ValueError(f"{tokenizer} is not the tokenizer that the run was trained with")
    table = TokenTable(Tokenizer.from_file(str(tokenizer)), split.captions)
    device = extraction.torch_device
    views = encode_split(model.to(device).eval(), split, table, device)
    return config.method, method, *views, split


def _read(
    folder: Path, split: Split, config: TrainConfig, about: RunAbout, extraction: Extraction
) -> Split:
    """The split with features, or with pixels where the image encoder was trained along."""
    data, reads_images = split.folder.parent, bool(about.backbone_sha256)
    if holds_features(data) == reads_images:
        reads, holds = ("images", "ready-made features")[:: 1 if reads_images else -1]
        raise ValueError(
            f"{folder} was trained on {reads}, and {data} holds {holds}; name other --data"
        )
    if not reads_images and split.features.shape[2] != about.image_dim:
        raise ValueError(
            f"{folder} reads features of {about.image_dim} numbers a region, and those in "
            f"{data} have {split.features.shape[2]}; name other --data"
        )
    if about.image_encoder is not None:
        return read_pixels(split, load_image_side(config.backbone))
    if not reads_images:
        return split.with_frames(config.frames)
    refuse_missing(config.backbone, "backbone")
    if describe_image_source(config.backbone)["sha256"] != about.backbone_sha256:
        raise ValueError(
            f"the image encoder in {config.backbone} is not the one that the run was trained over; "
            "put that one there, or train again"
        )
    return read_features(split, config.backbone, extraction)


def _text_encoder(folder: Path, about: RunAbout) -> TextEncoder:
    """The text encoder; one that was trained has random weights yet."""
    text = about.text_encoder
    if text.source is None or text.sha256 is None:
        encoder: TextEncoder = text.build(TEXT_ENCODERS, str(folder / BEST))
        return encoder
    refuse_missing(text.source, "text.source")
    frozen, _, described = load_text_source(text.source)
    if described["sha256"] != text.sha256:
        raise ValueError(
            f"the text encoder in {text.source} is not the one that {folder} was trained with; put "
            "that one there, or train again"
        )
    return frozen
