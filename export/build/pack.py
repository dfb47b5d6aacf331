"""Builds a pack: a folder that computes and ranks as the given torch modules do.

Everything is built beside the target folder and compared with torch (`export/build/parity.py`); a
pack is moved into place only if it passes.
"""

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from polyview.export.build.graph import export_image_encoder, export_text_encoder, round_to_half
from polyview.export.build.parity import TorchStack, check_parity
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import describe_file, load_info, summarize_gallery, write_info
from polyview.export.pack.schema import (
    FOLDER,
    INDEX,
    REGIONS,
    ImageEncoderInfo,
    Labels,
    MethodInfo,
    PackInfo,
    TokenizerInfo,
)
from polyview.export.runtime import Runtime
from polyview.models import METHODS
from polyview.models.checkpoint import save_tensors
from polyview.models.encoders.encoder import ImageEncoder
from polyview.models.files import replacing_folder
from polyview.models.preprocess import Preprocess

IMAGE_ENCODER = "image_encoder.onnx"
TOKENIZER = "tokenizer.json"
LOGS = ("config.toml", "log.csv")


@dataclass(frozen=True)
class MethodParts:
    """One method of a pack.

    An image encoder in `stack` that is not the object in `PackParts` was trained together with the
    method, and goes into the pack with it.
    """

    stack: TorchStack  # with the weights as trained
    arguments: dict[str, Any]  # for `models.build`
    config: dict[str, Any]  # of its training
    shared_text: str | None = None  # identity of a text encoder that several methods share
    method: str = ""  # key of `models.METHODS`; empty if it is the name in the pack


@dataclass(frozen=True)
class PackParts:
    """The parts of a pack."""

    image_encoder: ImageEncoder | None  # shared; None if features are computed elsewhere
    image_dim: int  # d of the image features
    preprocess: Preprocess
    tokenizer: str  # in the format of Hugging Face `tokenizers`, as JSON
    max_length: int  # number of tokens after which a text is cut
    methods: Mapping[str, MethodParts]  # by their names in the pack, at least one
    gallery: Path | None = None  # a folder with `gallery.json` to copy into the pack
    frames: int = 1  # see `ImageEncoderInfo`
    logs: Mapping[str, Path] = field(default_factory=dict)  # name below `training/` -> run folder
    half: bool = True  # round the weights to half precision


def build_pack(out: Path, labels: Labels, parts: PackParts) -> PackInfo:
    """Builds a pack; an existing folder at `out` is replaced when the new pack is correct.

    Raises:
        ValueError: a weight is beyond half precision's range, or the gallery lacks features.
        DriftError: the result does not compute what torch computes.
        DiskFullError: the disk has no space left; nothing of the pack is left behind.
    """
    packed = _rounded(parts) if parts.half else parts
    with replacing_folder(out) as work:
        info = _write_parts(work, labels, packed)
        runtime = Runtime.load(work, "cpu")
        methods = {}
        for name, method in parts.methods.items():
            parity = check_parity(runtime, name, packed.methods[name].stack, method.stack)
            methods[name] = replace(info.methods[name], parity=asdict(parity))
        info = replace(info, methods=methods)
        write_info(info)
        load_info(work)
    return replace(info, folder=out)


def _rounded(parts: PackParts) -> PackParts:
    """A copy with weights rounded to half precision; shared modules stay shared."""
    rounded = copy.deepcopy(parts)
    for name, method in rounded.methods.items():
        stack = method.stack
        for module in (stack.image_encoder, stack.text_encoder, stack.method):
            if module is not None:
                module.load_state_dict(round_to_half(module.state_dict(), name))
    return rounded


def _write_parts(work: Path, labels: Labels, parts: PackParts) -> PackInfo:
    """Writes a pack whose parity is not measured yet."""
    size, encoder = parts.preprocess.size, parts.image_encoder
    if any(method.stack.image_encoder is encoder for method in parts.methods.values()):
        image_encoder = IMAGE_ENCODER
        if encoder is not None:
            export_image_encoder(encoder, size, work / IMAGE_ENCODER)
    else:  # no method reads the pack's encoder: use the first method's own
        image_encoder = f"{next(iter(parts.methods))}/{IMAGE_ENCODER}"
    (work / TOKENIZER).write_text(parts.tokenizer, "utf-8")
    for name, folder in parts.logs.items():
        _copy(folder, work / "training" / name, [log for log in LOGS if (folder / log).is_file()])
    methods = {
        name: _write_method(work, name, method, parts) for name, method in parts.methods.items()
    }
    listed = [path for path in sorted(work.rglob("*")) if path.is_file()]
    if parts.gallery is not None:
        gallery = load_gallery(parts.gallery)
        own = [INDEX, REGIONS] if (gallery.folder / REGIONS).is_file() else [INDEX]
        if encoder is None and REGIONS not in own:
            raise ValueError(
                f"{parts.gallery} holds images alone, and the pack reads ready-made features; make "
                "its gallery with python -m polyview region-gallery"
            )
        _copy(gallery.folder, work / FOLDER, [*own, *gallery.files])
        listed += [work / FOLDER / file for file in own]
    info = PackInfo(
        folder=work,
        **asdict(labels),
        preprocess=parts.preprocess,
        image_encoder=ImageEncoderInfo(
            None if encoder is None else image_encoder,
            parts.image_dim,
            (1, 1) if encoder is None else encoder.grid(size),
            encoder is not None and encoder.summary_token,
            parts.frames,
        ),
        tokenizer=TokenizerInfo(TOKENIZER, parts.max_length),
        methods=methods,
        files={path.relative_to(work).as_posix(): describe_file(path) for path in listed},
        gallery=None if parts.gallery is None else summarize_gallery(work),
    )
    write_info(info)
    return info


def _write_method(work: Path, name: str, method: MethodParts, parts: PackParts) -> MethodInfo:
    stack, image_encoder = method.stack, None
    text_encoder, head = f"{name}/text_encoder.onnx", f"{name}/head.safetensors"
    if method.shared_text is not None:
        text_encoder = f"text_encoder-{method.shared_text[:12]}.onnx"
    if not (work / text_encoder).is_file():
        export_text_encoder(stack.text_encoder, work / text_encoder)
    if stack.image_encoder is not None and stack.image_encoder is not parts.image_encoder:
        image_encoder = f"{name}/{IMAGE_ENCODER}"
        export_image_encoder(stack.image_encoder, parts.preprocess.size, work / image_encoder)
    weights = stack.method.state_dict()
    if parts.half:
        weights = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    key = method.method or name
    arguments = method.arguments
    about = {"kind": "head", "method": key, "arguments": arguments}
    save_tensors(work / head, weights, about)
    variant = name.removeprefix(f"{key}_").replace("_", " ")  # "mvam_4_codes": "MVAM, 4 codes"
    return MethodInfo(
        arguments=arguments,
        image_dim=parts.image_dim,
        text_dim=stack.text_encoder.dim,
        text_encoder=text_encoder,
        head=head,
        config=method.config,
        parity={},
        image_encoder=image_encoder,
        method=None if key == name else key,
        title=None if key == name else f"{METHODS[key].title}, {variant}",
    )


def _copy(source: Path, target: Path, files: Sequence[str]) -> None:
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)
