"""A pack that searches with CLIP as it was pre-trained: `python -m export.clip --help`.

    python -m export.clip --from openai/clip-vit-base-patch32 --out PACK

CLIP is brought into the form of a training run, of which no epoch was trained; from there on it is
exported like any other (`export/to_onnx.py`), parity with torch included. Methods that were trained
on the same CLIP can be put into the same pack (`export/merge.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from export.manifest import PackInfo
from export.pack import describe_file
from export.to_onnx import Labels, build_pack
from export.trained import TOKENIZER, WEIGHTS
from models.checkpoint import save_tensors
from models.encoder import ImageEncoder, TextEncoder
from models.pretrained_image import CLIPImageEncoder
from models.pretrained_text import CLIPTextEncoder
from models.sources import (
    describe_image_source,
    describe_text_source,
    load_image_source,
    load_text_source,
)

METHOD = "clip"


def build_clip(
    out: Path, source: str, labels: Labels, gallery: Path | None = None, force: bool = False
) -> PackInfo:
    """Builds a pack of zero-shot CLIP.

    Args:
        out: the folder to make.
        source: a CLIP in the Hub's format, as a folder or a Hub id; see `models/sources.py`.
        labels: what people read about it.
        gallery: a folder with `gallery.json` that is to come with the pack.
        force: replace what is at `out`.

    Returns:
        The pack's description.

    Raises:
        FileExistsError: there is something at `out`, and `force` is off.
        ValueError: the source is no CLIP, or cannot be had.
        DriftError: the result does not compute what torch computes.
    """
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists; choose another folder, or replace it with --force")
    with tempfile.TemporaryDirectory(prefix="clip-") as folder:
        run = Path(folder) / METHOD
        write_run(run, source)
        return build_pack(out, source, [run], labels, gallery, force)


def write_run(folder: Path, source: str) -> None:
    """Writes the run folder that a training of CLIP without any epoch would leave behind."""
    image_encoder, _, _ = load_image_source(f"{source}#projected", rounded=False)
    text_encoder, tokenizer, _ = load_text_source(f"{source}#projected", rounded=False)
    image_map, text_map = _projection(image_encoder, source), _projection(text_encoder, source)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / TOKENIZER))
    plain = describe_text_source(source)
    about: dict[str, Any] = {
        "kind": "run",
        "method": METHOD,
        "arguments": {"embed_dim": len(image_map)},
        "image_dim": image_map.shape[1],
        "text_dim": text_map.shape[1],
        "text_encoder": {
            key: plain[key] for key in ("arch", "arguments", "max_length", "source", "sha256")
        },
        "config": {"method": METHOD, "backbone": source, "text": {"source": source}, "seed": 0},
        "backbone_sha256": describe_image_source(source)["sha256"],
        "tokenizer_sha256": describe_file(folder / TOKENIZER).sha256,
    }
    tensors = {"project_image.weight": image_map, "project_text.weight": text_map}
    save_tensors(folder / WEIGHTS, {f"method.{k}": v for k, v in tensors.items()}, about)


def _projection(encoder: ImageEncoder | TextEncoder, source: str) -> Tensor:
    """The map (D, d) from an encoder's width to the joint space."""
    if not isinstance(encoder, CLIPImageEncoder | CLIPTextEncoder) or encoder.projection is None:
        raise ValueError(f"{source} is not a CLIP with a joint space of images and texts")
    return encoder.projection.weight


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export.clip", description="Build a pack of zero-shot CLIP."
    )
    add = parser.add_argument
    said = "CLIP's folder or Hub id, with an optional @revision"
    add("--from", dest="source", required=True, metavar="SOURCE", help=said)
    add("--out", type=Path, required=True, help="the pack's folder")
    add("--gallery", type=Path, help="folder with gallery.json that comes with the pack")
    add("--force", action="store_true", help="replace what is at --out")
    add("--name", default=METHOD, help="short name: lower-case letters, digits, underscores")
    add("--title", default="CLIP", help="name for people")
    add("--licence", default="other", help="SPDX identifier of the weights' licence")
    add("--credits", help="whose work is in the pack; the source without it")
    add(
        "--description",
        default="Zero-shot retrieval with CLIP (Radford et al., ICML 2021), as it was pre-trained.",
        help="one or two sentences",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parser().parse_args(argv)
    named = options.credits or f"CLIP, weights of {Path(options.source).name}"
    labels = Labels(options.name, options.title, options.licence, named, options.description)
    try:
        info = build_clip(options.out, options.source, labels, options.gallery, options.force)
    except (ValueError, OSError) as error:
        print(f"export failed: {error}", file=sys.stderr)
        return 1
    parity = info.methods[METHOD].parity["numbers"]
    print(f"{METHOD}: ONNX and torch differ by {parity:.1e}, ranking identical")
    print(f"{options.out}: {sum(file.bytes for file in info.files.values()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
