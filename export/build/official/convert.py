"""The authors' checkpoints as packs.

python -m export.official --from vse_infty --hub cccjc/vse-infty/f30k_wsl_grid_bert --out PACK
python -m export.official --from vse_infty model_best.pth --vocab f30k_vocab.json --out PACK
python -m export.official --from pvse model_best.pth.tar --vocab vocab.json --out PACK
python -m export.official --from avse model_best.pth --text-backbone bert-base-uncased --out PACK
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from export.build.command import Labels, labels_from, pack_parser, run_command
from export.build.official.checkpoint import OfficialError, read_checkpoint
from export.build.official.releases import RELEASES
from export.build.official.vocabulary import MAX_LENGTH
from export.build.pack import MethodParts, PackParts, build_pack
from export.hub.checkpoints import fetch_checkpoint
from export.pack.schema import UNKNOWN_LICENCE, PackInfo
from models import METHODS

# options that only one release reads
_ONLY = {"image_backbone": "avse", "block_dim": "avse", "centres": "avse", "legacy_text": "pvse"}


def convert(options: argparse.Namespace) -> PackInfo:
    """What the command does; see `main`."""
    if (options.checkpoint is None) == (options.hub is None):
        raise OfficialError("name a checkpoint file, or one on the Hub with --hub, and not both")
    for name, release in _ONLY.items():
        if getattr(options, name) is not None and options.release != release:
            option = f"--{name.replace('_', '-')}"
            raise OfficialError(f"{option} is for {release} only; leave it out")
    path, origin = options.checkpoint, str(options.checkpoint and options.checkpoint.name)
    if options.hub is not None:
        path, origin = fetch_checkpoint(options.hub)
    checkpoint = read_checkpoint(path)
    name = options.release
    looks = next((key for key, (sign, *_) in RELEASES.items() if checkpoint.count(sign)), None)
    if looks != name:
        hint = f"looks like one of {looks}; pass --from {looks}" if looks else "is unknown"
        raise OfficialError(f"{path} is no checkpoint of {name}: it {hint}")
    conversion = RELEASES[name][2](checkpoint, options)
    text = conversion.stack.text_encoder
    config = {
        "origin": origin,
        "sha256": checkpoint.sha256,
        "options": {k: v for k, v in checkpoint.options.items() if _is_plain(v)},
        "stored": checkpoint.stored,
        "not_stored": conversion.notes,
    }
    parts = PackParts(
        image_encoder=conversion.stack.image_encoder,
        image_dim=conversion.image_dim,
        preprocess=conversion.preprocess,
        tokenizer=conversion.tokenizer.to_str(pretty=True),
        max_length=min(MAX_LENGTH, text.max_length or MAX_LENGTH),
        methods={name: MethodParts(conversion.stack, conversion.arguments, config)},
        gallery=options.gallery,
        half=False,  # the weights stay as they were published
    )
    return build_pack(options.out, _labels(options, origin, conversion.notes), parts)


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold an option's value: a number, a text, or a list of them."""
    plain = str | int | float | None
    return isinstance(value, plain) or (
        isinstance(value, list) and all(isinstance(item, plain) for item in value)
    )


def _labels(options: argparse.Namespace, origin: str, notes: Sequence[str]) -> Labels:
    """What people read about the pack; options that were given win."""
    method, code = METHODS[options.release], RELEASES[options.release][1]
    parts = origin.partition("@")[0].split("/")
    short = parts[-2] if len(parts) > 3 else parts[-1].partition(".")[0]  # folder, or file
    return labels_from(
        options,
        name=re.sub(r"[^a-z0-9]+", "_", f"{options.release}_{short}".lower()).strip("_")[:64],
        title=f"{method.title}, the authors' weights",
        licence=UNKNOWN_LICENCE,
        credits=(
            f"Weights by the authors of {method.title} ({method.paper}); code: {code}; which "
            "licence the weights have is not said with them"
        ),
        description=f"Converted from {origin}. What is not stored with it: {' '.join(notes)}",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = pack_parser("official", "Make a pack of a released checkpoint.")
    add = parser.add_argument
    add("checkpoint", type=Path, nargs="?", help="the released file")
    add("--from", dest="release", choices=RELEASES, required=True, help="whose release it is")
    add("--hub", help="owner/name/FOLDER_OR_FILE[@REVISION] in place of a file")
    add("--vocab", type=Path, help="word list, JSON with word2idx; for models that read words")
    add("--text-backbone", help="folder or Hub id with BERT's word pieces and config.json")
    add("--image-backbone", type=Path, help="folder with the config.json of AVSE's ViT")
    legacy = "PVSE: read texts, and clips, in the legacy way, as its published models need"
    add("--legacy-text", action=argparse.BooleanOptionalAction, help=legacy)
    add("--block-dim", type=int, help="AVSE: size of the matched blocks (256)")
    add("--centres", type=int, nargs="+", help="AVSE: a patch for each view, row-major from 0")
    return run_command(parser, convert, argv, "conversion failed")
