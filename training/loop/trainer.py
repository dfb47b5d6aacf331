"""Trains one method, on cached features or along with its image encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import models
from export.encoders.sources import describe_image_source, describe_text_source
from models import Method, Views
from models.checkpoint import load_strict, load_tensors
from models.encoders import IMAGE_ENCODERS
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.files import sha256_of, write_whole
from models.layers import FeatureProjection
from training.data.batches import Batch, ahead, batches
from training.data.features import (
    CACHE,
    ImageSide,
    check_images,
    load_features,
    load_image_side,
    read_pixels,
    refuse_missing,
)
from training.data.open_split import describe_data, holds_features, open_split, open_training
from training.data.split import Split, refuse_without_twins, with_exchanged_halves
from training.data.texts import build_text_side, describe_text
from training.evaluation.metrics import retrieval_metrics
from training.evaluation.scoring import score_matrix
from training.loop.config import TrainConfig
from training.loop.dual_encoder import DualEncoder, encode_split
from training.loop.loop import Loop, check_pace, device_for, parameter_groups, steps_in_epoch
from training.loop.runs import BEST, TOKENIZER, RunFolder, part_of
from training.objectives import build_objective


class Trainer(Loop[TrainConfig, Batch]):
    """Trains one method.

    Args:
        config: the settings.
        train: features and captions to train on.
        val: features and captions that choose the best epoch.
        out: run folder.
        backbone_sha256: of the image encoder that made the features.
        images: the image encoder where it is trained along; `train` and `val` then hold images.
        resume: continue the run in `out`, see `Loop.start`.
        cache: folder of the token features of text encoders that are not trained.
    """

    best_by = "rsum"

    def __init__(
        self,
        config: TrainConfig,
        train: Split,
        val: Split,
        out: Path,
        *,
        backbone_sha256: str = "",
        images: ImageSide | None = None,
        resume: bool = False,
        cache: Path = CACHE,
    ) -> None:
        self.train, self.val = train, val
        self.images = images
        self.backbone_sha256 = backbone_sha256 if images is None else images.sha256
        if config.backbone_frozen == (images is not None):
            raise ValueError("backbone_frozen must be false just where an image encoder is trained")
        super().__init__(config)
        sides = train.captions, val.captions
        self.texts = build_text_side(config.text, *sides, cache, self.device, train.own_captions)
        self.objective = build_objective(config.method, config.objective)
        self.model = self._build().to(self.device)
        options: dict[str, Any] = {"items": len(train.captions), "resume": resume}
        resumed = self.start(self.model, out, groups=self._groups(), **options)
        if config.init and not resumed:
            load_init(
                self.model, config, self.backbone_sha256, self.texts.tokenizer.to_str(pretty=True)
            )

    def _build(self) -> DualEncoder:
        config, texts = self.config, self.texts
        encoder = None if self.images is None else self.images.encoder
        method = models.build(config.method, self.image_dim, texts.encoder.dim, config.arguments)
        summaries = self.train.summary_token, texts.summary_token
        refuse_without_summary(config.method, method, *summaries)
        if config.projection_init == "xavier":
            _start_as_released(method)
        return DualEncoder(
            method,
            texts.encoder,
            config,
            image_encoder=encoder,
            image_summary=self.train.summary_token,
            text_summary=texts.summary_token,
        )

    @property
    def image_dim(self) -> int:
        """Width d of the image features."""
        return self.train.features.shape[2] if self.images is None else self.images.encoder.dim

    @property
    def images_in_step(self) -> float:
        """See `Loop`; `captions_per_image` captions share an image."""
        return self.config.batch_size / self.config.captions_per_image

    def _groups(self) -> list[dict[str, Any]]:
        """The trained parameters, a group for each share of the base rate."""
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
        return stream if self.images is None else ahead(stream)

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
        """Retrieval metrics on the validation split, where the epoch is to be validated."""
        if (epoch + 1) % self.config.validate_every and epoch + 1 < self.config.epochs:
            return {}
        scores = score_matrix(self.model.method, *self.validation_views())
        return retrieval_metrics(scores, self.val.image_of)

    def validation_views(self) -> tuple[Views, Views]:
        """Views of all images and of all texts of the validation split, as the weights are now."""
        self.model.eval()
        return encode_split(self.model, self.val, self.texts.tables[1], self.device)

    def described(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """See `Loop`; also writes the tokenizer, which belongs to the weights."""
        tokenizer = self.run.path / TOKENIZER
        write_whole(tokenizer, self.texts.tokenizer.to_str(pretty=True))
        about = {
            "kind": "run",
            "method": self.config.method,
            "arguments": self.config.arguments,
            "image_dim": self.image_dim,
            "text_dim": self.model.text_encoder.dim,
            "text_encoder": dict(self.texts.about),
            "backbone_sha256": self.backbone_sha256,
            "tokenizer_sha256": sha256_of(tokenizer),
            "seed": self.config.seed,
            **({"frames": self.train.frames} if self.train.frames > 1 else {}),
            "data": describe_data(Path(self.config.data), self.config.also, self.train),
        }
        if self.images is not None:
            about["image_encoder"] = dict(self.images.about)
        return self.model.state_dict(), about


def build_trainer(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool,
    load: Callable[..., Split] = load_features,
    cache: Path = CACHE,
) -> Trainer:
    """Checks a configuration, loads its data and encoders, and makes a trainer.

    Args:
        config: the settings.
        out: run folder.
        resume: continue the run in `out`.
        load: loads a split's features, as `load_features` does; several trainers can share one
            with a cache.
        cache: folder of the token features of text encoders that are not trained.

    Raises:
        ValueError, OSError: see `check_training`.
    """
    data, backbone, sha256, side = Path(config.data), config.backbone, "", None
    check_training(config, out, resume=resume)
    if config.backbone_frozen:
        train = load(data, "train", backbone, copies=config.feature_copies, also=config.also)
        val = load(data, "val", backbone)
        if not holds_features(data):
            sha256 = describe_image_source(backbone)["sha256"]
    else:
        side = load_image_side(backbone)
        train = read_pixels(open_training(data, config.also), side)
        val = read_pixels(open_split(data, "val"), side)
    train = train.with_frames(config.frames).first(config.train_images)
    val = val.with_frames(config.frames)
    if config.exchange_halves:
        train = with_exchanged_halves(train)
    options: dict[str, Any] = {"resume": resume, "cache": cache, "images": side}
    return Trainer(config, train, val, out, backbone_sha256=sha256, **options)


def check_training(config: TrainConfig, out: Path, *, resume: bool) -> None:
    """Checks what a training needs before an image is read, and makes its run folder.

    Raises:
        ValueError, OSError: something is missing or does not fit; one sentence.
    """
    device_for(config.precision)
    data, sha256 = Path(config.data), ""
    train = open_training(data, config.also).with_frames(config.frames)
    check_images(train, config.feature_copies, trained=not config.backbone_frozen)
    open_split(data, "val")
    if config.exchange_halves or config.order_epochs:
        refuse_without_twins(train)
    text_kind, text_arguments, _ = describe_text(config.text)
    image_dim, image_summary = train.features.shape[2], False
    with torch.device("meta"):  # sizes alone
        if not holds_features(data):
            if not config.backbone:
                raise ValueError(
                    f"{data} holds images, so backbone must name an image encoder: --set "
                    "backbone=..."
                )
            refuse_missing(config.backbone, "backbone")
            about = describe_image_source(config.backbone)
            encoder: ImageEncoder = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
            image_dim, image_summary, sha256 = encoder.dim, encoder.summary_token, about["sha256"]
        text: TextEncoder = text_kind(**text_arguments)
        method = models.build(config.method, image_dim, text.dim, config.arguments)
    refuse_without_summary(config.method, method, image_summary, text.summary_token)
    _refuse_idle_text(config, method)
    if config.init:
        read_init(config, sha256)
    check_pace(config, len(train.first(config.train_images).captions))
    RunFolder(out, config, resume=resume)


def refuse_without_summary(name: str, method: Method, image: bool, text: bool) -> None:
    """Raises ValueError where a method reads [CLS] elements that an encoder does not have."""
    own = method.own_summaries
    lacking = [s for s, has in (("image", image), ("text", text)) if not has and s not in own]
    if method.summary_token and lacking:
        raise ValueError(
            f'method "{name}" reads the first element of a set as its summary ([CLS]), but the '
            f"{' and the '.join(lacking)} encoder has none; use encoders whose summary_token is "
            f"True, set arguments.contextual_{lacking[0]}=transformer, which adds one, or choose a "
            "method that pools the whole set"
        )


def _refuse_idle_text(config: TrainConfig, method: Method) -> None:
    """Raises ValueError where a frozen encoder's texts reach the score without a learned map."""
    frozen = bool(config.text.source) and config.text.frozen
    mapped = not isinstance(getattr(method, "project_text", None), nn.Identity)
    width = config.arguments.get("embed_dim")
    if frozen and not mapped and width != 0 and "map_text" not in config.arguments:
        raise ValueError(
            f"the text encoder is frozen and its features already have the width of embed_dim"
            f"{f', {width}' if width else ''}, so that nothing would learn to map texts: "
            "--set arguments.map_text=true, or text.frozen=false, or choose another embed_dim"
        )


