"""Sources of encoders: a run folder, a pack, a Hugging Face folder, or a Hub id.

A source is a string, `FOLDER_OR_ID[@REVISION][#projected or #frame]`:

    runs/backbone                       an encoder trained by Polyview
    app/bundled/scenes                  the image encoder of a pack, if Polyview trained it
    app/bundled/scenes#frame            the same encoder with one feature per image, see `PARTS`
    ../backbones/mobilenet_v2           config.json, model.safetensors, preprocessor_config.json
    google/vit-base-patch16-224@main    the same files on the Hub
    openai/clip-vit-base-patch32#projected    CLIP's features in the joint space

Existing folders take precedence. Published encoders are read with `transformers`.
"""

import hashlib
import json
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch
from onnx import numpy_helper
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor, nn

from polyview.export.hub.client import HubError, fetch_matching, find_folder
from polyview.export.pack.reading import check_file, read_info
from polyview.export.pack.schema import MANIFEST
from polyview.export.pack.validation import PackError
from polyview.export.texts import GEMMA_END, read_tokenizer
from polyview.models.checkpoint import load_strict, load_tensors, round_to_half
from polyview.models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.encoders.huggingface import import_transformers, quiet, read_preprocess
from polyview.models.files import sha256_of
from polyview.models.preprocess import Preprocess

RUN_WEIGHTS = "best.safetensors"
PROJECTED, FRAME = "projected", "frame"  # suffixes of a source
LOGS = "training/backbone"  # folder in a pack with recipe and log of its image encoder
CLIP_LOGS = "training/clip"  # folder in a pack with recipe and log of a CLIP trained by Polyview
PARTS = (1, 3)  # rows and columns of parts of an image; "#frame" concatenates their mean features
MAX_LENGTH = 128  # maximum number of tokens of a text; captions are far shorter
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
ENCODER_FILES = [  # glob patterns of the files to fetch
    *("config.json", "preprocessor_config.json", "vocab.json", "merges.txt", *_TOKENIZERS),
    *("model.safetensors.index.json", *_WEIGHTS),
]
# keys of a saved configuration that do not describe the network's shape
_NOT_SHAPE = ("architectures", "dtype", "id2label", "label2id", "transformers_version")
_IMAGE_ARCHS = {  # model type of `transformers` -> key of `IMAGE_ENCODERS`
    **{kind: kind for kind in ("mobilenet_v2", "resnet", "vit")},
    **dict.fromkeys(("clip", "clip_vision_model"), "clip_vision"),
    "siglip": "siglip_vision",
}
_TEXT_ARCHS = {  # model type of `transformers` -> key of `TEXT_ENCODERS`
    **dict.fromkeys(("bert", "distilbert", "roberta", "electra"), "bert"),
    **dict.fromkeys(("clip", "clip_text_model"), "clip_text"),
    "siglip": "siglip_text",
}


class _Source(NamedTuple):
    folder: Path  # a folder with the source's files
    name: str  # the source as requested
    suffix: str  # the text after "#"


def load_image_source(
    source: str | Path, device: str | torch.device = "cpu", *, rounded: bool = True
) -> tuple[ImageEncoder, Preprocess, dict[str, Any]]:
    """Loads an image encoder in eval mode, its preprocessing and its description.

    For the description see `describe_image_source`. `rounded` rounds the weights to half precision,
    as in packs, so that heads train on the same features as in search. Raises FileNotFoundError if
    the folder does not exist or has no weights, ValueError if the source is not an image encoder,
    cannot be fetched, or has files that do not fit together.
    """
    location = _locate(source)
    spec = _describe_image(location)
    encoder = IMAGE_ENCODERS[spec["arch"]](**spec["arguments"])
    if (location.folder / RUN_WEIGHTS).is_file():
        tensors, _ = load_tensors(location.folder / RUN_WEIGHTS)
    elif (location.folder / MANIFEST).is_file():
        tensors = _read_packed(location.folder, encoder)
    else:
        tensors = _read_published(location, encoder)
    tensors = round_to_half(tensors, location.name) if rounded else tensors
    load_strict(encoder, tensors, location.name)
    return encoder.to(device).eval(), Preprocess.from_json(spec["preprocess"]), spec


