"""Sources of encoders: a run folder, a pack, a Hugging Face folder, or a Hub id.

A source is a text, `FOLDER_OR_ID[@REVISION][#projected or #frame]`:

    runs/backbone                       our own encoder, what training left behind
    app/bundled/scenes                  the image encoder of a pack, if it is one of our own
    app/bundled/scenes#frame            the same, its cells averaged to one feature an image
    ../backbones/mobilenet_v2           config.json, model.safetensors, preprocessor_config.json
    google/vit-base-patch16-224@main    the same on the Hub, kept in its client's cache
    openai/clip-vit-base-patch32#projected    CLIP's features in the space of images and texts

Existing folders take precedence. From the Hub only configuration, weights and tokenizer are
fetched.
"""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from tokenizers import Tokenizer
from torch import Tensor, nn

from polyview.export.encoders.published import (
    ENCODER_FILES,
    IMAGES,
    PROJECTED,
    TEXTS,
    Source,
    describe_published,
    read_tokenizer,
    read_weights,
)
from polyview.export.hub.client import HubError, fetch_matching, is_hub_id
from polyview.export.pack.reading import check_file, read_info
from polyview.export.pack.schema import MANIFEST
from polyview.export.pack.validation import PackError
from polyview.models.checkpoint import load_strict, load_tensors, round_to_half
from polyview.models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.files import no_such, sha256_of
from polyview.models.preprocess import Preprocess

RUN_WEIGHTS = "best.safetensors"
FRAME = "frame"
LOGS = "training/backbone"  # folder in a pack of an encoder of our own: its recipe and curves
PARTS = (1, 3)  # rows and columns of a frame's parts, whose averages are joined


def load_image_source(
    source: str | Path, device: str | torch.device = "cpu", *, rounded: bool = True
) -> tuple[ImageEncoder, Preprocess, dict[str, Any]]:
    """An image encoder in eval mode, its preprocessing, and `describe_image_source`.

    Args:
        source: see above.
        device: the device of the encoder.
        rounded: round the weights to half precision, as in packs, so that heads train on the
            features that people will search with.

    Raises:
        FileNotFoundError: there is no such folder, or no weights in it.
        ValueError: it is no image encoder, does not fit together, or cannot be fetched.
    """
    located = _locate(source)
    about = _describe_image(located)
    encoder = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
    if (located.folder / RUN_WEIGHTS).is_file():
        tensors, _ = load_tensors(located.folder / RUN_WEIGHTS)
    elif is_pack(located.folder):
        tensors = _read_packed(located.folder, encoder)
    else:
        tensors = read_weights(located, IMAGES, encoder)
    _fill(encoder, tensors, located, rounded)
    return encoder.to(device).eval(), Preprocess.from_json(about["preprocess"]), about


def describe_image_source(source: str | Path) -> dict[str, Any]:
    """A description of an image encoder, without building it.

    Returns:
        JSON-ready: `kind`, `arch` (key of `IMAGE_ENCODERS`), `arguments` (its constructor's),
        `preprocess`, `source`, and `sha256`, which changes with weights, sizes and preprocessing.

    Raises:
        FileNotFoundError, ValueError: see `load_image_source`.
    """
    return _describe_image(_locate(source))


def load_text_source(
    source: str | Path, device: str | torch.device = "cpu", *, rounded: bool = True
) -> tuple[TextEncoder, Tokenizer, dict[str, Any]]:
    """A published text encoder in eval mode, its tokenizer, and `describe_text_source`.

    The tokenizer adds special tokens, truncates texts at `max_length` tokens and does not pad. See
    `load_image_source`.
    """
    located = _locate(source)
    about = describe_published(located, "text_encoder")
    encoder = TEXT_ENCODERS[about["arch"]](**about["arguments"])
    _fill(encoder, read_weights(located, TEXTS, encoder), located, rounded)
    tokenizer = read_tokenizer(located.folder)
    tokenizer.enable_truncation(about["max_length"])
    return encoder.to(device).eval(), tokenizer, about


def describe_text_source(source: str | Path) -> dict[str, Any]:
    """A description of a published text encoder; see `describe_image_source`.

    It has `max_length` instead of `preprocess`.
    """
    return describe_published(_locate(source), "text_encoder")


