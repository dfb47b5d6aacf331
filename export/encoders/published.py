"""Encoders in the Hugging Face Hub's format as ours: configuration, weights, tokenizer.

They are read with `transformers`, whose names of model types, classes and weights end here.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from torch import Tensor, nn

from polyview.export.pack.tokens import (
    GEMMA_END,
    GEMMA_PADDING,
    siglip2_tokenizer,
    siglip_tokenizer,
)
from polyview.models.encoders.huggingface import import_transformers, quiet, read_preprocess
from polyview.models.files import sha256_of

MAX_LENGTH = 128  # tokens of a text that are read at most; captions are far shorter
PROJECTED = "projected"
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
# Patterns of the files to fetch; of weights, safetensors only.
ENCODER_FILES = [
    *("config.json", "preprocessor_config.json", "vocab.json", "merges.txt", *_TOKENIZERS),
    *("model.safetensors.index.json", *_WEIGHTS),
]
# entries of a saved configuration that do not describe the network's shape
_NOT_SHAPE = ("architectures", "dtype", "id2label", "label2id", "transformers_version")


@dataclass(frozen=True)
class Source:
    """A source: its folder, its text as it was named, and the part behind its #."""

    folder: Path
    name: str
    part: str

    @property
    def projected(self) -> bool:
        """Whether the features are those of the space that images and texts share."""
        return self.part == PROJECTED


@dataclass(frozen=True)
class Kind:
    """How a model type of `transformers` becomes one of our encoders."""

    arch: str  # key of `IMAGE_ENCODERS` or `TEXT_ENCODERS`
    network: str  # the class whose `from_pretrained` reads the weights
    part: str = ""  # of CLIP or SigLIP, the prefix of its weights' names: "vision" or "text"
    projects: bool = False  # it maps into the joint space; SigLIP's features are in it anyway


IMAGES = {
    "mobilenet_v2": Kind("mobilenet_v2", "MobileNetV2Model"),
    "resnet": Kind("resnet", "ResNetModel"),
    "vit": Kind("vit", "ViTModel"),
    "clip": Kind("clip_vision", "CLIPModel", "vision", projects=True),
    "clip_vision_model": Kind(
        "clip_vision", "CLIPVisionModelWithProjection", "vision", projects=True
    ),
    "siglip": Kind("siglip_vision", "SiglipModel", "vision"),
}
TEXTS = {
    **{kind: Kind("bert", "AutoModel") for kind in ("bert", "distilbert", "roberta", "electra")},
    "clip": Kind("clip_text", "CLIPModel", "text", projects=True),
    "clip_text_model": Kind("clip_text", "CLIPTextModelWithProjection", "text", projects=True),
    "siglip": Kind("siglip_text", "SiglipModel", "text"),
}