def describe_image_source(source: str | Path) -> dict[str, Any]:
    """Describes an image encoder without building it; raises as `load_image_source` does.

    Returns JSON-ready `kind`, `arch` (key of `IMAGE_ENCODERS`), `arguments` of its constructor,
    `preprocess`, `source`, and `sha256`, which depends on weights, sizes and preprocessing. A pack
    adds `pack` (title, licence, credits); a run adds what training wrote, such as `data`.
    """
    return _describe_image(_locate(source))


def load_text_source(
    source: str | Path, *, rounded: bool = True
) -> tuple[TextEncoder, Tokenizer, dict[str, Any]]:
    """Loads a published text encoder in eval mode, its tokenizer and its description.

    The tokenizer adds special tokens, truncates texts to `max_length` tokens and does not pad. See
    `describe_text_source` for the description, `load_image_source` for `rounded` and errors.
    """
    location = _locate(source)
    spec = _describe_published(location, _TEXT_ARCHS)
    encoder = TEXT_ENCODERS[spec["arch"]](**spec["arguments"])
    tensors = _read_published(location, encoder)
    tensors = round_to_half(tensors, location.name) if rounded else tensors
    load_strict(encoder, tensors, location.name)
    tokenizer = read_tokenizer(location.folder)
    tokenizer.enable_truncation(spec["max_length"])
    return encoder.eval(), tokenizer, spec


def describe_text_source(source: str | Path) -> dict[str, Any]:
    """Returns the keys of `describe_image_source`, with `max_length` instead of `preprocess`."""
    return _describe_published(_locate(source), _TEXT_ARCHS)


def _locate(source: str | Path) -> _Source:
    """Finds or fetches the folder of a source; raises the errors of `load_image_source`."""
    name, _, suffix = str(source).partition("#")
    if suffix not in ("", PROJECTED, FRAME):
        raise ValueError(f'"{source}" has an unknown suffix; use "#{PROJECTED}" or "#{FRAME}"')
    try:
        folder = find_folder(name) or fetch_matching(name, ENCODER_FILES)
    except HubError as error:
        raise ValueError(f"{name} is not a folder, and {error}") from error
    if not any((folder / file).is_file() for file in (RUN_WEIGHTS, MANIFEST, "config.json")):
        reason = f"{name} has no {RUN_WEIGHTS}, {MANIFEST} or config.json"
        raise FileNotFoundError(f"{reason}; name a run, a pack or a Hugging Face model")
    return _Source(folder, str(source), suffix)


def _describe_image(source: _Source) -> dict[str, Any]:
    """Implements `describe_image_source` for a source whose folder is known."""
    path = source.folder / RUN_WEIGHTS
    if path.is_file():
        _, spec = load_tensors(path)
        if spec.get("kind") != "image_backbone" or spec.get("arch") not in IMAGE_ENCODERS:
            advice = "make one with python -m polyview pretrain"
            raise ValueError(f"{path} is not an image encoder; {advice}")
        spec["sha256"] = sha256_of(path)
    elif (source.folder / MANIFEST).is_file():
        spec = _describe_packed(source)
    elif source.suffix == FRAME:
        raise ValueError(f'{source.name}: "#{FRAME}" is only for encoders trained by Polyview')
    else:
        return _describe_published(source, _IMAGE_ARCHS)
    if source.suffix == FRAME:
        spec["arguments"] = {**spec["arguments"], "parts": list(PARTS)}
        spec["sha256"] = _digest([spec["sha256"], PARTS]).hexdigest()
    return {**spec, "source": source.name}


