"""Trains one method on cached features, or together with its image encoder; views of such runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from polyview import models
from polyview.export.build.trained import describe_run, load_run
from polyview.export.encoders.sources import describe_image_source, load_image_source
from polyview.export.pack.validation import check
from polyview.models import Method, Views
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.files import sha256_of, write_whole
from polyview.models.layers import FeatureProjection, drop_elements
from polyview.models.preprocess import Preprocess
from polyview.models.views import lengths_to_mask
from polyview.training.data.batches import Batch, batches
from polyview.training.data.features import (
    CACHE,
    Extraction,
    read_features,
    read_pixels,
    refuse_missing,
)
from polyview.training.data.image_files import ahead
from polyview.training.data.open_split import (
    describe_data,
    holds_features,
    open_split,
    open_training,
)
from polyview.training.data.split import Split, with_exchanged_halves
from polyview.training.data.texts import TokenTable, build_text_side
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.scoring import score_matrix
from polyview.training.loop.checks import check_training, load_init, refuse_without_summary
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.loop import (
    CONFIG,
    TOKENIZER,
    Loop,
    RunFolder,
    parameter_groups,
    steps_in_epoch,
)
from polyview.training.objectives import build_objective

TEXTS_AT_ONCE = 128


class Trainer(Loop[TrainConfig, Batch]):
    """Trains one method.

    Args:
        config: the settings.
        train: features and captions to train on.
        val: features and captions that choose the best epoch.
        out: run folder.
        backbone: `describe_image_source` of the image encoder that made the features.
        encoder: that encoder if it is also trained; `train` and `val` then hold pixels.
        resume: continue the run in `out`, see `Loop.start`.
        cache: folder of the token features of frozen text encoders.
    """

    best_by = "rsum"

    def __init__(
        self,
        config: TrainConfig,
        train: Split,
        val: Split,
        out: Path,
        *,
        backbone: Mapping[str, Any] | None = None,
        encoder: ImageEncoder | None = None,
        resume: bool = False,
        cache: Path = CACHE,
    ) -> None:
        super().__init__(config)
        self.train = with_exchanged_halves(train) if config.exchange_halves else train
        self.val, self.backbone, self.encoder = val, backbone or {}, encoder
        sides = self.train.captions, val.captions
        self.texts = build_text_side(config.text, *sides, cache, self.device, train.captions)
        self.objective = build_objective(config.method, config.objective)
        self.image_dim = self.train.features.shape[2] if encoder is None else encoder.dim
        dims = self.image_dim, self.texts.encoder.dim
        method = models.build(config.method, *dims, config.arguments)
        summaries = self.train.summary_token, self.texts.summary_token
        refuse_without_summary(config.method, method, *summaries)
        if config.projection_init == "xavier":
            _start_as_released(method)
        parts = method, self.texts.encoder, config, encoder
        self.model = DualEncoder(*parts, summaries=summaries).to(self.device)
        options: dict[str, Any] = {"items": len(self.train.captions), "resume": resume}
        resumed = self.start(self.model, out, groups=self._groups(), **options)
        if config.init and not resumed:
            sha256 = self.backbone.get("sha256", "")
            load_init(self.model, config, sha256, self.texts.tokenizer.to_str(pretty=True))

    def _groups(self) -> list[dict[str, Any]]:
        """The trained parameters, in a group for each share of the base rate."""
        config = self.config
        shares = {"text_encoder": config.text.lr_scale, "image_encoder": config.backbone_lr_scale}
        groups: dict[float, list[nn.Parameter]] = {}
        for name, part in self.model.named_children():
            groups.setdefault(shares.get(name, 1.0), []).extend(part.parameters())
        return [group for share, part in groups.items() for group in parameter_groups(part, share)]

    def after_step(self) -> None:
        """See `Loop`: keeps a learned temperature in its range."""
        self.model.method.clamp_temperature()

    def stop_reason(self, epoch: int) -> str:
        """See `Loop`: early stopping."""
        best, patience = self.progress["best_epoch"], self.config.patience
        if epoch - best <= patience:
            return ""
        return (
            f"stopped early after epoch {epoch} of {self.config.epochs}: val rsum has not risen "
            f"for {patience} epochs (patience), since epoch {best + 1}"
        )

    def batches(self, epoch: int) -> Iterator[Batch]:
        """See `Loop`."""
        config, among = self.config, None
        seeds: list[tuple[int, ...]] = [(config.seed, epoch)]
        if epoch < config.order_epochs:
            among = np.flatnonzero(np.array(self.train.kinds) == "order")
            rounds = -(-self.steps // steps_in_epoch(len(among), config.batch_size))
            seeds = [(config.seed, epoch, number) for number in range(rounds)]
        parts = (
            batches(
                self.train,
                self.texts.tables[0],
                config.batch_size,
                seed,
                config.text.unknown_rate,
                config.captions_per_image,
                among,
            )
            for seed in seeds
        )
        stream = islice(chain.from_iterable(parts), self.steps)
        return stream if self.encoder is None else ahead(stream)

    def losses(self, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """See `Loop`."""
        batch = batch.to(self.device)
        with self.autocast():
            images, texts = self.model(
                batch.features, batch.mask, batch.rows, batch.ids, batch.lengths
            )
        images, texts = (views.apply(Tensor.float) for views in (images, texts))
        return self.objective(self.model.method, images, texts, batch.image_ids, epoch)

    def validate(self, epoch: int) -> dict[str, float]:
        """Retrieval metrics on the validation split, if the epoch is validated."""
        if (epoch + 1) % self.config.validate_every and epoch + 1 < self.config.epochs:
            return {}
        scores = score_matrix(self.model.method, *self.validation_views())
        return retrieval_metrics(scores, self.val.image_of)

    def validation_views(self) -> tuple[Views, Views]:
        """Views of all images and texts of the validation split with the present weights."""
        self.model.eval()
        return encode_split(self.model, self.val, self.texts.tables[1], self.device)

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """See `Loop`; also writes the tokenizer, which belongs to the weights."""
        tokenizer = self.run.path / TOKENIZER
        write_whole(tokenizer, self.texts.tokenizer.to_str(pretty=True))
        description = {
            "kind": "run",
            "method": self.config.method,
            "arguments": self.config.arguments,
            "image_dim": self.image_dim,
            "text_dim": self.model.text_encoder.dim,
            "text_encoder": dict(self.texts.description),
            "backbone_sha256": self.backbone.get("sha256", ""),
            "tokenizer_sha256": sha256_of(tokenizer),
            "seed": self.config.seed,
            **({"frames": self.train.frames} if self.train.frames > 1 else {}),
            "data": describe_data(Path(self.config.data), self.config.also, self.train),
        }
        if self.encoder is not None:
            keys = ("arch", "arguments", "preprocess")
            description["image_encoder"] = {key: self.backbone[key] for key in keys}
        return self.model.state_dict(), description


def build_trainer(
    config: TrainConfig, out: Path, *, resume: bool, how: Extraction | None = None
) -> Trainer:
    """Checks a configuration, reads its data and encoders, and makes a trainer.

    `how` computes and caches the features of frozen image and text encoders.

    Raises:
        ValueError, OSError: see `check_training`; raised before images are read.
    """
    data, backbone, how = Path(config.data), config.backbone, how or Extraction()
    train, val = open_training(data, config.also), open_split(data, "val")
    description, encoder = check_training(config, train), None
    RunFolder(out, config, resume=resume)
    if config.backbone_frozen:
        train = read_features(train, backbone, how, config.feature_copies)
        val = read_features(val, backbone, how)
    else:
        encoder, preprocess, _ = load_image_source(backbone, rounded=False)
        train, val = (read_pixels(split, encoder, preprocess) for split in (train, val))
    train = train.with_frames(config.frames).first(config.train_images)
    val = val.with_frames(config.frames).captions_each(config.ranked_captions)
    options: dict[str, Any] = {"resume": resume, "cache": how.cache}
    return Trainer(config, train, val, out, backbone=description, encoder=encoder, **options)


def _start_as_released(method: Method) -> None:
    """See `TrainConfig.projection_init`."""
    for name, part in method.named_modules():
        if isinstance(part, FeatureProjection) and name.startswith("project_image"):
            nn.init.xavier_uniform_(part.linear.weight)
            nn.init.zeros_(part.linear.bias)


class DualEncoder(nn.Module):
    """A method with its two encoders, as one module.

    The batch norms of a trained image encoder keep their statistics. The first feature of an image
    or of a text is never dropped if it is a summary ([CLS]; `summaries`).
    """

    def __init__(
        self,
        method: Method,
        text_encoder: TextEncoder,
        config: TrainConfig,
        image_encoder: ImageEncoder | None = None,
        summaries: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__()
        self.method, self.text_encoder = method, text_encoder
        self.image_encoder = image_encoder
        self.size_augmentation = config.size_augmentation
        self.feature_dropout = config.feature_dropout
        self.summaries = summaries

    def train(self, mode: bool = True) -> DualEncoder:
        """Sets the mode; the image encoder's batch norms always stay in evaluation mode."""
        super().train(mode)
        for part in self.image_encoder.modules() if self.image_encoder is not None else ():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()
        return self

    def image_features(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, N, d) and mask (B, N), passed on or encoded from pixels (B, 3, S, S)."""
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
            mask, spoken = (
                drop_elements(each, self.size_augmentation, keep_first=summary)
                for each, summary in zip((mask, spoken), self.summaries, strict=True)
            )
        views = self.method.encode_image(features, mask)
        return views[rows], self.method.encode_text(words, spoken)


def word_features(encoder: TextEncoder, ids: Tensor, lengths: Tensor) -> Tensor:
    """Texts (B, L), 0 beyond their lengths (B,), to features (B, L, d), 0 where padded.

    Texts of similar length are encoded together, so that a few long captions do not lengthen
    hundreds of short ones.
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
    """Views of all images and of all texts of a split by a model in eval mode, on the device.

    The split holds features (N_img, N, d), or pixels if the model has an image encoder.
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
        part: the split, see `open_split`.
        extraction: how image features that are not cached are computed.
        data: folder of the split; None for the run's training data.

    Returns:
        The method's name, the method, views of N_img images and N_txt texts, and the split.

    Raises:
        FileNotFoundError: the folder holds no run, or an encoder or the data are missing.
        ValueError: the folder is not a run, or an encoder has changed since its training.
    """
    description = describe_run(folder)
    config = check(TrainConfig, tomllib.loads((folder / CONFIG).read_text("utf-8")))
    split = open_split(data or Path(config.data), part)
    data, reads_images = split.folder.parent, bool(description.backbone_sha256)
    if holds_features(data) == reads_images:
        reads, holds = ("images", "ready-made features")[:: 1 if reads_images else -1]
        raise ValueError(
            f"{folder} was trained on {reads}, and {data} holds {holds}; name other --data"
        )
    if not reads_images and split.features.shape[2] != description.image_dim:
        raise ValueError(
            f"{folder} reads features of {description.image_dim} numbers a region, and those in "
            f"{data} have {split.features.shape[2]}; name other --data"
        )
    for source, setting in (
        (config.backbone if reads_images else "", "backbone"),
        (description.text_encoder.source or "", "text.source"),
    ):
        refuse_missing(source, setting)
    encoder_spec = describe_image_source(config.backbone) if reads_images else {}
    run = load_run(folder, None, encoder_spec, rounded=True)
    parts, device = run.parts, extraction.torch_device
    if parts.image_encoder is not None:
        preprocess = Preprocess.from_json(encoder_spec["preprocess"])
        split = read_pixels(split, parts.image_encoder, preprocess)
    elif reads_images:
        split = read_features(split, config.backbone, extraction)
    split = split.with_frames(config.frames).captions_each(config.ranked_captions)
    table = TokenTable(Tokenizer.from_str(run.tokenizer), split.captions)
    model = DualEncoder(parts.head, parts.text_encoder, config, parts.image_encoder)
    views = encode_split(model.to(device).eval(), split, table, device)
    return config.method, parts.head, *views, split
