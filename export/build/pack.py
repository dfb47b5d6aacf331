"""One way to make a pack: torch modules in, a folder out that computes and ranks as they do.

Everything is built beside the target and compared with torch (`export/build/parity.py`); only a
pack that is right is moved into place.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from export.build.graph import export_image_encoder, export_text_encoder
from export.build.parity import TorchStack, check_parity
from export.pack.gallery import load_gallery
from export.pack.reading import load_info
from export.pack.schema import (
    FOLDER,
    INDEX,
    REGIONS,
    ImageEncoderInfo,
    Line,
    MethodInfo,
    Note,
    PackInfo,
    Page,
    TokenizerInfo,
)
from export.pack.validation import STRICT, Name, check
from export.pack.writing import describe_file, summarize_gallery, write_info
from export.runtime import Runtime
from models import METHODS, complete_arguments
from models.checkpoint import save_tensors
from models.encoders.encoder import ImageEncoder
from models.files import replacing_folder
from models.preprocess import Preprocess

IMAGE_ENCODER = "image_encoder.onnx"
TOKENIZER = "tokenizer.json"
LOGS = ("config.toml", "log.csv")


@dataclass(frozen=True, config=STRICT)
class Labels:
    """What a person reads about a pack; see the keys of the same names in pack.json."""

    name: Name
    title: Line
    licence: Note
    credits: Page
    description: Page


@plain_dataclass(frozen=True)
class MethodParts:
    """What a method brings into a pack.

    Attributes:
        arguments: named arguments for `models.build`.
        config: what it was trained with.
        rounded: its modules with the weights that the pack is to hold.
        original: its modules with the weights as trained; the same object where nothing is rounded.
        own_images: whether its image encoder was trained along with it, and goes with it.
        shared_text: identity of a text encoder that several methods share.
        method: key of `models.METHODS`; empty where the pack calls it so.
    """

    arguments: dict[str, Any]
    config: dict[str, Any]
    rounded: TorchStack
    original: TorchStack
    own_images: bool = False
    shared_text: str | None = None
    method: str = ""


@plain_dataclass(frozen=True)
class PackParts:
    """What a pack is made of.

    Attributes:
        image_encoder: with the weights that the pack is to hold; None where methods read features
            that were computed elsewhere.
        image_dim: d of the image features.
        preprocess: how images are prepared.
        tokenizer: in the format of Hugging Face `tokenizers`, as JSON.
        max_length: after how many tokens a text is cut.
        methods: by their keys in `models.METHODS`, at least one.
        gallery: a folder with `gallery.json` that is to come with the pack.
        frames: see `ImageEncoderInfo`.
        logs: folders whose `LOGS` go along, by their names below `training/`.
    """

    image_encoder: ImageEncoder | None
    image_dim: int
    preprocess: Preprocess
    tokenizer: str
    max_length: int
    methods: Mapping[str, MethodParts]
    gallery: Path | None = None
    frames: int = 1
    logs: Mapping[str, Path] = field(default_factory=dict)


def build_pack(out: Path, labels: Labels, parts: PackParts, force: bool = False) -> PackInfo:
    """Builds a pack.

    Args:
        out: the folder to make.
        labels: what people read about it.
        parts: what it is made of.
        force: replace what is at `out`.

    Returns:
        The pack's description.

    Raises:
        FileExistsError: there is something at `out`, and `force` is off.
        DriftError: the result does not compute what torch computes.
    """
    refuse_existing(out, force)
    with replacing_folder(out) as work:
        info = _write_parts(work, labels, parts)
        runtime = Runtime.load(work, "cpu")
        methods = {}
        for name, given in parts.methods.items():
            parity = check_parity(runtime, name, given.rounded, given.original)
            methods[name] = replace(info.methods[name], parity=asdict(parity))
        info = replace(info, methods=methods)
        write_info(info)
        load_info(work)
    return replace(info, folder=out)


def refuse_existing(out: Path, force: bool) -> None:
    """Refuses a target that would be replaced without having been asked for.

    Raises:
        FileExistsError: there is something at `out`, and `force` is off.
    """
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists; choose another folder, or replace it with --force")


def _write_parts(work: Path, labels: Labels, parts: PackParts) -> PackInfo:
    """Writes a pack whose parity is not measured yet."""
    size, encoder = parts.preprocess.size, parts.image_encoder
    own = [f"{name}/{IMAGE_ENCODER}" for name, given in parts.methods.items() if given.own_images]
    # where no method reads the pack's encoder, the first method's own stands for it
    image_encoder = own[0] if len(own) == len(parts.methods) else IMAGE_ENCODER
    if encoder is not None and image_encoder == IMAGE_ENCODER:
        export_image_encoder(encoder, size, work / IMAGE_ENCODER)
    (work / TOKENIZER).write_text(parts.tokenizer, "utf-8")
    for name, folder in parts.logs.items():
        _copy(folder, work / "training" / name, [log for log in LOGS if (folder / log).is_file()])
    methods = {
        name: _write_method(work, name, given, parts) for name, given in parts.methods.items()
    }
    listed = [path for path in sorted(work.rglob("*")) if path.is_file()]
    if parts.gallery is not None:
        gallery = load_gallery(parts.gallery)
        own = [INDEX, REGIONS] if (gallery.folder / REGIONS).is_file() else [INDEX]
        if encoder is None and REGIONS not in own:
            raise ValueError(
                f"{parts.gallery} holds images alone, and the pack reads ready-made features; make "
                "its gallery with python -m training.data.region_gallery"
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


def _write_method(work: Path, name: str, given: MethodParts, parts: PackParts) -> MethodInfo:
    stack, size = given.rounded, parts.preprocess.size
    text_encoder, head = f"{name}/text_encoder.onnx", f"{name}/head.safetensors"
    if given.shared_text is not None:
        text_encoder = f"text_encoder-{given.shared_text[:12]}.onnx"
    if not (work / text_encoder).is_file():
        export_text_encoder(stack.text_encoder, work / text_encoder)
    image_encoder = f"{name}/{IMAGE_ENCODER}" if given.own_images else None
    if image_encoder is not None and stack.image_encoder is not None:
        export_image_encoder(stack.image_encoder, size, work / image_encoder)
    weights = stack.method.state_dict()
    if stack is not given.original:  # half precision holds them
        weights = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    key = given.method or name
    arguments = complete_arguments(key, given.arguments)
    about = {"kind": "head", "method": key, "arguments": arguments}
    save_tensors(work / head, weights, about)
    return MethodInfo(
        arguments=arguments,
        image_dim=parts.image_dim,
        text_dim=stack.text_encoder.dim,
        text_encoder=text_encoder,
        head=head,
        config=given.config,
        parity={},
        image_encoder=image_encoder,
        method=None if key == name else key,
        title=None if key == name else _title(key, name),
    )


def _title(method: str, name: str) -> str:
    """What people call a model that a pack holds beside others of its method.

    >>> _title("mvam", "mvam_4_codes")
    'MVAM, 4 codes'
    """
    return f"{METHODS[method].title}, {name.removeprefix(f'{method}_').replace('_', ' ')}"


def _copy(source: Path, target: Path, files: Sequence[str]) -> None:
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)


def parser_of(command: str, about: str, **defaults: str) -> argparse.ArgumentParser:
    """The command line of what builds a pack, with the options that all have.

    Args:
        command: the module below `export`.
        about: what the command does.
        defaults: of the pack's `Labels`, where nothing is given.
    """
    parser = argparse.ArgumentParser(prog=f"python -m export.{command}", description=about)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the pack's folder")
    add("--force", action="store_true", help="replace what is at --out")
    add("--gallery", type=Path, help="folder with gallery.json that comes with the pack")
    for label, what in (
        ("name", "short name: lower-case letters, digits, underscores"),
        ("title", "name for people"),
        ("licence", "SPDX identifier of the weights' licence"),
        ("credits", "whose work is in the pack"),
        ("description", "one or two sentences"),
    ):
        add(f"--{label}", default=defaults.get(label), help=what)
    return parser


def labels_of(options: argparse.Namespace, **defaults: str) -> Labels:
    """What a command line says about a pack; `defaults` stand for what it leaves out.

    Raises:
        PackError: names the option that makes no sense.
    """
    names = Labels.__dataclass_fields__
    given = {name: getattr(options, name) or defaults.get(name) for name in names}
    return check(Labels, given, "labels of the pack")


def run_command(
    build: Callable[[argparse.Namespace], PackInfo],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    failure: str = "export failed",
) -> int:
    """Runs a command line that builds a pack; says what came of it and returns the exit status."""
    options = parser.parse_args(argv)
    try:
        info = build(options)
    except (ValueError, OSError) as error:
        print(f"{failure}: {error}", file=sys.stderr)
        return 1
    for name, method in info.methods.items():
        print(f"{name}: ONNX and torch differ by {method.parity['numbers']:.1e}, ranking identical")
    print(f"{info.folder}: {sum(file.bytes for file in info.files.values()) / 1e6:.1f} MB")
    return 0
