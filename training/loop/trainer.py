"""Trains one method on cached features or with its image encoder; encodes splits with runs."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from polyview import models
from polyview.export.build.runs import load_run, read_run
from polyview.export.encoders import sources
from polyview.export.pack.validation import check
from polyview.models import Method, Views
from polyview.models.checkpoint import load_strict, load_tensors
from polyview.models.encoders import IMAGE_ENCODERS
from polyview.models.encoders.encoder import ImageEncoder
from polyview.models.files import atomic_write, sha256_of
from polyview.models.layers import FeatureProjection
from polyview.models.preprocess import Preprocess
from polyview.training.data.batches import Batch, batches
from polyview.training.data.features import Extraction, drop_damaged, read_features, refuse_missing
from polyview.training.data.image_files import prefetch
from polyview.training.data.open_split import describe_data, open_split, open_training
from polyview.training.data.split import Split, with_exchanged_halves
from polyview.training.data.texts import TextSide, TokenTable
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.evaluation.scoring import score_matrix
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.dual_encoder import DualEncoder, encode_split
from polyview.training.loop.loop import BEST, CONFIG, TOKENIZER, Loop, parameter_groups
from polyview.training.objectives import build_objective


class Trainer(Loop[TrainConfig, Batch]):
    """Trains one method on the split `train`; the best epoch has the highest rsum on `val`.

    `extraction` has the settings for computing the features of frozen encoders. Raises ValueError
    or OSError, before an image is read, if a source or file is missing or incompatible.
    """

    def __init__(
        self,
        config: TrainConfig,
        train: Split,
        val: Split,
        out: Path,
        *,
        resume: bool = False,
        extraction: Extraction | None = None,
    ) -> None:
        super().__init__(config, out, resume=resume)
        self.extraction = extraction or Extraction()
        if config.exchange_halves or config.order_epochs:
            train.require_twins()
        train.refuse_copies("feature_copies", config.feature_copies)
        self.train = train.with_frames(config.frames).head(config.train_images)
        self.val = val.with_frames(config.frames).limit_captions(config.ranked_captions)
        with torch.random.fork_rng():  # building an encoder must not change the random state
            self.image_dim, has_image_summary = self._open_backbone()
        vocab_captions = self.train.captions  # without captions of exchanged halves
        if config.exchange_halves:
            self.train = with_exchanged_halves(self._with_features(self.train))
        captions = self.train.captions, self.val.captions, vocab_captions
        self.texts = TextSide(config.text, *captions, self.extraction.cache, self.device)
        self.objective = build_objective(config.method, config.objective)
        dims = self.image_dim, self.texts.encoder.dim
        method = models.build(config.method, *dims, config.arguments)
        has_summary = has_image_summary, self.texts.summary_token
        refuse_without_summary(config.method, method, has_summary)
        _require_text_weights(config, method)
        if config.projection_init == "xavier":
            for name, module in method.named_modules():
                if isinstance(module, FeatureProjection) and name.startswith("project_image"):
                    nn.init.xavier_uniform_(module.linear.weight)
                    nn.init.zeros_(module.linear.bias)
        model = DualEncoder(method, self.texts.encoder, config, self.encoder, has_summary)
        self.model = model.to(self.device)
        if config.init:
            sha256 = self.backbone.get("sha256", "")
            _load_init(self.model, config, sha256, self.texts.tokenizer.to_str(pretty=True))
        self.start(self.model, item_count=len(self.train.captions), groups=self._parameter_groups())
        self.train = self._with_features(self.train, config.feature_copies)
        self.val = self._with_features(self.val)

    def _open_backbone(self) -> tuple[int, bool]:
        """Opens the image encoder; returns its width d and whether its first feature is [CLS]."""
        source, self.encoder = self.config.backbone, None
        self.backbone: dict[str, Any] = {}
        if not self.config.backbone_frozen:
            self.train.require_images()
        if len(self.train.features):
            return self.train.features.shape[2], self.train.summary_token
        if not source:
            requirement = "backbone must name an image encoder: --set backbone=..."
            raise ValueError(f"{self.train.folder.parent} holds images, so {requirement}")
        refuse_missing(source, "backbone")
        self.backbone = sources.describe_image_source(source)
        if self.config.backbone_frozen:
            with torch.device("meta"):  # only shapes are needed
                encoder_class = IMAGE_ENCODERS[self.backbone["arch"]]
                encoder: ImageEncoder = encoder_class(**self.backbone["arguments"])
        else:
            encoder, self.preprocess, _ = sources.load_image_source(source, rounded=False)
            self.encoder = encoder
        return encoder.dim, encoder.summary_token

    def _with_features(self, split: Split, copies: int = 1) -> Split:
        """Returns the split with features, or with pixels if the image encoder is trained."""
        if self.encoder is not None:
            return split.with_pixels(self.preprocess)
        with torch.random.fork_rng():  # computing features must not change the random state
            return read_features(split, self.config.backbone, self.extraction, copies)

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Returns optimizer groups; modules with different learning rates have separate groups."""
        config = self.config
        shares = {"text_encoder": config.text.lr_scale, "image_encoder": config.backbone_lr_scale}
        groups: dict[float, list[nn.Parameter]] = {}
        for name, module in self.model.named_children():
            groups.setdefault(shares.get(name, 1.0), []).extend(module.parameters())
        return [g for share, weights in groups.items() for g in parameter_groups(weights, share)]

    def after_step(self) -> None:
        self.model.method.clamp_temperature()

    def stop_reason(self, epoch: int) -> str:
        best, patience = self.progress["best_epoch"], self.config.patience
        if epoch - best <= patience:
            return ""
        return (
            f"stopped early after epoch {epoch} of {self.config.epochs}: val rsum has not risen "
            f"for {patience} epochs (patience), since epoch {best + 1}"
        )

    def batches(self, epoch: int) -> Iterator[Batch]:
        config, candidates = self.config, None
        seeds: list[tuple[int, ...]] = [(config.seed, epoch)]
        if epoch < config.order_epochs:
            candidates = np.flatnonzero(np.array(self.train.kinds) == "order")
            # enough passes over these captions for as many steps as in other epochs
            pass_count = -(-self.steps // self.steps_in_epoch(len(candidates)))
            seeds = [(config.seed, epoch, number) for number in range(pass_count)]
        data = self.train, self.texts.tables[0], config.batch_size
        options = config.text.unknown_rate, config.captions_per_image, candidates
        passes = (batches(*data, seed, *options) for seed in seeds)
        stream = islice(chain.from_iterable(passes), self.steps)
        return stream if self.encoder is None else prefetch(stream)

    def losses(self, batch: Batch, epoch: int) -> dict[str, Tensor]:
        batch = batch.to(self.device)
        with self.autocast():
            sides = self.model(batch.features, batch.mask, batch.rows, batch.ids, batch.lengths)
        images, texts = (views.apply(Tensor.float) for views in sides)
        return self.objective(self.model.method, images, texts, batch.image_ids, epoch)

    def validate(self, epoch: int) -> dict[str, float]:
        if (epoch + 1) % self.config.validate_every and epoch + 1 < self.config.epochs:
            return {}  # validates every `validate_every` epochs, and after the last
        scores = score_matrix(self.model.method, *self.validation_views())
        return retrieval_metrics(scores, self.val.image_of)

    def validation_views(self) -> tuple[Views, Views]:
        """Encodes all images and texts of the validation split with the current weights."""
        self.model.eval()
        return encode_split(self.model, self.val, self.texts.tables[1], self.device)

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tokenizer = self.out / TOKENIZER
        atomic_write(tokenizer, self.texts.tokenizer.to_str(pretty=True))
        description = {
            "kind": "run",
            "method": self.config.method,
            "arguments": self.config.arguments,
            "image_dim": self.image_dim,
            "text_dim": self.model.text_encoder.dim,
            "text_encoder": self.texts.description,
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
    config: TrainConfig, out: Path, *, resume: bool, extraction: Extraction | None = None
) -> Trainer:
    """Builds a trainer on the splits that a configuration names; see `Trainer`."""
    data, extraction = Path(config.data), extraction or Extraction()
    splits = open_training(data, config.also), open_split(data, "val")
    train, val = (drop_damaged(split, extraction) for split in splits)
    return Trainer(config, train, val, out, resume=resume, extraction=extraction)


def refuse_without_summary(name: str, method: Method, has_summary: tuple[bool, bool]) -> None:
    """Raises ValueError if a method reads [CLS] elements that an encoder does not have."""
    sides = zip(("image", "text"), has_summary, strict=True)
    missing = [side for side, has in sides if not has and side not in method.summary_sides]
    if method.summary_token and missing:
        raise ValueError(
            f'method "{name}" reads the first element of a set as its summary ([CLS]), but the '
            f"{' and the '.join(missing)} encoder has none; use encoders whose summary_token is "
            f"True, set arguments.contextual_{missing[0]}=transformer, which adds one, or choose a "
            "method that pools the whole set"
        )


def _require_text_weights(config: TrainConfig, method: Method) -> None:
    """Raises ValueError if no weights between a frozen text encoder and the score are trained."""
    is_frozen = bool(config.text.source) and config.text.frozen
    has_projection = not isinstance(getattr(method, "project_text", None), nn.Identity)
    width = config.arguments.get("embed_dim")
    if is_frozen and not has_projection and width != 0 and "map_text" not in config.arguments:
        size = f"the width of embed_dim{f', {width}' if width else ''}"
        advice = "--set arguments.map_text=true or --set text.frozen=false, or change embed_dim"
        reason = f"the text encoder is frozen and its features already have {size}"
        raise ValueError(f"{reason}, so no weights would map texts; add {advice}")


def _load_init(model: nn.Module, config: TrainConfig, sha256: str, tokenizer: str) -> None:
    """Copies the best weights of the run `init`; `sha256` is the image encoder's checksum."""
    folder, text = Path(config.init), config.text.source
    tensors, spec = load_tensors(folder / BEST)
    if spec.get("kind") != "run":
        raise ValueError(f"init: {folder / BEST} holds no trained method; name another folder")
    if spec["method"] != config.method:
        raise ValueError(f"init: {folder} is a run of {spec['method']}, not of {config.method}")
    # runs do not store frozen encoders, so both runs need the same encoders
    init_sha256 = spec["text_encoder"].get("sha256")
    text_sha256 = sources.describe_text_source(text)["sha256"] if text and init_sha256 else None
    for matches, setting in (
        (spec["backbone_sha256"] == sha256, f'backbone "{config.backbone}"'),
        (init_sha256 == text_sha256, f'text.source "{text}"'),
    ):
        if not matches:
            reason = f"{folder} was trained with another encoder than {setting}"
            raise ValueError(f"init: {reason}; use the encoder in {folder / CONFIG}")
    if spec["tokenizer_sha256"] != hashlib.sha256(tokenizer.encode()).hexdigest():
        advice = "train both with the same captions and text settings"
        raise ValueError(f"init: {folder} reads texts with another tokenizer; {advice}")
    settings = {"method": "", "image_encoder": "backbone_frozen", "text_encoder": "text.frozen"}
    modules = dict(model.named_children())
    for name, setting in settings.items():
        prefix = f"{name}."
        weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        if not weights:
            continue
        if not (name in modules and modules[name].state_dict()):
            reason = f"{folder} trained its {name}, which is frozen here"
            raise ValueError(f"init: {reason}; set {setting}=false")
        load_strict(modules[name], weights, f"{folder}/{BEST}")


def run_views(
    folder: Path, name: str, extraction: Extraction, data: Path | None = None
) -> tuple[str, Method, Views, Views, Split]:
    """Encodes a split with the best weights of a run.

    `name` is the name of the split. `data` is the folder of the split; None for the folder that the
    run was trained on. Returns the method's name, the method, views of N_img images and of N_txt
    texts, and the split.

    Raises FileNotFoundError if the folder holds no run, or an encoder or the data are missing.
    Raises ValueError if the run is not of a method, an encoder has changed since the run, or the
    data do not fit: images for a run on features, features for a run on images, or a wrong width.
    """
    description, _ = read_run(folder)
    config = check(TrainConfig, tomllib.loads((folder / CONFIG).read_text("utf-8")))
    split = drop_damaged(open_split(data or Path(config.data), name), extraction)
    data, reads_images = split.folder.parent, bool(description.backbone_sha256)
    if (has_images := bool(len(split.images))) != reads_images:
        content = {True: "images", False: "precomputed features"}
        reason = f"{folder} was trained on {content[reads_images]}"
        raise ValueError(f"{reason}, but {data} holds {content[has_images]}; change --data")
    if not reads_images and (width := split.features.shape[2]) != description.image_dim:
        reason = f"{folder} reads features of width {description.image_dim}"
        raise ValueError(f"{reason}, but {data} has width {width}; change --data")
    refuse_missing(description.text_encoder.source or "", "text.source")
    encoder_spec: dict[str, Any] = {}
    if reads_images:
        refuse_missing(config.backbone, "backbone")
        encoder_spec = sources.describe_image_source(config.backbone)
    run = load_run(folder, None, encoder_spec, rounded=True)
    parts, device = run.parts, extraction.torch_device
    if parts.image_encoder is not None:
        split = split.with_pixels(Preprocess.from_json(encoder_spec["preprocess"]))
    elif reads_images:
        split = read_features(split, config.backbone, extraction)
    split = split.with_frames(config.frames).limit_captions(config.ranked_captions)
    table = TokenTable(Tokenizer.from_str(run.tokenizer), split.captions)
    model = DualEncoder(parts.head, parts.text_encoder, config, parts.image_encoder)
    views = encode_split(model.to(device).eval(), split, table, device)
    return config.method, parts.head, *views, split
