"""Checks before a training: an error is reported within seconds, before an image is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import models
from export.hub.sources import describe_image_source, describe_text_source
from models import Method
from models.checkpoint import load_tensors
from models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from models.encoders.encoder import ImageEncoder, TextEncoder
from training.data.features import refuse_crops, refuse_features, refuse_missing
from training.data.open_split import holds_features, open_split, open_training
from training.data.split import refuse_without_twins
from training.data.texts import TextConfig, check_text
from training.loop.config import TrainConfig
from training.loop.loop import check_pace, device_for, is_first_process
from training.loop.runs import BEST, RunFolder


def check_training(config: TrainConfig, out: Path, *, resume: bool) -> None:
    """Checks all that the training of a method needs, and makes its run folder.

    Args:
        config: the training.
        out: run folder.
        resume: continue the run there.

    Raises:
        ValueError, OSError: something is missing or does not fit; one sentence.
    """
    device_for(config.precision)
    data = Path(config.data)
    train = open_training(data, config.also)
    refuse_crops(train, config.feature_copies)
    train.with_frames(config.frames)
    if config.exchange_halves or config.order_epochs:
        refuse_without_twins(train)
    if not config.backbone_frozen:
        refuse_features(train)
    open_split(data, "val")
    text, images = _text_encoder(config.text), _image_encoder(config)
    with torch.device("meta"):  # sizes alone
        dim = train.features.shape[2] if images is None else images.dim
        method = models.build(config.method, dim, text.dim, config.arguments)
    summaries = images is not None and images.summary_token, text.summary_token
    refuse_without_summary(config.method, method, *summaries)
    _refuse_idle_text(config, method)
    if config.init:
        sha256 = "" if images is None else describe_image_source(config.backbone)["sha256"]
        load_start(config, sha256)
    check_pace(config, len(train.first(config.train_images).captions))
    RunFolder(out, config, resume=resume or not is_first_process())


def load_start(
    config: TrainConfig, backbone_sha256: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads the run that `init` names, from whose best weights a training starts.

    Its encoders that were frozen have no weights there, so their sources must be the same.

    Args:
        config: of the training that starts.
        backbone_sha256: identity of its image encoder's source.

    Returns:
        The run's best weights and their description.

    Raises:
        FileNotFoundError: the folder holds no weights.
        ValueError: it is not a run, or has another method or other encoders.
    """
    folder = Path(config.init)
    tensors, about = load_tensors(folder / BEST)
    if about.get("kind") != "run":
        raise ValueError(f"init: {folder / BEST} is not of a method's run; name another folder")
    if about["method"] != config.method:
        raise ValueError(f"init: {folder} is a run of {about['method']}, not of {config.method}")
    if about["backbone_sha256"] != backbone_sha256:
        raise ValueError(
            f"init: {folder} was trained with another image encoder than backbone "
            f'"{config.backbone}"; name the one in its config.toml'
        )
    frozen, source = about["text_encoder"].get("sha256"), config.text.source
    if frozen is not None and (not source or describe_text_source(source)["sha256"] != frozen):
        raise ValueError(
            f"init: {folder} was trained with another text encoder than text.source "
            f'"{source}"; name the one in its config.toml'
        )
    return tensors, about


def refuse_without_summary(name: str, method: Method, image: bool, text: bool) -> None:
    """Raises ValueError where a method reads [CLS] elements that an encoder does not have."""
    if not method.summary_token:
        return
    lacking = [side for side, has in (("image", image), ("text", text)) if not has]
    if lacking:
        raise ValueError(
            f'method "{name}" reads the first element of a set as its summary ([CLS]), but the '
            f"{' and the '.join(lacking)} encoder has none; use encoders whose summary_token is "
            "True, or choose a method that pools the whole set"
        )


def _image_encoder(config: TrainConfig) -> ImageEncoder | None:
    """The image encoder without its weights; None where the data are features."""
    if holds_features(Path(config.data)):
        return None
    if not config.backbone:
        raise ValueError(
            f"{config.data} holds images, so backbone must name an image encoder: "
            "--set backbone=..."
        )
    refuse_missing(config.backbone, "backbone")
    about = describe_image_source(config.backbone)
    with torch.device("meta"):
        encoder: ImageEncoder = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
    return encoder


def _text_encoder(config: TextConfig) -> TextEncoder:
    """The text encoder without its weights."""
    about = check_text(config)
    with torch.device("meta"):
        kind: Callable[..., TextEncoder] = TEXT_ENCODERS[config.arch]
        if about is None:
            sizes = config.word_dim, config.hidden_dim
            return kind(2, *sizes, directions=config.directions)
        return kind(**about["arguments"])


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
