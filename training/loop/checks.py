"""Checks before a training: an error is reported within seconds, before an image is read."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

import models
from export.encoders.sources import describe_image_source, describe_text_source
from models import Method
from models.checkpoint import load_strict, load_tensors
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
        read_init(config, sha256)
    check_pace(config, len(train.first(config.train_images).captions))
    RunFolder(out, config, resume=resume or not is_first_process())


def read_init(config: TrainConfig, backbone_sha256: str) -> tuple[dict[str, Tensor], str]:
    """Reads the run that `init` names, from whose best weights a training starts.

    Its encoders that were frozen have no weights there, so their sources must be the same.

    Args:
        config: of the training that starts.
        backbone_sha256: checksum of its image encoder's source.

    Returns:
        The run's best weights and the checksum of its tokenizer.

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
    source = config.text.source
    text = describe_text_source(source)["sha256"] if source else None
    former_text = about["text_encoder"].get("sha256")
    for which, former, sha256, setting in (
        ("image", about["backbone_sha256"], backbone_sha256, f'backbone "{config.backbone}"'),
        ("text", former_text, text if former_text else None, f'text.source "{source}"'),
    ):
        if former != sha256:
            raise ValueError(
                f"init: {folder} was trained with another {which} encoder than {setting}; name the "
                "one in its config.toml"
            )
    return tensors, about["tokenizer_sha256"]


def load_init(
    module: nn.Module, config: TrainConfig, backbone_sha256: str, tokenizer: Tokenizer
) -> None:
    """Copies the best weights of the run that `init` names: of all that was trained there.

    Args:
        module: with `method`, `text_encoder` and, where it is trained, `image_encoder`.
        config: of the training that starts.
        backbone_sha256: checksum of its image encoder's source.
        tokenizer: of its texts.

    Raises:
        FileNotFoundError, ValueError: see `read_init`; or tokenizer or weights do not fit.
    """
    tensors, sha256 = read_init(config, backbone_sha256)
    if sha256 != hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest():
        raise ValueError(
            f"init: {config.init} reads texts with another tokenizer; train both with the same "
            "captions and text settings"
        )
    parts = dict(module.named_children())
    settings = {"image_encoder": "backbone_frozen", "text_encoder": "text.frozen"}
    for name in ("method", *settings):
        prefix = f"{name}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        trained = name in parts and bool(parts[name].state_dict())
        if own and not trained and name in settings:
            raise ValueError(
                f"init: {config.init} trained its {name}, which is frozen here; set "
                f"{settings[name]}=false"
            )
        if own or name == "method":
            load_strict(parts[name], own, f"{config.init}/{BEST}")


def refuse_without_summary(name: str, method: Method, image: bool, text: bool) -> None:
    """Raises ValueError where a method reads [CLS] elements that an encoder does not have."""
    if not method.summary_token:
        return
    own = method.own_summaries
    lacking = [s for s, has in (("image", image), ("text", text)) if not has and s not in own]
    if lacking:
        raise ValueError(
            f'method "{name}" reads the first element of a set as its summary ([CLS]), but the '
            f"{' and the '.join(lacking)} encoder has none; use encoders whose summary_token is "
            f"True, set arguments.contextual_{lacking[0]}=transformer, which adds one, or choose a "
            "method that pools the whole set"
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
