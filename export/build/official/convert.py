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

from torch import nn

import models
from export.build.command import Labels, labels_from, pack_parser, run_command
from export.build.offer import fetch_checkpoint
from export.build.official.checkpoint import OfficialError, load_renamed, read_checkpoint
from export.build.official.releases import RELEASES
from export.build.official.vocabulary import MAX_LENGTH
from export.build.pack import MethodParts, PackParts, build_pack
from export.build.parity import TorchStack
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
    checkpoint, name = read_checkpoint(path), options.release
    looks = next((key for key, other in RELEASES.items() if checkpoint.count(other.sign)), None)
    if looks != name:
        hint = f"looks like one of {looks}; pass --from {looks}" if looks else "is unknown"
        raise OfficialError(f"{path} is no checkpoint of {name}: it {hint}")
    read = RELEASES[name].convert(checkpoint, options)
    method = models.build(name, read.image_dim, read.text.dim, read.arguments)
    modules = {"method": method, "text": read.text, "image": read.image}
    given = nn.ModuleDict({key: module for key, module in modules.items() if module is not None})
    load_renamed(given, checkpoint, RELEASES[name].table)
    stack = TorchStack(read.image, read.text, method)
    config = {"origin": origin, **checkpoint.about, "not_stored": read.notes}
    parts = PackParts(
        image_encoder=read.image,
        image_dim=read.image_dim,
        preprocess=read.preprocess,
        tokenizer=read.tokenizer.to_str(pretty=True),
        max_length=min(MAX_LENGTH, read.text.max_length or MAX_LENGTH),
        methods={name: MethodParts(stack, read.arguments, config)},
        gallery=options.gallery,
        half=False,  # the weights stay as they were published
    )
    return build_pack(options.out, _labels(options, origin, read.notes), parts)


def _labels(options: argparse.Namespace, origin: str, notes: Sequence[str]) -> Labels:
    """What people read about the pack; options that were given win."""
    method, code = METHODS[options.release], RELEASES[options.release].code
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
