"""The command line, `python -m polyview hub`.

push PACK owner/name[@BRANCH] [--private]
pull owner/name[@BRANCH_TAG_OR_COMMIT]
list [--author NAME]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from polyview.export.hub.client import cached_commit
from polyview.export.hub.packs import list_packs, pull, push

_HEADER = ("PACK", "COMMIT", "LICENCE", "METHODS", "CACHED")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m polyview hub", description="Share packs.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("push", help="upload a pack")
    up.add_argument("pack", type=Path, help="the pack's folder")
    up.add_argument("address", help="owner/name, or owner/name@branch")
    up.add_argument("--private", action="store_true", help="make a new repository private")
    down = commands.add_parser("pull", help="download a pack, print its commit and its folder")
    down.add_argument("address", help="owner/name, or owner/name@branch, tag or commit")
    listed = commands.add_parser("list", help="packs on the Hub, and which of them are cached")
    listed.add_argument("--author", help="only this owner's")
    for command in (up, down, listed):
        command.add_argument("--token", help="else HF_TOKEN, else the client's login")
    options = parser.parse_args(argv)
    try:
        if options.command == "push":
            print(push(options.pack, options.address, options.private, options.token))
        elif options.command == "pull":
            folder = pull(options.address, options.token)
            print("@".join(cached_commit(folder) or ()), file=sys.stderr)
            print(folder)
        else:
            rows = [_HEADER, *list_packs(options.author, options.token)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                cells = zip(row, widths, strict=True)
                print("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    except (ValueError, FileNotFoundError) as error:
        print(f"{options.command} failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
