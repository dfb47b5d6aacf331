"""Shared options and errors of the commands `polyview clip`, `export` and `official`."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from polyview.export.pack.schema import Labels, PackInfo
from polyview.export.pack.validation import check

_LABELS = {
    "name": "short name: lower-case letters, digits, underscores",
    "title": "display name",
    "licence": "SPDX identifier of the weights' licence",
    "credits": "authors and sources of the content",
    "description": "one or two sentences",
}


def pack_parser(command: str, purpose: str) -> argparse.ArgumentParser:
    """Returns a parser of `polyview COMMAND` with the shared options."""
    parser = argparse.ArgumentParser(prog=f"python -m polyview {command}", description=purpose)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the new pack")
    add("--force", action="store_true", help="replace the folder at --out")
    add("--gallery", type=Path, help="gallery folder (with a gallery.json) to copy into the pack")
    for label, meaning in _LABELS.items():
        add(f"--{label}", help=meaning)
    return parser


def pack_name(text: str) -> str:
    """Converts a text to a pack name, at most 64 characters of a-z, 0-9 and "_"."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:64]


def labels_from(options: argparse.Namespace, **defaults: str) -> Labels:
    """Builds labels from `options`, or `defaults` for missing ones; raises PackError if invalid."""
    values = {name: getattr(options, name) or defaults.get(name) for name in _LABELS}
    return check(Labels, values, "labels of the pack")


def run_command(
    parser: argparse.ArgumentParser,
    build: Callable[[argparse.Namespace], PackInfo],
    argv: Sequence[str] | None,
) -> int:
    """Builds a pack from command-line options, prints the result and returns the exit status.

    The folder at `--out` is replaced only with `--force`. Prints an error as one line on stderr.
    """
    options = parser.parse_args(argv)
    try:
        if (out := options.out).exists() and not options.force:
            raise FileExistsError(f"{out} exists; choose another folder, or add --force")
        info = build(options)
    except (ValueError, OSError) as error:
        print(f"export failed: {error}", file=sys.stderr)
        return 1
    for name, method in info.methods.items():
        assert method.parity is not None  # measured by `build_pack`
        print(f"{name}: ONNX and torch differ by {method.parity.numbers:.1e}, ranking identical")
    print(f"{info.folder}: {sum(file.bytes for file in info.files.values()) / 1e6:.1f} MB")
    return 0
