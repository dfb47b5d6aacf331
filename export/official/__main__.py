"""The authors' checkpoints as packs.

python -m export.official --from vse_infty --hub cccjc/vse-infty/f30k_wsl_grid_bert --out PACK
python -m export.official --from vse_infty model_best.pth --vocab f30k_vocab.json --out PACK
python -m export.official --from pvse model_best.pth.tar --vocab vocab.json --out PACK
python -m export.official --from avse model_best.pth --text-backbone bert-base-uncased --out PACK
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from export.official import avse, mv_vse, pvse, vse_infty
from export.official.build import build_official
from export.official.checkpoint import Checkpoint, OfficialError, read_checkpoint
from export.official.conversion import Conversion, Given
from export.official.source import fetch_checkpoint
from export.pack import PackInfo
from export.to_onnx import Labels
from models import METHODS

UNKNOWN_LICENCE = "unknown"


# options that only one family reads
ONLY = {
    "image_backbone": "avse",
    "block_dim": "avse",
    "centres": "avse",
    "legacy_text": "pvse",
}


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
    said = " ".join(note for note in conversion.notes if note)
    return Labels(
        options.name or f"{family}_{stem}"[:64],
        options.title or f"{method.title}, the authors' weights",
        options.licence or UNKNOWN_LICENCE,
        options.credits
        or (
            f"Weights by the authors of {method.title} ({method.paper}); code: "
            f"{FAMILIES[family].code}; which licence the weights have is not said with them"
        ),
        options.description
        or f"Converted from {origin}. What is not stored with the weights: {said}",
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
    if options.out.exists() and not options.force:
        raise FileExistsError(
            f"{options.out} exists; choose another folder, or replace it with --force"
        )
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
    return build_official(options.out, conversion, checkpoint, labels, origin, options.force)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export.official", description="Make a pack of a released checkpoint."
    )
    add = parser.add_argument
    add("checkpoint", type=Path, nargs="?", help="the released file")
    add("--from", dest="family", choices=FAMILIES, required=True, help="whose release it is")
    add("--hub", help="owner/name/FOLDER_OR_FILE[@REVISION] in place of a file")
    add("--out", type=Path, required=True, help="the pack's folder")
    add("--force", action="store_true", help="replace what is at --out")
    add("--vocab", type=Path, help="word list, JSON with word2idx; for models that read words")
    add("--text-backbone", help="folder or Hub id with BERT's word pieces and config.json")
    add("--image-backbone", type=Path, help="folder with the config.json of AVSE's ViT")
    add(
        "--legacy-text",
        action=argparse.BooleanOptionalAction,
        help="PVSE: read texts in the legacy way, as its published models need",
    )
    add("--block-dim", type=int, help="AVSE: size of the matched blocks (256)")
    add("--centres", type=int, nargs="+", help="AVSE: a patch for each view, row-major from 0")
    for name, what in (
        ("name", "short name: lower-case letters, digits, underscores"),
        ("title", "name for people"),
        ("licence", "licence of the weights, if you know it"),
        ("credits", "whose work is in the pack"),
        ("description", "one or two sentences"),
    ):
        add(f"--{name}", help=what)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        info = run(options)
    except (ValueError, OSError) as error:
        print(f"conversion failed: {error}", file=sys.stderr)
        return 1
    for name, method in info.methods.items():
        print(f"{name}: ONNX and torch differ by {method.parity['numbers']:.1e}, ranking identical")
    print(f"{options.out}: {sum(file.bytes for file in info.files.values()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
