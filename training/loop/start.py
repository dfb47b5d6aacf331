"""Training that starts from what an earlier run reached, as a second stage does from the first.

An earlier run has weights of all that it trained: the heads, and those encoders that were not
frozen. They are taken over and must fit one by one. An encoder that was frozen then has none; it
starts, or stays, as its source has it, so the source must be the same.
"""

import hashlib
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor, nn

from export.hub.sources import describe_text_source
from models.checkpoint import load_strict, load_tensors
from training.loop.config import TrainConfig
from training.loop.runs import BEST

_SETTINGS = {"image_encoder": "backbone_frozen", "text_encoder": "text.frozen"}


def start_from(
    folder: Path, module: nn.Module, config: TrainConfig, backbone_sha256: str, tokenizer: Tokenizer
) -> None:
    """Copies an earlier run's best weights into the modules that are trained now.

    Args:
        folder: the earlier run.
        module: holds `method`, `text_encoder` and, where it is trained, `image_encoder`.
        config: of the training that begins.
        backbone_sha256: identity of its image encoder's source.
        tokenizer: of its texts.

    Raises:
        FileNotFoundError: the folder holds no weights.
        ValueError: it is no run, or what it holds does not fit; the sentence says what.
    """
    path = folder / BEST
    tensors, about = check_start(folder, config, backbone_sha256)
    words = hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()
    if about["tokenizer_sha256"] != words:
        raise ValueError(
            f"init: {folder} reads texts with another tokenizer; train both with the same captions "
            "and text settings"
        )
    parts = dict(module.named_children())
    for name in ("method", *_SETTINGS):
        start = f"{name}."
        held = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        trained = name in parts and bool(parts[name].state_dict())
        if held and not trained and name in _SETTINGS:
            raise ValueError(
                f"init: {folder} trained its {name}, which is frozen here; set "
                f"{_SETTINGS[name]}=false"
            )
        if held or name == "method":
            load_strict(parts[name], held, str(path))


def check_start(
    folder: Path, config: TrainConfig, backbone_sha256: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Looks whether an earlier run is one to start from, as far as no captions are read.

    Returns:
        Its best weights, and what training wrote about them.

    Raises:
        FileNotFoundError, ValueError: see `start_from`.
    """
    tensors, about = load_tensors(folder / BEST)
    if about.get("kind") != "run":
        raise ValueError(
            f"init: {folder / BEST} is no method's run; name a folder that training made"
        )
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
