"""Where encoders come from: a run folder, a pack, a Hugging Face folder, or an id on the Hub.

A source is a text, `FOLDER_OR_ID[@REVISION][#projected or #frame]`:

    runs/backbone                       our own encoder, what training left behind
    app/bundled/scenes                  the image encoder of a pack, if it is one of our own
    app/bundled/scenes#frame            the same, its cells averaged to one feature an image
    ../backbones/mobilenet_v2           config.json, model.safetensors, preprocessor_config.json
    google/vit-base-patch16-224@main    the same on the Hub, kept in its client's cache
    openai/clip-vit-base-patch32#projected    CLIP's features in the space of images and texts

A folder that exists wins. Of the Hub only configuration, weights and tokenizer are fetched.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from torch import Tensor, nn

from export.hub import client as hub
from export.hub.address import HUB_ID
from export.hub.packed import describe_packed, is_pack, read_packed
from export.pack.schema import MANIFEST
from export.pack.tokens import siglip_tokenizer
from models.checkpoint import load_strict, load_tensors
from models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.huggingface import import_transformers, quiet
from models.encoders.processor import read_preprocess
from models.files import sha256_of
from models.preprocess import Preprocess

RUN_WEIGHTS = "best.safetensors"
MAX_LENGTH = 128  # tokens of a text that are read at most; captions are far shorter
PROJECTED, FRAME = "projected", "frame"
PARTS = (1, 3)  # rows and columns of a frame's parts, whose averages are joined
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_SHARDS = re.compile(r"model-\d+-of-\d+\.safetensors")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_FILES = ("config.json", "preprocessor_config.json", "vocab.json", "merges.txt", *_TOKENIZERS)
# what a saved configuration holds beside the network's shape
_NOT_SHAPE = ("architectures", "dtype", "id2label", "label2id", "transformers_version")


class SourceError(ValueError):
    """An encoder cannot be had from a source; the message is a sentence that says why."""


@dataclass(frozen=True)
class _Kind:
    """How a model type of `transformers` becomes one of our encoders.

    Attributes:
        arch: key of `IMAGE_ENCODERS` or `TEXT_ENCODERS`.
        network: the class whose `from_pretrained` reads the weights.
        part: of a CLIP or SigLIP model, the prefix of its weights' names ("vision" or "text").
        projects: it maps into the space that images and texts share; SigLIP's is there anyway.
    """

    arch: str
    network: str
    part: str = ""
    projects: bool = False


_IMAGES = {
    "mobilenet_v2": _Kind("mobilenet_v2", "MobileNetV2Model"),
    "resnet": _Kind("resnet", "ResNetModel"),
    "vit": _Kind("vit", "ViTModel"),
    "clip": _Kind("clip_vision", "CLIPModel", "vision", projects=True),
    "clip_vision_model": _Kind(
        "clip_vision", "CLIPVisionModelWithProjection", "vision", projects=True
    ),
    "siglip": _Kind("siglip_vision", "SiglipModel", "vision"),
}
_TEXTS = {
    **{kind: _Kind("bert", "AutoModel") for kind in ("bert", "distilbert", "roberta", "electra")},
    "clip": _Kind("clip_text", "CLIPModel", "text", projects=True),
    "clip_text_model": _Kind("clip_text", "CLIPTextModelWithProjection", "text", projects=True),
    "siglip": _Kind("siglip_text", "SiglipModel", "text"),
}


@dataclass(frozen=True)
class _Source:
    """A source found: its folder, the text it was named by, and what stands behind its #."""

    folder: Path
    name: str
    part: str

    @property
    def projected(self) -> bool:
        return self.part == PROJECTED

    @property
    def is_run(self) -> bool:
        return (self.folder / RUN_WEIGHTS).is_file()


def load_image_source(
    source: str | Path, device: str | torch.device = "cpu", *, rounded: bool = True
) -> tuple[ImageEncoder, Preprocess, dict[str, Any]]:
    """An image encoder, how it wants its images, and what it is.

    Args:
        source: see above.
        device: where the encoder is to compute.
        rounded: round the weights to half precision, as packs ship them, so that heads train on the
            features that people will search with.

    Returns:
        The encoder in eval mode; its preprocessing; and `describe_image_source`.

    Raises:
        FileNotFoundError: there is no such folder, or no weights in it.
        SourceError: it is no image encoder, does not fit together, or cannot be fetched.
    """
    found = _find(source)
    about = _describe_image(found)
    encoder = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
    if found.is_run:
        tensors, _ = load_tensors(found.folder / RUN_WEIGHTS)
    elif is_pack(found.folder):
        tensors = read_packed(found.folder, encoder)
    else:
        tensors = _read_weights(found, _IMAGES, encoder)
    _fill(encoder, tensors, found, rounded)
    return encoder.to(device).eval(), Preprocess.from_json(about["preprocess"]), about


