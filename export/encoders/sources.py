"""Sources of encoders: a run folder, a pack, a Hugging Face folder, or a Hub id.

A source is a text, `FOLDER_OR_ID[@REVISION][#projected or #frame]`:

    runs/backbone                       our own encoder, what training left behind
    app/bundled/scenes                  the image encoder of a pack, if it was trained here
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
from polyview.export.hub.client import HubError, fetch_matching, find_folder
from polyview.export.pack.reading import check_file, read_info
from polyview.export.pack.schema import MANIFEST
from polyview.export.pack.validation import PackError
from polyview.models.checkpoint import load_strict, load_tensors, round_to_half
from polyview.models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.files import sha256_of
from polyview.models.preprocess import Preprocess

RUN_WEIGHTS = "best.safetensors"
FRAME = "frame"
LOGS = "training/backbone"  # folder in a pack of an encoder of our own: its recipe and curves
CLIP_LOGS = "training/clip"  # the same of a CLIP that was trained here
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
    spec = _describe_image(located)
    encoder = IMAGE_ENCODERS[spec["arch"]](**spec["arguments"])
    if (located.folder / RUN_WEIGHTS).is_file():
        tensors, _ = load_tensors(located.folder / RUN_WEIGHTS)
    elif is_pack(located.folder):
        tensors = _read_packed(located.folder, encoder)
    else:
        tensors = read_weights(located, IMAGES, encoder)
    _fill(encoder, tensors, located, rounded)
    return encoder.to(device).eval(), Preprocess.from_json(spec["preprocess"]), spec


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
    spec = describe_published(located, "text_encoder")
    encoder = TEXT_ENCODERS[spec["arch"]](**spec["arguments"])
    _fill(encoder, read_weights(located, TEXTS, encoder), located, rounded)
    tokenizer = read_tokenizer(located.folder)
    tokenizer.enable_truncation(spec["max_length"])
    return encoder.to(device).eval(), tokenizer, spec


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
    advice = "name a run folder, a pack, a Hugging Face folder, or a Hub id as owner/name"
    try:
        folder = find_folder(name, advice) or fetch_matching(name, ENCODER_FILES)
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
        _, spec = load_tensors(path)
        if spec.get("kind") != "image_backbone" or spec.get("arch") not in IMAGE_ENCODERS:
            raise ValueError(f"{path} is not an image encoder; make one with training.pretrain")
        spec = {**spec, "sha256": sha256_of(path)}
    elif is_pack(located.folder):
        spec = _describe_packed(located.folder, located.projected)
    elif located.part == FRAME:
        raise ValueError(f'{located.name}: only our own encoders know "#{FRAME}"; leave it out')
    else:
        return describe_published(located, "image_backbone")
    if located.part == FRAME:  # the cells joined to one feature
        spec["arguments"] = {**spec["arguments"], "parts": list(PARTS)}
        identity = json.dumps([spec["sha256"], PARTS])
        spec["sha256"] = hashlib.sha256(identity.encode()).hexdigest()
    return {**spec, "source": located.name}


def _fill(encoder: nn.Module, tensors: dict[str, Tensor], located: Source, rounded: bool) -> None:
    if rounded:
        tensors = round_to_half(tensors, located.name)
    load_strict(encoder, tensors, located.name)


def _describe_packed(folder: Path, projected: bool) -> dict[str, Any]:
    """The description of a pack's image encoder; its shape is in the config of its training."""
    info = read_info(folder)  # heads and galleries do not matter for training over it
    file, network = info.image_encoder.file, _trained_network(folder, projected)
    if file is None or network is None:
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
        "arch": network[0],
        "arguments": network[1],
        "preprocess": preprocess,
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "pack": {name: getattr(info, name) for name in ("title", "licence", "credits")},
    }


def _trained_network(folder: Path, projected: bool) -> tuple[str, dict[str, Any]] | None:
    """The key of `IMAGE_ENCODERS` and the arguments of the encoder of a pack that was trained here.

    A backbone's config has widths and blocks, that of a CLIP a network; None without either.
    """
    for log in (LOGS, CLIP_LOGS):
        try:
            settings = tomllib.loads((folder / log / "config.toml").read_text("utf-8"))
            if log == LOGS:
                return "scene_net", {name: list(settings[name]) for name in ("widths", "blocks")}
            network = settings["network"]
            config = {**network["vision_config"], "projection_dim": network["projection_dim"]}
            config["model_type"] = "clip_vision_model"
            return "clip_vision", {"config": config, "projected": projected}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _read_packed(folder: Path, encoder: nn.Module) -> dict[str, Tensor]:
    """The weights in a pack's ONNX file under the names of `encoder`."""
    info = read_info(folder)
    path = info.path(str(info.image_encoder.file))
    graph = onnx.load(path).graph
    stored = {
        # a CLIP's rows wrap its encoder
        tensor.name.removeprefix("encoder.").removesuffix(".half"): torch.from_numpy(
            numpy_helper.to_array(tensor).copy()
        )
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