def _digest(values: list[Any]) -> Any:
    """Returns the `hashlib` object of a SHA-256 of JSON values; callers may update it."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode())


def _describe_packed(source: _Source) -> dict[str, Any]:
    """Describes a pack's image encoder; raises PackError if Polyview did not train it."""
    info = read_info(source.folder)  # not `load_info`: heads and gallery are not used
    file, network = info.image_encoder.file, _trained_network(source)
    if file is None or network is None:
        fault = f"the pack {source.folder} has no image encoder with a recipe in training/"
        raise PackError(f"{fault}; name the encoder's run folder or Hub id")
    check_file(info, file)
    preprocess = info.preprocess.to_json()
    return {
        "kind": "image_backbone",
        "arch": network[0],
        "arguments": network[1],
        "preprocess": preprocess,
        "sha256": _digest([info.files[file].sha256, preprocess]).hexdigest(),
        "pack": {name: getattr(info, name) for name in ("title", "licence", "credits")},
    }


def _trained_network(source: _Source) -> tuple[str, dict[str, Any]] | None:
    """Reads `arch` and `arguments` of a pack's image encoder from its recipe, or returns None."""
    errors = OSError, ValueError, KeyError, TypeError  # no recipe, or a recipe of another kind
    with suppress(*errors):
        settings = tomllib.loads((source.folder / LOGS / "config.toml").read_text("utf-8"))
        return "scene_net", {name: list(settings[name]) for name in ("widths", "blocks")}
    with suppress(*errors):
        settings = tomllib.loads((source.folder / CLIP_LOGS / "config.toml").read_text("utf-8"))
        network = settings["network"]
        config = {**network["vision_config"], "projection_dim": network["projection_dim"]}
        config["model_type"] = "clip_vision_model"
        return "clip_vision", {"config": config, "projected": source.suffix == PROJECTED}
    return None


def _read_packed(folder: Path, encoder: nn.Module) -> dict[str, Tensor]:
    """Reads the weights of a pack's image encoder (ONNX) by their names in `encoder`."""
    path = folder / str(read_info(folder).image_encoder.file)
    graph, weights = onnx.load(path).graph, encoder.state_dict()
    # `ImageRows` adds the prefix "encoder." to CLIP's names
    names = (t.name.removeprefix("encoder.").removesuffix(".half") for t in graph.initializer)
    tensors = dict(zip(names, graph.initializer, strict=True))
    for node in graph.node:  # the file stores identical tensors once
        if node.op_type == "Identity" and node.input[0] in tensors:
            tensors[node.output[0]] = tensors[node.input[0]]
    for name, parameter in weights.items():
        if not parameter.is_floating_point():
            continue  # a batch norm's counter, which eval mode does not use
        if name not in tensors:
            raise PackError(f"{path} lacks {name}; Polyview did not export it")
        values = numpy_helper.to_array(tensors[name]).copy()
        weights[name] = torch.from_numpy(values).to(parameter.dtype)
    return weights