def read_init(config: TrainConfig, backbone_sha256: str) -> tuple[dict[str, Tensor], str]:
    """The best weights of the run that `init` names, and the checksum of its tokenizer.

    Its encoders that were frozen have no weights there, so their sources must be the same.

    Raises:
        FileNotFoundError: the folder holds no weights.
        ValueError: it is not a run, or has another method or other encoders.
    """
    folder, text = Path(config.init), config.text.source
    tensors, about = load_tensors(folder / BEST)
    if about.get("kind") != "run":
        raise ValueError(f"init: {folder / BEST} is not of a method's run; name another folder")
    if about["method"] != config.method:
        raise ValueError(f"init: {folder} is a run of {about['method']}, not of {config.method}")
    former = about["text_encoder"].get("sha256")
    text_sha256 = describe_text_source(text)["sha256"] if text and former else None
    for same, setting in (
        (about["backbone_sha256"] == backbone_sha256, f'backbone "{config.backbone}"'),
        (former == text_sha256, f'text.source "{text}"'),
    ):
        if not same:
            raise ValueError(
                f"init: {folder} was trained with another encoder than {setting}; name the one in "
                "its config.toml"
            )
    return tensors, about["tokenizer_sha256"]


def load_init(model: DualEncoder, config: TrainConfig, sha256: str, tokenizer: str) -> None:
    """Copies the best weights of the run that `init` names: of all that was trained there.

    Args:
        model: what is trained.
        config: of the training that starts.
        sha256: checksum of its image encoder's source.
        tokenizer: of its texts, as JSON.

    Raises:
        FileNotFoundError, ValueError: see `read_init`; or tokenizer or weights do not fit.
    """
    tensors, expected = read_init(config, sha256)
    if expected != hashlib.sha256(tokenizer.encode()).hexdigest():
        raise ValueError(
            f"init: {config.init} reads texts with another tokenizer; train both with the same "
            "captions and text settings"
        )
    settings = {"method": "", "image_encoder": "backbone_frozen", "text_encoder": "text.frozen"}
    parts = dict(model.named_children())
    for name, setting in settings.items():
        own = part_of(tensors, f"{name}.")
        if own and not (name in parts and parts[name].state_dict()):
            raise ValueError(
                f"init: {config.init} trained its {name}, which is frozen here; set {setting}=false"
            )
        if own:
            load_strict(parts[name], own, f"{config.init}/{BEST}")


def _start_as_released(method: Method) -> None:
    """See `TrainConfig.projection_init`."""
    for name, part in method.named_modules():
        if isinstance(part, FeatureProjection) and name.startswith("project_image"):
            nn.init.xavier_uniform_(part.linear.weight)
            nn.init.zeros_(part.linear.bias)
