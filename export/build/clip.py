"""A pack that searches with CLIP or SigLIP as pre-trained: `python -m export.clip --help`.

    python -m export.clip --from openai/clip-vit-base-patch32 --out PACK

Methods that were trained on the same CLIP can be put into the same pack (`export/build/merge.py`).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import models
from export.build.graph import round_to_half
from export.build.pack import (
    Labels,
    MethodParts,
    PackParts,
    build_pack,
    labels_of,
    parser_of,
    refuse_existing,
    run_command,
)
from export.build.parity import TorchStack
from export.build.trained import load_backbone
from export.hub.sources import describe_text_source, load_image_source, load_text_source
from export.pack.schema import PackInfo
from models.checkpoint import load_strict
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.pretrained_image import CLIPImageEncoder
from models.encoders.pretrained_text import CLIPTextEncoder
from models.encoders.siglip import SiglipImageEncoder, SiglipTextEncoder

METHOD = "clip"
DESCRIPTION = "Zero-shot retrieval with CLIP (ICML 2021) or SigLIP (ICCV 2023), as pre-trained."


def build_clip(
    out: Path, source: str, labels: Labels, gallery: Path | None = None, force: bool = False
) -> PackInfo:
    """Builds a pack of zero-shot CLIP.

    Args:
        out: the folder to make.
        source: a CLIP or SigLIP in the Hub's format, as a folder or a Hub id; see
            `export/hub/sources.py`.
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
    refuse_existing(out, force)
    image_encoder, _, _ = load_image_source(f"{source}#projected", rounded=False)
    text_encoder, tokenizer, _ = load_text_source(f"{source}#projected", rounded=False)
    maps = {
        "project_image.weight": _projection(image_encoder, source),
        "project_text.weight": _projection(text_encoder, source),
    }
    backbone = load_backbone(source)
    embed_dim, image_dim = maps["project_image.weight"].shape
    arguments = {"embed_dim": embed_dim}

    def stack(images: ImageEncoder, heads: dict[str, Tensor], *, rounded: bool) -> TorchStack:
        text, _, _ = load_text_source(source, rounded=rounded)
        method = models.build(METHOD, image_dim, text.dim, arguments)
        load_strict(method, heads, source)
        return TorchStack(images, text.eval(), method.eval())

    rounded = stack(backbone.rounded, round_to_half(maps, source), rounded=True)
    original = stack(backbone.original, maps, rounded=False)
    about = describe_text_source(source)
    config = {"method": METHOD, "backbone": source, "text": {"source": source}, "seed": 0}
    parts = PackParts(
        image_encoder=backbone.rounded,
        image_dim=image_dim,
        preprocess=backbone.preprocess,
        tokenizer=tokenizer.to_str(pretty=True),
        max_length=about["max_length"],
        methods={
            METHOD: MethodParts(arguments, config, rounded, original, shared_text=about["sha256"])
        },
        gallery=gallery,
    )
    return build_pack(out, labels, parts, force)


def _projection(encoder: ImageEncoder | TextEncoder, source: str) -> Tensor:
    """The map (D, d) from an encoder's width to the joint space; none is needed by SigLIP."""
    if isinstance(encoder, SiglipImageEncoder | SiglipTextEncoder):
        return torch.eye(encoder.dim)
    if not isinstance(encoder, CLIPImageEncoder | CLIPTextEncoder) or encoder.projection is None:
        raise ValueError(f"{source} is not a CLIP with a joint space of images and texts")
    return encoder.projection.weight.detach()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = parser_of(
        "clip",
        "Build a pack of zero-shot CLIP.",
        name=METHOD,
        title="CLIP",
        licence="other",
        description=DESCRIPTION,
    )
    what = "CLIP's folder or Hub id, with an optional @revision"
    parser.add_argument("--from", dest="source", required=True, metavar="SOURCE", help=what)

    def build(given: argparse.Namespace) -> PackInfo:
        labels = labels_of(given, credits=f"CLIP, weights of {Path(given.source).name}")
        return build_clip(given.out, given.source, labels, given.gallery, given.force)

    return run_command(build, parser, argv)
