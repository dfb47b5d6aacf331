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
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from export.hub import client as hub
from export.hub.address import HUB_ID
from export.hub.packed import describe_packed, is_pack, read_packed
from export.hub.published import (
    IMAGES,
    PROJECTED,
    TEXTS,
    Source,
    SourceError,
    describe_published_image,
    describe_published_text,
    read_tokenizer,
    read_weights,
    wanted_files,
)
from export.pack.schema import MANIFEST
from models.checkpoint import load_strict, load_tensors
from models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.files import no_such, sha256_of
from models.preprocess import Preprocess

RUN_WEIGHTS = "best.safetensors"
FRAME = "frame"
PARTS = (1, 3)  # rows and columns of a frame's parts, whose averages are joined


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
    if _is_run(found.folder):
        tensors, _ = load_tensors(found.folder / RUN_WEIGHTS)
    elif is_pack(found.folder):
        tensors = read_packed(found.folder, encoder)
    else:
        tensors = read_weights(found, IMAGES, encoder)
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
    about = describe_published_text(found)
    encoder = TEXT_ENCODERS[about["arch"]](**about["arguments"])
    _fill(encoder, read_weights(found, TEXTS, encoder), found, rounded)
    return encoder.to(device).eval(), read_tokenizer(found.folder, about["max_length"]), about


def describe_text_source(source: str | Path) -> dict[str, Any]:
    """What a published text encoder is; see `describe_image_source`.

    Returns:
        JSON-ready: `kind`, `arch` (key of `TEXT_ENCODERS`), `arguments`, `max_length`, `source` and
        `sha256`.
    """
    return describe_published_text(_find(source))


def _find(source: str | Path) -> Source:
    """The folder of a source, fetched where need be."""
    name, _, part = str(source).partition("#")
    if part not in ("", PROJECTED, FRAME):
        raise SourceError(
            f'"{source}": after # there can only be "{PROJECTED}" or "{FRAME}", not "{part}"'
        )
    folder, hub_id = Path(name), HUB_ID.fullmatch(name)
    if not folder.is_dir():
        if hub_id is None or folder.parent.is_dir():
            kinds = "name a run folder, a pack, a Hugging Face folder, or a Hub id as owner/name"
            raise FileNotFoundError(no_such("folder", folder, kinds))
        try:
            folder = hub.fetch(hub_id["id"], hub_id["revision"], wanted_files)
        except hub.HubError as error:
            raise SourceError(f"there is no folder {name}, and on the Hub: {error}") from error
    if not any((folder / file).is_file() for file in (RUN_WEIGHTS, MANIFEST, "config.json")):
        raise FileNotFoundError(
            f"there is no weights file in {name}: it holds neither {RUN_WEIGHTS} (a training run) "
            f"nor {MANIFEST} (a pack) nor config.json (a Hugging Face model)"
        )
    return Source(folder, str(source), part)


def _is_run(folder: Path) -> bool:
    return (folder / RUN_WEIGHTS).is_file()


def _describe_image(found: Source) -> dict[str, Any]:
    if _is_run(found.folder):
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
    return describe_published_image(found)


def _framed(about: dict[str, Any], found: Source) -> dict[str, Any]:
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


def _fill(encoder: nn.Module, tensors: dict[str, Tensor], found: Source, rounded: bool) -> None:
    if rounded:
        tensors = {k: v.half().float() if v.is_floating_point() else v for k, v in tensors.items()}
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise SourceError(
                f"{found.name}: {name} holds values that are not finite, or beyond what half "
                "precision can store (65504)"
            )
    load_strict(encoder, tensors, found.name)