def describe_image_source(source: str | Path) -> dict[str, Any]:
    """What an image encoder is, without building it.

    Returns:
        JSON-ready: `kind`, `arch` (key of `IMAGE_ENCODERS`), `arguments` (its constructor's),
        `preprocess`, `source`, and `sha256`, which changes with weights, sizes and preprocessing.

    Raises:
        FileNotFoundError, SourceError: see `load_image_source`.
    """
    return _describe_image(_find(source))


def load_text_source(
    source: str | Path, device: str | torch.device = "cpu", *, rounded: bool = True
) -> tuple[TextEncoder, Tokenizer, dict[str, Any]]:
    """A published text encoder, its tokenizer, and what it is; see `load_image_source`.

    Returns:
        The encoder in eval mode; its tokenizer, which puts in the special tokens, cuts texts at
        `max_length` tokens and pads nothing; and `describe_text_source`.
    """
    found = _find(source)
    about = _describe_text(found)
    encoder = TEXT_ENCODERS[about["arch"]](**about["arguments"])
    _fill(encoder, _read_weights(found, _TEXTS, encoder), found, rounded)
    return encoder.to(device).eval(), read_tokenizer(found.folder, about["max_length"]), about


def describe_text_source(source: str | Path) -> dict[str, Any]:
    """What a published text encoder is; see `describe_image_source`.

    Returns:
        JSON-ready: `kind`, `arch` (key of `TEXT_ENCODERS`), `arguments`, `max_length`, `source` and
        `sha256`.
    """
    return _describe_text(_find(source))


def read_tokenizer(folder: Path, max_length: int) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, see `load_text_source`.

    Raises:
        FileNotFoundError: there is none.
        SourceError: it cannot be read.
    """
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
        # tokenizers raises the bare Exception for whatever it cannot read.
        raise SourceError(f"{folder} holds no tokenizer that can be read: {error}") from error
    if isinstance(tokenizer.model, Unigram):
        tokenizer = siglip_tokenizer(tokenizer)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def _find(source: str | Path) -> _Source:
    """The folder of a source, fetched where need be."""
    name, _, part = str(source).partition("#")
    if part not in ("", PROJECTED, FRAME):
        raise SourceError(
            f'"{source}": after # there can only be "{PROJECTED}" or "{FRAME}", not "{part}"'
        )
    folder, hub_id = Path(name), HUB_ID.fullmatch(name)
    if not folder.is_dir():
        if hub_id is None or folder.parent.is_dir():
            raise FileNotFoundError(
                f"there is no folder {name}; name a run folder, a pack, a Hugging Face folder, or "
                "a Hub id as owner/name"
            )
        try:
            folder = hub.fetch(hub_id["id"], hub_id["revision"], wanted_files)
        except hub.HubError as error:
            raise SourceError(f"there is no folder {name}, and on the Hub: {error}") from error
    if not any((folder / file).is_file() for file in (RUN_WEIGHTS, MANIFEST, "config.json")):
        raise FileNotFoundError(
            f"there is no weights file in {name}: it holds neither {RUN_WEIGHTS} (a training run) "
            f"nor {MANIFEST} (a pack) nor config.json (a Hugging Face model)"
        )
    return _Source(folder, str(source), part)


def wanted_files(files: Iterable[str]) -> list[str]:
    """Which of a repository's files to fetch; of weights, safetensors only."""
    there = set(files)
    shards = {name for name in there if _SHARDS.fullmatch(name)}
    return sorted((there & set(_FILES)) | (there & set(_WEIGHTS)) | shards)


def _describe_image(found: _Source) -> dict[str, Any]:
    if found.is_run:
        _, about = load_tensors(found.folder / RUN_WEIGHTS)
        if about.get("kind") != "image_backbone" or about.get("arch") not in IMAGE_ENCODERS:
            raise SourceError(
                f"{found.folder / RUN_WEIGHTS} is not an image encoder; make one with "
                "training.pretrain"
            )
        sha256 = sha256_of(found.folder / RUN_WEIGHTS)
        return _framed({**about, "source": found.name, "sha256": sha256}, found)
    if is_pack(found.folder):
        return _framed({**describe_packed(found.folder), "source": found.name}, found)
    if found.part == FRAME:
        raise SourceError(f'{found.name}: only our own encoders know "#{FRAME}"; leave it out')
    described = _describe(found, _IMAGES, "image_backbone", "an image encoder")
    described["preprocess"] = read_preprocess(found.folder, found.name).to_json()
    return _with_identity(described, found)


def _framed(about: dict[str, Any], found: _Source) -> dict[str, Any]:
    """An encoder of our own, its cells joined to one feature where `FRAME` asks for that."""
    if found.part != FRAME:
        return about
    arguments = {**about["arguments"], "parts": list(PARTS)}
    identity = json.dumps([about["sha256"], PARTS])
    return {
        **about,
        "arguments": arguments,
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
    }