def _describe_published(source: _Source, architectures: dict[str, str]) -> dict[str, Any]:
    """Describes a published encoder; `architectures` is `_IMAGE_ARCHS` or `_TEXT_ARCHS`."""
    is_image, projected = architectures is _IMAGE_ARCHS, source.suffix == PROJECTED
    side = "vision" if is_image else "text"
    config = _read_config(source)
    model_type = config.get("model_type")
    if model_type not in architectures:
        expected = "an image encoder" if is_image else "a text encoder"
        fault = f'{source.name} is a model of type "{model_type}", which is not {expected} that'
        raise ValueError(f"{fault} Polyview supports; choose one of {', '.join(architectures)}")
    arch = architectures[model_type]
    has_projection = arch == f"clip_{side}"  # SigLIP's features are always in the joint space
    if projected and not (has_projection or model_type == "siglip"):
        raise ValueError(f'{source.name}: only CLIP has a projection; leave out "#{PROJECTED}"')
    if model_type in ("clip", "siglip"):
        shared = {"projection_dim": config.get("projection_dim", 512)} if has_projection else {}
        config = {**config[f"{side}_config"], **shared, "model_type": f"{model_type}_{side}_model"}
    config = {k: v for k, v in config.items() if k not in _NOT_SHAPE and k[:1] != "_"}
    if arch == "siglip_text":
        # SigLIP 2's config lacks the padding token; transformers would use that of SigLIP
        tokenizer = read_tokenizer(source.folder)
        if tokenizer.token_to_id(GEMMA_END) is not None:
            config["pad_token_id"] = tokenizer.token_to_id("<pad>")
    spec: dict[str, Any] = {
        "kind": "image_backbone" if is_image else "text_encoder",
        "arch": arch,
        "arguments": {"config": config} | ({"projected": projected} if has_projection else {}),
    }
    weights = sorted(path for pattern in _WEIGHTS for path in source.folder.glob(pattern))
    if not weights:
        reason = "pytorch_model.bin is a pickle and is not read"
        advice = "name a revision with safetensors (often @refs/pr/1), or save it with transformers"
        raise FileNotFoundError(f"{source.name} has no {_WEIGHTS[0]}; {reason}; {advice}")
    files = [source.folder / "config.json", *weights]
    if is_image:
        spec["preprocess"] = read_preprocess(source.folder, source.name).to_json()
    else:
        offset = 2 if model_type == "roberta" else 0  # RoBERTa numbers positions from 2
        max_positions = int(config.get("max_position_embeddings", MAX_LENGTH)) - offset
        spec["max_length"] = min(MAX_LENGTH, max_positions)
        files += [source.folder / name for name in _TOKENIZERS]
    # covers the weight files and every setting that affects the features
    digest = _digest([arch, projected, spec.get("preprocess")])
    for path in files:
        if path.is_file():
            digest.update(bytes.fromhex(sha256_of(path)))
    return {**spec, "source": source.name, "sha256": digest.hexdigest()}


def _read_config(source: _Source) -> dict[str, Any]:
    """Reads config.json; `transformers` replaces missing values with its defaults."""
    if not (source.folder / "config.json").is_file():
        raise ValueError(f"{source.name} is a run or a pack; name a Hugging Face folder or Hub id")
    try:
        with quiet():
            auto = import_transformers().AutoConfig
            config = auto.from_pretrained(source.folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{source.name}: its config.json cannot be read: {_first_line(error)}"
        raise ValueError(message) from error
    return dict[str, Any](json.loads(config.to_json_string(use_diff=False)))


def _read_published(source: _Source, encoder: ImageEncoder | TextEncoder) -> dict[str, Tensor]:
    """Reads published weights by their names in `encoder`; raises ValueError if one is missing."""
    model: Any = encoder.model
    network_class = type(model)
    if getattr(encoder, "projection", None) is not None:
        network_class = getattr(import_transformers(), f"{network_class.__name__}WithProjection")
    try:
        with quiet():
            network, report = network_class.from_pretrained(
                source.folder,
                config=model.config,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(f"{source.name}: its weights do not load: {_first_line(error)}") from error

    def encoder_name(published_name: str) -> str:
        prefix, _, inner_name = published_name.partition(".")
        if prefix in ("visual_projection", "text_projection"):
            return f"projection.{inner_name}"
        return f"model.{inner_name if prefix in ('vision_model', 'text_model') else published_name}"

    names = encoder.state_dict().keys()
    missing = sorted({encoder_name(name) for name in report["missing_keys"]} & names)
    if missing:
        absent = f"{len(missing)} of the weights of {type(model).__name__}, such as {missing[0]}"
        raise ValueError(f"{source.name} lacks {absent}; check its config.json")
    tensors = {encoder_name(name): tensor for name, tensor in network.state_dict().items()}
    return {name: tensor for name, tensor in tensors.items() if name in names}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or repr(error)
