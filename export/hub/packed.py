"""The image encoder of a pack as a source: its weights, read back from the ONNX file.

So methods train over the encoder that a pack was shipped with, and a pack of them has the same
encoder, byte for byte. Its shape stands in `training/backbone/config.toml`, which export copies
into every pack of an encoder of our own.
"""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from export.pack.reading import check_file, read_info
from export.pack.schema import MANIFEST
from export.pack.validation import PackError

LOGS = "training/backbone"  # folder in a pack
_CONFIG = f"{LOGS}/config.toml"


def is_pack(folder: Path) -> bool:
    """Whether a folder holds a pack."""
    return (folder / MANIFEST).is_file()


def describe_packed(folder: Path) -> dict[str, Any]:
    """What a pack's image encoder is, see `export.hub.sources.describe_image_source`.

    Raises:
        FileNotFoundError, PackError: the pack is damaged, or its encoder is none of our own.
    """
    info = read_info(folder)  # heads and galleries are nothing to those who train over it
    file, config = info.image_encoder.file, folder / _CONFIG
    try:
        written = tomllib.loads(config.read_text("utf-8"))
        shape = {name: list(written[name]) for name in ("widths", "blocks")}
    except (OSError, ValueError, KeyError, TypeError):
        shape = {}
    if file is None or not shape:
        raise PackError(
            f"the image encoder of the pack {folder} cannot be trained over: the pack has no "
            f"{_CONFIG} with its widths and blocks; name the encoder's run folder, or its Hub id"
        )
    check_file(info, file)
    preprocess = info.preprocess.to_json()
    identity = json.dumps([info.files[file].sha256, preprocess], sort_keys=True)
    return {
        "kind": "image_backbone",
        "arch": "scene_net",
        "arguments": shape,
        "preprocess": preprocess,
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "pack": {name: getattr(info, name) for name in ("title", "licence", "credits")},
    }


def read_packed(folder: Path, encoder: nn.Module) -> dict[str, Tensor]:
    """The weights of a pack's image encoder under the names of `encoder`.

    Raises:
        PackError: the file is another network's.
    """
    info = read_info(folder)
    path = info.path(str(info.image_encoder.file))
    graph = onnx.load(path).graph
    initializers = {
        tensor.name.removesuffix(".half"): torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in graph.initializer
    }
    for node in graph.node:  # of tensors that are the same, the file keeps one
        if node.op_type == "Identity" and node.input[0] in initializers:
            initializers[node.output[0]] = initializers[node.input[0]]
    found = {}
    for name, like in encoder.state_dict().items():
        if not like.is_floating_point():  # how many batches a norm has seen, which nothing reads
            found[name] = like
        elif name not in initializers:
            raise PackError(f"{path} lacks {name}; its pack is not one of Polyview's export")
        else:
            found[name] = initializers[name].to(like.dtype)
    return found
