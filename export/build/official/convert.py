"""The authors' checkpoints as packs.

python -m export.official --from vse_infty --hub cccjc/vse-infty/f30k_wsl_grid_bert --out PACK
python -m export.official --from vse_infty model_best.pth --vocab f30k_vocab.json --out PACK
python -m export.official --from pvse model_best.pth.tar --vocab vocab.json --out PACK
python -m export.official --from avse model_best.pth --text-backbone bert-base-uncased --out PACK
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.build.official import avse, mv_vse, pvse, vse_infty
from export.build.official.checkpoint import Checkpoint, OfficialError, read_checkpoint
from export.build.official.conversion import Conversion, Given
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
from export.hub.checkpoints import fetch_checkpoint
from export.pack.schema import UNKNOWN_LICENCE, PackInfo
from models import METHODS

# options that only one family reads
ONLY = {"image_backbone": "avse", "block_dim": "avse", "centres": "avse", "legacy_text": "pvse"}


@dataclass(frozen=True)
class Family:
    """One release.

    Attributes:
        convert: reads its checkpoints.
        sign: a key that its checkpoints have and the others do not.
        code: where its code is published, and under which licence.
    """

    convert: Callable[[Checkpoint, Given], Conversion]
    sign: str
    code: str


FAMILIES = {
    "vse_infty": Family(
        vse_infty.convert, r"(image_encoder\.)?gpool\.", "github.com/woodfrog/vse_infty, MIT"
    ),
    "pvse": Family(pvse.convert, r"(img_enc\.)?cnn\.", "github.com/yalesong/pvse, MIT"),
    "mv_vse": Family(mv_vse.convert, r"fc_list\.", "the authors' repository"),
    "avse": Family(avse.convert, r"img_enc\.visual_encoder\.", "github.com/liuyyy111/AVSE, MIT"),
}


def convert(family: str, path: Path, given: Given) -> tuple[Checkpoint, Conversion]:
    """Reads a released checkpoint.

    Args:
        family: key of `FAMILIES`.
        path: the checkpoint.
        given: what comes beside it.

    Raises:
        FileNotFoundError: a file is missing.
        OfficialError: it cannot be read, or is no checkpoint of this release.
    """
    checkpoint = read_checkpoint(path)
    found = _recognize(checkpoint)
    if found != family:
        looks = f"looks like one of {found}; pass --from {found}" if found else "is unknown"
        raise OfficialError(f"{path} is no checkpoint of {family}: it {looks}")
    return checkpoint, FAMILIES[family].convert(checkpoint, given)


def _recognize(checkpoint: Checkpoint) -> str | None:
    """The family whose sign the weights bear."""
    keys = checkpoint.parts[0]
    for name, family in FAMILIES.items():
        if any(re.match(family.sign, key) for key in keys):
            return name
    return None


def labels_for(
    family: str, origin: str, conversion: Conversion, options: argparse.Namespace
) -> Labels:
    """What people read about the pack; options that were given win."""
    method = METHODS[conversion.name]
    stem = re.sub(r"[^a-z0-9]+", "_", _short(origin).lower()).strip("_")
    notes = " ".join(note for note in conversion.notes if note)
    return labels_of(
        options,
        name=f"{family}_{stem}"[:64],
        title=f"{method.title}, the authors' weights",
        licence=UNKNOWN_LICENCE,
        credits=(
            f"Weights by the authors of {method.title} ({method.paper}); code: "
            f"{FAMILIES[family].code}; which licence the weights have is not said with them"
        ),
        description=f"Converted from {origin}. What is not stored with the weights: {notes}",
    )


def _short(origin: str) -> str:
    """The telling part of where a checkpoint is from: its folder on the Hub, else its file."""
    parts = origin.partition("@")[0].split("/")
    return parts[-2] if len(parts) > 3 else parts[-1].partition(".")[0]


def run(options: argparse.Namespace) -> PackInfo:
    """What the command does; see `main`."""
    if (options.checkpoint is None) == (options.hub is None):
        raise OfficialError("name a checkpoint file, or one on the Hub with --hub, and not both")
    for name, family in ONLY.items():
        if getattr(options, name) is not None and options.family != family:
            option = f"--{name.replace('_', '-')}"
            raise OfficialError(f"{option} is for {family} only; leave it out")
    refuse_existing(options.out, options.force)
    path, origin = (
        (options.checkpoint, options.checkpoint.name)
        if options.hub is None
        else fetch_checkpoint(options.hub)
    )
    given = Given(
        options.vocab,
        options.text_backbone,
        options.image_backbone,
        options.legacy_text,
        options.block_dim,
        None if options.centres is None else tuple(options.centres),
    )
    checkpoint, conversion = convert(options.family, path, given)
    labels = labels_for(options.family, origin, conversion, options)
    about = _about(conversion, checkpoint, origin)
    return build_pack(
        options.out, labels, _parts(conversion, about, options.gallery), options.force
    )


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


def _parts(conversion: Conversion, about: dict[str, Any], gallery: Path | None) -> PackParts:
    """What the pack is made of; the weights stay in single precision, as they were published."""
    stack = TorchStack(conversion.image_encoder, conversion.text_encoder, conversion.method)
    return PackParts(
        image_encoder=conversion.image_encoder,
        image_dim=conversion.image_dim,
        preprocess=conversion.preprocess,
        tokenizer=conversion.tokenizer.to_str(pretty=True),
        max_length=conversion.max_length,
        methods={conversion.name: MethodParts(conversion.arguments, about, stack, stack)},
        gallery=gallery,
    )


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("official", "Make a pack of a released checkpoint.")
    add = parser.add_argument
    add("checkpoint", type=Path, nargs="?", help="the released file")
    add("--from", dest="family", choices=FAMILIES, required=True, help="whose release it is")
    add("--hub", help="owner/name/FOLDER_OR_FILE[@REVISION] in place of a file")
    add("--vocab", type=Path, help="word list, JSON with word2idx; for models that read words")
    add("--text-backbone", help="folder or Hub id with BERT's word pieces and config.json")
    add("--image-backbone", type=Path, help="folder with the config.json of AVSE's ViT")
    add(
        "--legacy-text",
        action=argparse.BooleanOptionalAction,
        help="PVSE: read texts, and clips, in the legacy way, as its published models need",
    )
    add("--block-dim", type=int, help="AVSE: size of the matched blocks (256)")
    add("--centres", type=int, nargs="+", help="AVSE: a patch for each view, row-major from 0")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    return run_command(run, _parser(), argv, "conversion failed")