def _locate(source: str | Path) -> Source:
    """The folder of a source, fetched if it is on the Hub."""
    name, _, part = str(source).partition("#")
    if part not in ("", PROJECTED, FRAME):
        raise ValueError(
            f'"{source}": after # there can only be "{PROJECTED}" or "{FRAME}", not "{part}"'
        )
    folder = Path(name)
    if not folder.is_dir():
        if not is_hub_id(name) or folder.parent.is_dir():
            kinds = "name a run folder, a pack, a Hugging Face folder, or a Hub id as owner/name"
            raise FileNotFoundError(no_such("folder", folder, kinds))
        try:
            folder = fetch_matching(name, ENCODER_FILES)
        except HubError as error:
            raise ValueError(f"there is no folder {name}, and on the Hub: {error}") from error
    if not any((folder / file).is_file() for file in (RUN_WEIGHTS, MANIFEST, "config.json")):
        raise FileNotFoundError(
            f"there is no weights file in {name}: it holds neither {RUN_WEIGHTS} (a training run) "
            f"nor {MANIFEST} (a pack) nor config.json (a Hugging Face model)"
        )
    return Source(folder, str(source), part)


def is_pack(folder: Path) -> bool:
    """Whether a folder holds a pack."""
    return (folder / MANIFEST).is_file()


def _describe_image(located: Source) -> dict[str, Any]:
    if (located.folder / RUN_WEIGHTS).is_file():
        path = located.folder / RUN_WEIGHTS
        _, about = load_tensors(path)
        if about.get("kind") != "image_backbone" or about.get("arch") not in IMAGE_ENCODERS:
            raise ValueError(f"{path} is not an image encoder; make one with training.pretrain")
        about = {**about, "sha256": sha256_of(path)}
    elif is_pack(located.folder):
        about = _describe_packed(located.folder)
    elif located.part == FRAME:
        raise ValueError(f'{located.name}: only our own encoders know "#{FRAME}"; leave it out')
    else:
        return describe_published(located, "image_backbone")
    if located.part == FRAME:  # the cells joined to one feature
        about["arguments"] = {**about["arguments"], "parts": list(PARTS)}
        identity = json.dumps([about["sha256"], PARTS])
        about["sha256"] = hashlib.sha256(identity.encode()).hexdigest()
    return {**about, "source": located.name}


def _fill(encoder: nn.Module, tensors: dict[str, Tensor], located: Source, rounded: bool) -> None:
    if rounded:
        tensors = round_to_half(tensors, located.name)
    load_strict(encoder, tensors, located.name)


def _describe_packed(folder: Path) -> dict[str, Any]:
    """The description of a pack's image encoder; its shape is in the config in `LOGS`."""
    info = read_info(folder)  # heads and galleries do not matter for training over it
    file, config = info.image_encoder.file, folder / LOGS / "config.toml"
    try:
        settings = tomllib.loads(config.read_text("utf-8"))
        shape = {name: list(settings[name]) for name in ("widths", "blocks")}
    except (OSError, ValueError, KeyError, TypeError):
        shape = {}
    if file is None or not shape:
        raise PackError(
            f"the image encoder of the pack {folder} cannot be trained over: the pack has no "
            f"{LOGS}/config.toml with its widths and blocks; name the encoder's run folder, or its "
            "Hub id"
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


def _read_packed(folder: Path, encoder: nn.Module) -> dict[str, Tensor]:
    """The weights in a pack's ONNX file under the names of `encoder`."""
    info = read_info(folder)
    path = info.path(str(info.image_encoder.file))
    graph = onnx.load(path).graph
    stored = {
        tensor.name.removesuffix(".half"): torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in graph.initializer
    }
    for node in graph.node:  # of tensors that are the same, the file keeps one
        if node.op_type == "Identity" and node.input[0] in stored:
            stored[node.output[0]] = stored[node.input[0]]
    weights = {}
    for name, like in encoder.state_dict().items():
        if not like.is_floating_point():  # how many batches a norm has seen, which nothing reads
            weights[name] = like
        elif name not in stored:
            raise PackError(f"{path} lacks {name}; its pack is not one of Polyview's export")
        else:
            weights[name] = stored[name].to(like.dtype)
    return weights
