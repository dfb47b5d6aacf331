"""Builds a pack from run folders: `python -m export.to_onnx --help`.

Everything is built beside the target and compared with torch (`export/parity.py`); only a pack
that computes and ranks alike is moved into place. On drift the command ends with status 1.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from export.gallery import FOLDER, INDEX, load_gallery
from export.graph import export_image_encoder, export_text_encoder
from export.manifest import ImageEncoderInfo, MethodInfo, PackInfo, TokenizerInfo
from export.manifest_parser import check_name
from export.pack import describe_file, load_info, summarize_gallery, write_info
from export.parity import check_parity
from export.runtime import Runtime
from export.trained import (
    TorchStack,
    TrainedBackbone,
    TrainedMethod,
    load_backbone,
    load_method,
    stacks,
)
from models.checkpoint import save_tensors

IMAGE_ENCODER = "image_encoder.onnx"
TOKENIZER = "tokenizer.json"
MAX_LENGTH = 64
LOGS = ("config.toml", "log.csv")


@dataclass(frozen=True)
class Labels:
    """What a person reads about a pack; see the keys of the same names in pack.json."""

    name: str
    title: str
    licence: str
    credits: str
    description: str


def build_pack(
    out: Path,
    backbone: str | Path,
    runs: Sequence[Path],
    labels: Labels,
    gallery: Path | None = None,
    force: bool = False,
) -> PackInfo:
    """Builds a pack.

    Args:
        out: the folder to make.
        backbone: source of the image encoder, see `models/sources.py`.
        runs: run folders of the methods, all trained on that backbone with one tokenizer; one that
            trained the backbone along brings its own.
        labels: what people read about it.
        gallery: a folder with `gallery.json` that is to come with the pack.
        force: replace what is at `out`.

    Returns:
        The pack's description.

    Raises:
        FileExistsError: there is something at `out`, and `force` is off.
        ValueError: the run folders do not fit together, or a value makes no sense.
        DriftError: the result does not compute what torch computes.
    """
    check_name(labels.name, "--name")
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists; choose another folder, or replace it with --force")
    encoder = load_backbone(backbone)
    trained = _load_methods(runs, encoder)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        work = Path(folder) / "pack"
        info = _write_pack(work, encoder, trained, labels, gallery)
        load_info(work)
        if out.exists():
            out.rename(Path(folder) / "replaced")
        work.rename(out)
    return replace(info, folder=out)


def _load_methods(runs: Sequence[Path], backbone: TrainedBackbone) -> dict[str, TrainedMethod]:
    trained: dict[str, TrainedMethod] = {}
    for folder in runs:
        run = load_method(folder, backbone)
        if run.name in trained:
            raise ValueError(f"{folder} and {trained[run.name].folder} both hold {run.name}")
        trained[run.name] = run
    if not trained:
        raise ValueError("a pack needs at least one method; pass --run")
    first, *others = trained.values()
    for run in others:
        if run.tokenizer.read_bytes() != first.tokenizer.read_bytes():
            raise ValueError(
                f"{run.folder} and {first.folder} have different tokenizers, but a pack holds one; "
                "train both with the same captions and text settings"
            )
    return trained


def _write_pack(
    work: Path,
    backbone: TrainedBackbone,
    trained: dict[str, TrainedMethod],
    labels: Labels,
    gallery: Path | None,
) -> PackInfo:
    pairs = {name: stacks(backbone, run) for name, run in trained.items()}
    work.mkdir()
    encoder, size = backbone.rounded, backbone.preprocess.size
    own = [f"{name}/{IMAGE_ENCODER}" for name, run in trained.items() if run.has_image_encoder]
    # where no method reads the backbone as it came, the first method's own stands for it
    image_encoder = own[0] if len(own) == len(trained) else IMAGE_ENCODER
    if image_encoder == IMAGE_ENCODER:
        export_image_encoder(encoder, size, work / IMAGE_ENCODER)
    first = next(iter(trained.values()))
    shutil.copyfile(first.tokenizer, work / TOKENIZER)
    _copy_logs(Path(backbone.source), work / "training" / "backbone")
    methods = {}
    for name, run in trained.items():
        methods[name] = _write_method(work, run, pairs[name][0], size)
        _copy_logs(run.folder, work / "training" / name)
    listed = [path for path in sorted(work.rglob("*")) if path.is_file()]
    if gallery is not None:
        _copy_gallery(gallery, work / FOLDER)
        listed.append(work / FOLDER / INDEX)
    described = ImageEncoderInfo(
        image_encoder, encoder.dim, encoder.grid(size), encoder.summary_token
    )
    info = PackInfo(
        folder=work,
        **asdict(labels),
        preprocess=backbone.preprocess,
        image_encoder=described,
        tokenizer=TokenizerInfo(TOKENIZER, first.max_length or MAX_LENGTH),
        methods=methods,
        files={path.relative_to(work).as_posix(): describe_file(path) for path in listed},
        gallery=None if gallery is None else summarize_gallery(work),
    )
    write_info(info)
    return _with_parity(info, pairs)


def _write_method(work: Path, run: TrainedMethod, stack: TorchStack, size: int) -> MethodInfo:
    text_encoder, head = f"{run.name}/text_encoder.onnx", f"{run.name}/head.safetensors"
    if run.shared_text is not None:
        text_encoder = f"text_encoder-{run.shared_text[:12]}.onnx"
    if not (work / text_encoder).is_file():
        export_text_encoder(stack.text_encoder, work / text_encoder)
    image_encoder = None
    if run.has_image_encoder and stack.image_encoder is not None:
        image_encoder = f"{run.name}/{IMAGE_ENCODER}"
        export_image_encoder(stack.image_encoder, size, work / image_encoder)
    weights = stack.method.state_dict()
    stored = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    arguments = run.about.mapping("arguments")
    save_tensors(work / head, stored, {"kind": "head", "method": run.name, "arguments": arguments})
    return MethodInfo(
        arguments=arguments,
        image_dim=run.about.integer("image_dim", least=1),
        text_dim=run.about.integer("text_dim", least=1),
        text_encoder=text_encoder,
        head=head,
        config=run.about.mapping("config"),
        parity={},
        image_encoder=image_encoder,
    )


def _with_parity(info: PackInfo, pairs: dict[str, tuple[TorchStack, TorchStack]]) -> PackInfo:
    """Measures every method of the pack just written, and notes the outcome in it."""
    runtime = Runtime.load(info.folder, "cpu")
    methods = {}
    for name, (rounded, original) in pairs.items():
        parity = check_parity(runtime, name, rounded, original)
        methods[name] = replace(info.methods[name], parity=asdict(parity))
    checked = replace(info, methods=methods)
    write_info(checked)
    return checked


def _copy_logs(run: Path, target: Path) -> None:
    for name in LOGS:
        if (run / name).is_file():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run / name, target / name)


def _copy_gallery(source: Path, target: Path) -> None:
    gallery = load_gallery(source)
    for file in (INDEX, *gallery.files):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(gallery.folder / file, target / file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export.to_onnx", description="Build a pack from run folders."
    )
    add = parser.add_argument
    said = "image encoder: run folder, Hugging Face folder or Hub id"
    add("--backbone", required=True, help=said)
    add("--run", type=Path, action="append", required=True, help="run folder of a method; repeat")
    add("--gallery", type=Path, help="folder with gallery.json that comes with the pack")
    add("--out", type=Path, required=True, help="the pack's folder")
    add("--force", action="store_true", help="replace what is at --out")
    add("--name", default="scenes", help="short name: lower-case letters, digits, underscores")
    add("--title", default="Scenes", help="name for people")
    add("--licence", default="Apache-2.0", help="SPDX identifier of the weights' licence")
    add("--credits", default="Noto Color Emoji (OFL 1.1)", help="whose work is in the pack")
    add(
        "--description",
        default="Retrieval in a rendered world of scenes, trained from random weights.",
        help="one or two sentences",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parser().parse_args(argv)
    labels = Labels(
        options.name, options.title, options.licence, options.credits, options.description
    )
    try:
        info = build_pack(
            options.out, options.backbone, options.run, labels, options.gallery, options.force
        )
    except (ValueError, OSError) as error:
        print(f"export failed: {error}", file=sys.stderr)
        return 1
    for name, method in info.methods.items():
        print(f"{name}: ONNX and torch differ by {method.parity['numbers']:.1e}, ranking identical")
    print(f"{options.out}: {sum(file.bytes for file in info.files.values()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
