"""Checks the requirements of a training within seconds, before an image is read."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyview import models
from polyview.export.encoders.sources import describe_image_source, describe_text_source
from polyview.models import Method
from polyview.models.checkpoint import load_strict, load_tensors
from polyview.models.encoders import IMAGE_ENCODERS
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.training.data.features import check_images, refuse_missing
from polyview.training.data.open_split import holds_features
from polyview.training.data.split import Split, refuse_without_twins
from polyview.training.data.texts import describe_text
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.loop import BEST, check_pace, device_for


def check_training(config: TrainConfig, train: Split) -> dict[str, Any]:
    """Checks the requirements of a training on a split; images are not read.

    Returns:
        The `describe_image_source` of its image encoder; empty for ready-made features.

    Raises:
        ValueError, OSError: something is missing or does not fit.
    """
    device_for(config.precision)
    data, spec = Path(config.data), dict[str, Any]()
    check_images(train, config.feature_copies, trained=not config.backbone_frozen)
    if config.exchange_halves or config.order_epochs:
        refuse_without_twins(train)
    text_kind, text_arguments, _ = describe_text(config.text)
    image_dim, image_summary = train.with_frames(config.frames).features.shape[2], False
    with torch.device("meta"):  # only shapes are needed
        if not holds_features(data):
            if not config.backbone:
                raise ValueError(
                    f"{data} holds images, so backbone must name an image encoder: --set "
                    "backbone=..."
                )
            refuse_missing(config.backbone, "backbone")
            spec = describe_image_source(config.backbone)
            encoder: ImageEncoder = IMAGE_ENCODERS[spec["arch"]](**spec["arguments"])
            image_dim, image_summary = encoder.dim, encoder.summary_token
        text: TextEncoder = text_kind(**text_arguments)
        method = models.build(config.method, image_dim, text.dim, config.arguments)
    refuse_without_summary(config.method, method, image_summary, text.summary_token)
    _refuse_idle_text(config, method)
    if config.init:
        read_init(config, spec.get("sha256", ""))
    check_pace(config, len(train.first(config.train_images).captions))
    return spec


def refuse_without_summary(name: str, method: Method, image: bool, text: bool) -> None:
    """Raises ValueError if a method reads [CLS] elements that an encoder does not have."""
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
    """Raises ValueError if nothing is learned between a frozen text encoder and the score."""
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

    A run has no weights of frozen encoders, so their sources must be the same.

    Raises:
        FileNotFoundError: the folder holds no weights.
        ValueError: it is not a run, or has another method or other encoders.
    """
    folder, text = Path(config.init), config.text.source
    tensors, spec = load_tensors(folder / BEST)
    if spec.get("kind") != "run":
        raise ValueError(f"init: {folder / BEST} is not of a method's run; name another folder")
    if spec["method"] != config.method:
        raise ValueError(f"init: {folder} is a run of {spec['method']}, not of {config.method}")
    former = spec["text_encoder"].get("sha256")
    text_sha256 = describe_text_source(text)["sha256"] if text and former else None
    for same, setting in (
        (spec["backbone_sha256"] == backbone_sha256, f'backbone "{config.backbone}"'),
        (former == text_sha256, f'text.source "{text}"'),
    ):
        if not same:
            raise ValueError(
                f"init: {folder} was trained with another encoder than {setting}; name the one in "
                "its config.toml"
            )
    return tensors, spec["tokenizer_sha256"]


def load_init(model: nn.Module, config: TrainConfig, sha256: str, tokenizer: str) -> None:
    """Copies the best weights of the run that `init` names.

    `sha256` is the checksum of the image encoder's source, `tokenizer` that of the texts as JSON.

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
        prefix = f"{name}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        if own and not (name in parts and parts[name].state_dict()):
            raise ValueError(
                f"init: {config.init} trained its {name}, which is frozen here; set {setting}=false"
            )
        if own:
            load_strict(parts[name], own, f"{config.init}/{BEST}")