def _describe_text(found: _Source) -> dict[str, Any]:
    if not (found.folder / "config.json").is_file():
        raise SourceError(
            f"{found.name} is a training run; text.source must be a Hugging Face folder or Hub id"
        )
    about = _describe(found, _TEXTS, "text_encoder", "a text encoder")
    config = about["arguments"]["config"]
    offset = 2 if config["model_type"] == "roberta" else 0
    longest = int(config.get("max_position_embeddings", MAX_LENGTH)) - offset
    about["max_length"] = min(MAX_LENGTH, longest)
    return _with_identity(about, found)


def _describe(found: _Source, kinds: dict[str, _Kind], kind: str, what: str) -> dict[str, Any]:
    """What the configuration of a Hugging Face folder says, all but `sha256`."""
    config = _read_config(found)
    model_type = config.get("model_type")
    if model_type not in kinds:
        raise SourceError(
            f'{found.name} is a model of type "{model_type}", which is not {what} known here; '
            f"known: {', '.join(kinds)}"
        )
    entry = kinds[model_type]
    if model_type in ("clip", "siglip"):
        shared = {"projection_dim": config.get("projection_dim", 512)} if entry.projects else {}
        config = {**config[f"{entry.part}_config"], **shared}
        config["model_type"] = f"{model_type}_{entry.part}_model"
    arguments: dict[str, Any] = {"config": config}
    if entry.projects:
        arguments["projected"] = found.projected
    elif found.projected and not entry.part:
        raise SourceError(f'{found.name}: only CLIP has a projection; leave out "#{PROJECTED}"')
    return {"kind": kind, "arch": entry.arch, "arguments": arguments, "source": found.name}


def _read_config(found: _Source) -> dict[str, Any]:
    """The whole configuration, defaults included, as JSON."""
    try:
        with quiet():
            auto = import_transformers().AutoConfig
            config = auto.from_pretrained(found.folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{found.name}: its config.json cannot be read: {_first_line(error)}"
        ) from error
    return _pruned(json.loads(config.to_json_string(use_diff=False)))


def _pruned(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what says nothing about the network's shape."""
    shape = {k: v for k, v in values.items() if k not in _NOT_SHAPE and not k.startswith("_")}
    return {k: _pruned(v) if isinstance(v, dict) else v for k, v in shape.items()}


def _with_identity(about: dict[str, Any], found: _Source) -> dict[str, Any]:
    """Adds `sha256`: of the weights' files and of everything else that shapes the features."""
    parts = [about["arch"], found.projected, about.get("preprocess")]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    files = [found.folder / "config.json", *_weight_files(found)]
    if about["kind"] == "text_encoder":
        files += [found.folder / name for name in _TOKENIZERS]
    for path in files:
        if path.is_file():
            digest.update(bytes.fromhex(sha256_of(path)))
    return {**about, "sha256": digest.hexdigest()}


def _weight_files(found: _Source) -> list[Path]:
    there = sorted(path.name for path in found.folder.iterdir() if path.is_file())
    chosen = [name for name in wanted_files(there) if name.endswith(".safetensors")]
    if not chosen:
        raise FileNotFoundError(
            f"{found.name} has no {_WEIGHTS[0]}; an older pytorch_model.bin is a pickle and is "
            "not read. Name a revision with safetensors (on the Hub often owner/name@refs/pr/1) or "
            "save the model again with transformers' save_pretrained"
        )
    return [found.folder / name for name in chosen]


def _read_weights(found: _Source, kinds: dict[str, _Kind], encoder: nn.Module) -> dict[str, Tensor]:
    """Weights under the encoder's names, through `from_pretrained`."""
    _weight_files(found)  # refuses a source without any
    with quiet():
        transformers = import_transformers()
        model_type = _read_config(found)["model_type"]
        kind = kinds[model_type]
        try:
            network, report = getattr(transformers, kind.network).from_pretrained(
                found.folder,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise SourceError(
                f"the weights of {found.name} do not load: {_first_line(error)}"
            ) from error
    tensors = {_own_name(k, kind.part): v for k, v in network.state_dict().items()}
    own = encoder.state_dict().keys()
    missing = sorted({_own_name(k, kind.part) for k in report["missing_keys"]} & own)
    if missing:
        raise SourceError(
            f"{found.name} lacks {len(missing)} of the weights of a {model_type} model, first "
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


def _fill(encoder: nn.Module, tensors: dict[str, Tensor], found: _Source, rounded: bool) -> None:
    if rounded:
        tensors = {k: v.half().float() if v.is_floating_point() else v for k, v in tensors.items()}
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise SourceError(
                f"{found.name}: {name} holds values that are not finite, or beyond what half "
                "precision can store (65504)"
            )
    load_strict(encoder, tensors, found.name)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
