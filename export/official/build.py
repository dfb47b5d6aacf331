"""A pack from a converted checkpoint: weights in single precision, as they were published."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from export.graph import export_image_encoder, export_text_encoder
from export.manifest import ImageEncoderInfo, MethodInfo, PackInfo, TokenizerInfo
from export.manifest_parser import check_name
from export.official.checkpoint import Checkpoint
from export.official.conversion import Conversion
from export.pack import describe_file, load_info, write_info
from export.parity import RANKED, check_parity
from export.runtime import Runtime
from export.to_onnx import IMAGE_ENCODER, TOKENIZER, Labels
from export.trained import TorchStack
from models.checkpoint import save_tensors

LARGE = 256  # pixels; from here on few pictures are compared, because each takes seconds
FEW = 4


def build_official(
    out: Path,
    conversion: Conversion,
    checkpoint: Checkpoint,
    labels: Labels,
    origin: str,
    force: bool = False,
) -> PackInfo:
    """Builds a pack beside its target, compares it with torch, and moves it into place.

    Args:
        out: the folder to make.
        conversion: what the checkpoint gave.
        checkpoint: the checkpoint itself, for what the pack says about its origin.
        labels: what people read about the pack.
        origin: where the checkpoint is from.
        force: replace what is at `out`.

    Returns:
        The pack's description.

    Raises:
        FileExistsError: there is something at `out`, and `force` is off.
        DriftError: the result does not compute what torch computes.
    """
    check_name(labels.name, "--name")
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists; choose another folder, or replace it with --force")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        work = Path(folder) / "pack"
        info = _write_pack(work, conversion, labels, _about(conversion, checkpoint, origin))
        load_info(work)
        if out.exists():
            out.rename(Path(folder) / "replaced")
        work.rename(out)
    return replace(info, folder=out)


def _about(conversion: Conversion, checkpoint: Checkpoint, origin: str) -> dict[str, Any]:
    """What pack.json keeps as the method's configuration."""
    plain = (str, int, float, bool, type(None))
    lists = {k: v for k, v in checkpoint.options.items() if isinstance(v, list)}
    return {
        "origin": origin,
        "sha256": checkpoint.sha256,
        "options": {
            **{k: v for k, v in checkpoint.options.items() if isinstance(v, plain)},
            **{k: v for k, v in lists.items() if all(isinstance(item, plain) for item in v)},
        },
        "stored": checkpoint.stored,
        "not_stored": list(conversion.notes),
    }


def _write_pack(
    work: Path, conversion: Conversion, labels: Labels, about: dict[str, Any]
) -> PackInfo:
    name, image = conversion.name, conversion.image_encoder
    size = conversion.preprocess.size
    work.mkdir()
    if image is not None:
        export_image_encoder(image, size, work / IMAGE_ENCODER)
    conversion.tokenizer.save(str(work / TOKENIZER))
    text_encoder, head = f"{name}/text_encoder.onnx", f"{name}/head.safetensors"
    export_text_encoder(conversion.text_encoder, work / text_encoder)
    described = {"kind": "head", "method": name, "arguments": conversion.arguments}
    save_tensors(work / head, conversion.method.state_dict(), described)
    method = MethodInfo(
        arguments=conversion.arguments,
        image_dim=conversion.image_dim,
        text_dim=conversion.text_encoder.dim,
        text_encoder=text_encoder,
        head=head,
        config=about,
        parity={},
    )
    files = [path for path in sorted(work.rglob("*")) if path.is_file()]
    info = PackInfo(
        folder=work,
        **asdict(labels),
        preprocess=conversion.preprocess,
        image_encoder=ImageEncoderInfo(
            None if image is None else IMAGE_ENCODER,
            conversion.image_dim,
            (1, 1) if image is None else image.grid(size),
            image is not None and image.summary_token,
        ),
        tokenizer=TokenizerInfo(TOKENIZER, conversion.max_length),
        methods={name: method},
        files={path.relative_to(work).as_posix(): describe_file(path) for path in files},
    )
    write_info(info)
    stack = TorchStack(image, conversion.text_encoder, conversion.method)
    ranked = FEW if size > LARGE else RANKED
    parity = check_parity(Runtime.load(work, "cpu"), name, stack, stack, ranked)
    checked = replace(info, methods={name: replace(method, parity=asdict(parity))})
    write_info(checked)
    return checked
