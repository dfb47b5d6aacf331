"""Builds a pack of pre-trained CLIP or SigLIP: `python -m polyview clip`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from polyview import models
from polyview.export.build.command import labels_from, pack_parser, run_command
from polyview.export.build.pack import MethodParts, PackParts, build_pack
from polyview.export.encoders.sources import load_image_source, load_text_source
from polyview.export.pack.schema import Labels, PackInfo
from polyview.models.encoders.rows import ImageRows, TextRows

METHOD = "clip"
DESCRIPTION = "Zero-shot retrieval with CLIP (ICML 2021) or SigLIP (ICCV 2023), as pre-trained."


def build_clip(out: Path, source: str, labels: Labels, gallery: Path | None = None) -> PackInfo:
    """Builds a pack of zero-shot CLIP or SigLIP; an existing folder `out` is replaced.

    `source` is a folder or Hub id of CLIP or SigLIP, see `export/encoders/sources.py`. `gallery` is
    a folder with `gallery.json` to copy. Raises errors as `load_image_source` and `build_pack` do.
    """
    projected = f"{source}#projected"  # only CLIP and SigLIP load with this suffix
    image_encoder, preprocess, _ = load_image_source(projected, rounded=False)
    text_encoder, tokenizer, spec = load_text_source(projected, rounded=False)
    arguments = {"embed_dim": image_encoder.dim, "rows": True}
    head = models.build(METHOD, image_encoder.dim, text_encoder.dim, arguments).eval()
    config = {"method": METHOD, "backbone": source, "text": {"source": source}, "seed": 0}
    image_rows, text_rows = ImageRows(cast(Any, image_encoder)), TextRows(cast(Any, text_encoder))
    method = MethodParts(image_rows, text_rows, head, arguments, config, spec["sha256"])
    parts = PackParts(
        image_encoder=image_rows,
        image_dim=image_encoder.dim,
        preprocess=preprocess,
        tokenizer=tokenizer.to_str(),
        max_length=spec["max_length"],
        methods={METHOD: method},
        gallery=gallery,
        logs={METHOD: Path(source)},  # recipe and log, if Polyview trained the model
    )
    return build_pack(out, labels, parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = pack_parser("clip", "Build a pack of zero-shot CLIP or SigLIP.")
    add = parser.add_argument
    add("--from", dest="source", required=True, help="folder or Hub id of CLIP or SigLIP")

    def build(options: argparse.Namespace) -> PackInfo:
        credit = f"CLIP, weights of {Path(options.source).name}"
        defaults = {"licence": "other", "credits": credit, "description": DESCRIPTION}
        labels = labels_from(options, name=METHOD, title="CLIP", **defaults)
        return build_clip(options.out, options.source, labels, options.gallery)

    return run_command(parser, build, argv)