def describe_published(source: Source, kind: str) -> dict[str, Any]:
    """The description of an encoder in a Hugging Face folder.

    `kind` is "image_backbone" or "text_encoder"; the result is that of `describe_image_source` or
    `describe_text_source` in `export.encoders.sources`.
    """
    images = kind == "image_backbone"
    kinds = IMAGES if images else TEXTS
    if not (source.folder / "config.json").is_file():
        raise ValueError(f"{source.name} is a training run; name a Hugging Face folder or Hub id")
    config = _read_config(source)
    model_type = config.get("model_type")
    if model_type not in kinds:
        what = "an image encoder" if images else "a text encoder"
        raise ValueError(
            f'{source.name} is a model of type "{model_type}", which is not {what} known here; '
            f"known: {', '.join(kinds)}"
        )
    entry = kinds[model_type]
    if source.projected and not entry.part:
        raise ValueError(f'{source.name}: only CLIP has a projection; leave out "#{PROJECTED}"')
    if model_type in ("clip", "siglip"):
        shared = {"projection_dim": config.get("projection_dim", 512)} if entry.projects else {}
        config = {**config[f"{entry.part}_config"], **shared}
        config["model_type"] = f"{model_type}_{entry.part}_model"
    if entry.arch == "siglip_text":
        # SigLIP 2's config does not state its padding, and transformers' default is SigLIP's
        tokenizer = read_tokenizer(source.folder)
        if tokenizer.token_to_id(GEMMA_END) is not None:
            config["pad_token_id"] = tokenizer.token_to_id(GEMMA_PADDING)
    arguments = {"config": config} | ({"projected": source.projected} if entry.projects else {})
    spec: dict[str, Any] = {"kind": kind, "arch": entry.arch, "arguments": arguments}
    files = [source.folder / "config.json", *_weight_files(source)]
    if images:
        spec["preprocess"] = read_preprocess(source.folder, source.name).to_json()
    else:
        offset = 2 if model_type == "roberta" else 0
        longest = int(config.get("max_position_embeddings", MAX_LENGTH)) - offset
        spec["max_length"] = min(MAX_LENGTH, longest)
        files += [source.folder / name for name in _TOKENIZERS]
    # the digest covers the weight files and every setting that affects the features
    parts = [entry.arch, source.projected, spec.get("preprocess")]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for path in files:
        if path.is_file():
            digest.update(bytes.fromhex(sha256_of(path)))
    return {**spec, "source": source.name, "sha256": digest.hexdigest()}


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, which neither pads nor truncates."""
    path = folder / "tokenizer.json"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        raise FileNotFoundError(
            f"{folder} holds no tokenizer; put the model's tokenizer.json there, or its vocab.txt"
        )
    try:
        if path.is_file():
            tokenizer = Tokenizer.from_file(str(path))
        else:
            with quiet():
                auto = import_transformers().AutoTokenizer
                tokenizer = auto.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:
        # tokenizers raises a bare Exception.
        raise ValueError(f"{folder} holds no tokenizer that can be read: {error}") from error
    if isinstance(tokenizer.model, Unigram):
        tokenizer = siglip_tokenizer(tokenizer)
    elif tokenizer.token_to_id(GEMMA_END) is not None:
        tokenizer = siglip2_tokenizer(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read_config(source: Source) -> dict[str, Any]:
    """The whole configuration, defaults included, as JSON."""
    try:
        with quiet():
            auto = import_transformers().AutoConfig
            config = auto.from_pretrained(source.folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{source.name}: its config.json cannot be read: {_first_line(error)}"
        ) from error
    return _pruned(json.loads(config.to_json_string(use_diff=False)))


def _pruned(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the entries that describe the network's shape."""
    shape = {k: v for k, v in values.items() if k not in _NOT_SHAPE and not k.startswith("_")}
    return {k: _pruned(v) if isinstance(v, dict) else v for k, v in shape.items()}


def _weight_files(source: Source) -> list[Path]:
    paths = sorted(path for pattern in _WEIGHTS for path in source.folder.glob(pattern))
    if not paths:
        raise FileNotFoundError(
            f"{source.name} has no {_WEIGHTS[0]}; an older pytorch_model.bin is a pickle and is "
            "not read. Name a revision with safetensors (on the Hub often owner/name@refs/pr/1) or "
            "save the model again with transformers' save_pretrained"
        )
    return paths


def read_weights(source: Source, kinds: dict[str, Kind], encoder: nn.Module) -> dict[str, Tensor]:
    """Weights under the encoder's names, through `from_pretrained`."""
    _weight_files(source)  # refuses a source without any
    with quiet():
        transformers = import_transformers()
        model_type = _read_config(source)["model_type"]
        kind = kinds[model_type]
        try:
            network, report = getattr(transformers, kind.network).from_pretrained(
                source.folder,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise ValueError(
                f"the weights of {source.name} do not load: {_first_line(error)}"
            ) from error
    tensors = {_own_name(k, kind.part): v for k, v in network.state_dict().items()}
    own = encoder.state_dict().keys()
    missing = sorted({_own_name(k, kind.part) for k in report["missing_keys"]} & own)
    if missing:
        raise ValueError(
            f"{source.name} lacks {len(missing)} of the weights of a {model_type} model, first "
            f"{missing[0]}; its config.json and its weights do not belong together"
        )
    return {k: v for k, v in tensors.items() if k in own}


def _own_name(name: str, part: str) -> str:
    """A weight's name in `transformers` as our encoders call it."""
    if not part:
        return f"model.{name}"
    projection = "visual_projection" if part == "vision" else "text_projection"
    renames = {f"{part}_model.": "model.", f"{projection}.": "projection."}
    for theirs, ours in renames.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
