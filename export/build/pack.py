"""Builds a pack: a folder that computes and ranks as the given torch modules do.

Everything is built beside the target folder and compared with torch (`export/build/parity.py`); a
pack is moved into place only if it passes.
"""

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from polyview.export.build.graph import export_image_encoder, export_text_encoder
from polyview.export.build.parity import MethodParts, check_parity
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
from polyview.models.checkpoint import round_to_half, save_tensors
from polyview.models.encoders.encoder import ImageEncoder
from polyview.models.files import replacing_folder
from polyview.models.preprocess import Preprocess

IMAGE_ENCODER = "image_encoder.onnx"
TOKENIZER = "tokenizer.json"
LOGS = ("config.toml", "log.csv")


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
        ValueError: a weight is beyond half precision's range, the gallery lacks features, or the
            result does not compute what torch computes.
        DiskFullError: the disk has no space left; nothing of the pack is left behind.
    """
    packed = copy.deepcopy(parts) if parts.half else parts  # shared modules stay shared
    for name, method in packed.methods.items() if parts.half else ():
        for module in method.modules:
            module.load_state_dict(round_to_half(module.state_dict(), name))
    with replacing_folder(out) as work:
        info = _write_parts(work, labels, packed)
        runtime, methods = Runtime.load(work, "cpu"), dict[str, MethodInfo]()
        for name, method in parts.methods.items():
            parity = check_parity(runtime, name, packed.methods[name], method)
            methods[name] = replace(info.methods[name], parity=parity)
        write_info(replace(info, methods=methods))
        return replace(load_info(work), folder=out)


def _write_parts(work: Path, labels: Labels, parts: PackParts) -> PackInfo:
    """Writes a pack whose parity is not measured yet."""
    encoder, size, file = parts.image_encoder, parts.preprocess.size, None
    (work / TOKENIZER).write_text(parts.tokenizer, "utf-8")
    for name, folder in parts.logs.items():
        _copy(folder, work / "training" / name, [log for log in LOGS if (folder / log).is_file()])
    methods = {
        name: _write_method(work, name, method, parts) for name, method in parts.methods.items()
    }
    if any(method.image_encoder is encoder for method in parts.methods.values()) and encoder:
        file = IMAGE_ENCODER
        export_image_encoder(encoder, size, work / file)
    elif encoder is not None:  # no method reads the pack's encoder: use the first method's own
        file = f"{next(iter(methods))}/{IMAGE_ENCODER}"
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
    grid, summary = (1, 1), False
    if encoder is not None:
        grid, summary = encoder.grid(size), encoder.summary_token
    info = PackInfo(
        folder=work,
        **asdict(labels),
        preprocess=parts.preprocess,
        image_encoder=ImageEncoderInfo(file, parts.image_dim, grid, summary, parts.frames),
        tokenizer=TokenizerInfo(TOKENIZER, parts.max_length),
        methods=methods,
        files={path.relative_to(work).as_posix(): describe_file(path) for path in listed},
        gallery=None if parts.gallery is None else summarize_gallery(load_gallery(work / FOLDER)),
    )
    write_info(info)
    return info


def _write_method(work: Path, name: str, method: MethodParts, parts: PackParts) -> MethodInfo:
    text_encoder, head = f"{name}/text_encoder.onnx", f"{name}/head.safetensors"
    if method.shared_text is not None:
        text_encoder = f"text_encoder-{method.shared_text[:12]}.onnx"
    if not (work / text_encoder).is_file():
        export_text_encoder(method.text_encoder, work / text_encoder)
    own, image_encoder = method.image_encoder, None
    if own is not None and own is not parts.image_encoder:
        image_encoder = f"{name}/{IMAGE_ENCODER}"
        export_image_encoder(own, parts.preprocess.size, work / image_encoder)
    weights = method.head.state_dict()
    if parts.half:
        weights = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    key = method.key or name
    about = {"kind": "head", "method": key, "arguments": method.arguments}
    save_tensors(work / head, weights, about)
    variant = name.removeprefix(f"{key}_").replace("_", " ")  # "mvam_4_codes": "MVAM, 4 codes"
    return MethodInfo(
        arguments=method.arguments,
        image_dim=parts.image_dim,
        text_dim=method.text_encoder.dim,
        text_encoder=text_encoder,
        head=head,
        config=method.config,
        parity=None,
        image_encoder=image_encoder,
        method=None if key == name else key,
        title=None if key == name else f"{METHODS[key].title}, {variant}",
    )


def _copy(source: Path, target: Path, files: Sequence[str]) -> None:
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)
