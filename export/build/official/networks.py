"""The published networks inside the releases, and the tables of their weights' names."""

import re
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from export.build.official.checkpoint import Checkpoint, OfficialError, Table
from export.pack.validation import read_json
from models.encoders.resnet import STAGES, ResNet

_VIT = {
    "attention.attention.query.": "attention.q_proj.",
    "attention.attention.key.": "attention.k_proj.",
    "attention.attention.value.": "attention.v_proj.",
    "attention.output.dense.": "attention.o_proj.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
    "": "",
}


def bert_table(theirs: str, ours: str) -> Table:
    """BERT as `transformers` names it, without its pooler, which no release calls.

    Files of transformers before 4.31 also store positions, 0, 1, 2 ...
    """
    return {f"{theirs}pooler.": None, f"{theirs}embeddings.position_ids": None, theirs: ours}


def vit_table(theirs: str, ours: str) -> Table:
    """ViT as transformers 4 named it; the release reads the last layer's states, without a norm."""
    layers = {
        f"{theirs}encoder.layer.*.{old}": f"{ours}layers.*.{new}" for old, new in _VIT.items()
    }
    return {f"{theirs}layernorm.": None, f"{theirs}pooler.": None, **layers, theirs: ours}


def read_config(kind: str, folder: Path | None) -> dict[str, Any]:
    """The network's configuration for `build_network`: a folder's `config.json`.

    What that does not say, or all of it without a file, are the library's defaults, which are
    those of the base networks.

    Raises:
        OfficialError: it is no configuration.
    """
    path = None if folder is None else folder / "config.json"
    config = read_json(path) if path is not None and path.is_file() else {}
    if not isinstance(config, dict):
        raise OfficialError(f"{path} is no configuration: a JSON object is expected")
    return {**config, "model_type": kind}


def build_resnet(
    checkpoint: Checkpoint, prefix: str, layout: str = "torchvision", *, pooled: bool = False
) -> ResNet:
    """The network behind `prefix`, sizes read off the shapes, with random weights.

    Args:
        checkpoint: the released weights.
        prefix: of the network's keys.
        layout: see `ResNet`; shapes do not tell.
        pooled: see `ResNet`.

    Raises:
        OfficialError: a weight that sizes are read from is missing.
    """
    bottleneck = f"{prefix}layer1.0.conv3.weight" in checkpoint.state
    last = "conv3" if bottleneck else "conv2"
    stages = [f"{prefix}layer{stage + 1}." for stage in range(STAGES)]
    width, inputs, *_ = checkpoint.shape(f"{stages[0]}0.conv2.weight", 4)
    groups = width // inputs if bottleneck else 1
    if layout == "caffe" and groups > 1:
        raise OfficialError(
            f"{checkpoint.path} holds grouped convolutions, but its options name a backbone "
            "without groups"
        )
    return ResNet(
        stem=checkpoint.shape(f"{prefix}conv1.weight", 4)[0],
        widths=[checkpoint.shape(f"{stage}0.conv1.weight", 4)[0] for stage in stages],
        channels=[checkpoint.shape(f"{stage}0.{last}.weight", 4)[0] for stage in stages],
        blocks=[checkpoint.count(re.escape(stage) + r"(\d+)\.") for stage in stages],
        bottleneck=bottleneck,
        groups=groups,
        layout=layout,
        pooled=pooled,
    )


def resize_positions(checkpoint: Checkpoint, key: str, side: int) -> None:
    """Gives stored positions (1, 1 + n * n, h) those of `side` x `side` patches, in place.

    The release enlarges them in every pass where images are larger than those its ViT was trained
    on; here that is done once, in the same way (bicubic).
    """
    stored = checkpoint.shape(key, 3)[1] - 1
    old = round(stored**0.5)
    if old == side or old**2 != stored:
        return  # what does not fit is named when weights are loaded
    first, rest = checkpoint.state[key].float().split([1, stored], dim=1)
    square = rest.mT.unflatten(2, (old, old))  # (1, h, n, n)
    larger = functional.interpolate(square, (side, side), mode="bicubic", align_corners=False)
    checkpoint.state[key] = torch.cat([first, larger.flatten(2).mT], dim=1)
