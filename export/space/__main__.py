"""The command line: `python -m export.space --out DIR`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from export.space.build import FIRST, HARDWARE, Plan, Space, build_space
from export.space.requirements import ZEROGPU


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    given = _parser().parse_args(argv)
    hardware = ZEROGPU if given.hardware == "zero-gpu" else given.hardware
    packs = given.pack if given.pack is not None else [] if given.hub else [FIRST]
    try:
        plan = Plan(packs, given.hub, hardware, given.title, given.torch_index)
        space = build_space(given.out, plan)
    except (ValueError, OSError) as error:
        print(f"no Space was made: {error}", file=sys.stderr)
        return 1
    _report(space, given.out, hardware)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export.space", description="Write the folder of a Hugging Face Space."
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument(
        "--pack",
        action="append",
        help=f"a bundled pack or a pack's folder to put in (default: {FIRST}); may be repeated, "
        "and the Space starts on the first",
    )
    parser.add_argument(
        "--hub",
        metavar="ID[@REVISION]",
        help="start on this pack, which the Hub fetches as it builds the Space",
    )
    parser.add_argument(
        "--hardware",
        default=Plan.hardware,
        help=f"the machine it is for (default: {Plan.hardware}): zero-gpu, or one of "
        + ", ".join(HARDWARE),
    )
    parser.add_argument("--title", help="what the Hub calls it")
    parser.add_argument(
        "--torch-index",
        metavar="URL",
        help="an extra package index, such as one with CPU builds of torch, which spare a Space "
        "without a GPU several GB",
    )
    return parser


def _report(space: Space, out: Path, hardware: str) -> None:
    print(f"{out}: {space.files} files, {space.bytes / 1e6:.1f} MB, for {hardware}")
    if space.preloaded is not None:
        print(f"it starts on {space.preloaded.address}")
    flavor = f"--flavor {hardware}"
    print(
        "next, logged in with `hf auth login`:\n"
        f"  hf repos create YOU/SPACE --type space --sdk gradio {flavor} --exist-ok\n"
        f"  hf upload YOU/SPACE {out} --type space"
    )


if __name__ == "__main__":
    sys.exit(main())
