"""Fetches something from the Hub and makes a pack of it, telling how far it is.

    python -m export.obtain --kind clip --address openai/clip-vit-base-patch32 --out PACK

What it tells is one JSON object on each line of stderr, for a program that follows it:

    {"done": 1048576, "total": 605247071, "doing": "model.safetensors"}
    {"done": 0, "total": 0, "doing": "Converting ..."}
    {"folder": "PACK"}

A line that is none says what went wrong. It ends when its standard input ends, so that nothing goes
on where nobody follows any more. A file that was not fetched whole is removed.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants

from export import clip, official
from export.build.command import Labels
from export.build.offer import CLIP, KINDS, PACK, Offer, look
from export.hub.client import HubError, fetch
from export.hub.packs import pull
from export.pack.schema import UNKNOWN_LICENCE
from models.files import naming_full_disk

INTERRUPTED = 130
_SPARE = 10**8  # bytes of the disk that stay free


def obtain(
    kind: str, address: str, out: Path | None, commit: str | None = None, visitor: bool = False
) -> Path:
    """Fetches what is not cached, and converts it where it is no pack yet.

    Args:
        kind: one of `export.build.offer.KINDS`.
        address: see `export.build.offer.look`.
        out: the folder to make, or to replace once all is well; a pack stays in the Hub client's
            cache and needs none.
        commit: what the address must still hold, as it was looked at; None for whatever it holds.
        visitor: it is for a visitor of an app that others reach: without a token, packs only, and
            no more than `export.hub.packs` allows visitors.

    Returns:
        The pack's folder.

    Raises:
        ValueError: it cannot be had, or is not what it should be; the message is a sentence.
    """
    if kind == PACK:
        return pull(address, False if visitor else None, commit, visitor, report)
    if visitor:
        raise ValueError("visitors load packs only; convert the weights, and name the pack")
    offer = look(kind, address)
    first = offer.parts[0]
    if commit not in (None, first.commit):
        raise HubError(f"{address} has changed since it was looked at; look again")
    if out is None:
        raise ValueError(f"--out is needed: the folder for the pack that {address} becomes")
    _check_room(offer, out)
    for part in offer.parts:
        fetch(part, progress=report)
        part.remember()
    report(0, 0, "Converting, and comparing the result with the original")
    with naming_full_disk(out):
        if kind == CLIP:
            labels = Labels(
                clip.METHOD,
                f"CLIP, {first.repo_id.partition('/')[2]}",
                first.licence or UNKNOWN_LICENCE,
                f"CLIP, weights of {first.repo_id}@{first.commit}",
                clip.DESCRIPTION,
            )
            clip.build_clip(out, address, labels)
            return out
        licence = ["--licence", first.licence] if first.licence else []
        place = ["--hub", address, "--out", str(out)]
        parser = official.make_parser()
        official.convert(parser.parse_args(["--from", "vse_infty", *place, *licence]))
    return out


def _check_room(offer: Offer, out: Path) -> None:
    """Refuses, before anything is fetched, what the disk has no room for.

    A pack is smaller than what it is made of: its weights are in half precision.
    """
    cache = Path(constants.HF_HUB_CACHE)
    for place in (cache, out.parent):
        place.mkdir(parents=True, exist_ok=True)
    known = sum(size or 0 for part in offer.parts for size in part.files.values())
    needed = offer.missing_bytes + known + _SPARE
    free = min(shutil.disk_usage(place).free for place in (cache, out.parent))
    if free < needed:
        raise HubError(
            f"{offer.address} needs {needed / 1e6:,.0f} MB of the disk, with the pack that it "
            f"becomes, and {free / 1e6:,.0f} MB are free; make room, or set HF_HUB_CACHE and "
            "POLYVIEW_CACHE to a larger disk"
        )


def report(done: int, total: int, doing: str) -> None:
    """Writes one line for whoever follows."""
    line = json.dumps({"done": min(done, total), "total": total, "doing": doing})
    print(line, file=sys.stderr, flush=True)


def _end_with_input() -> None:
    """Interrupts this process when its standard input ends."""

    def watch() -> None:
        while os.read(0, 1024):  # past sys.stdin, whose lock this thread would keep at the end
            pass
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in the background
    threading.Thread(target=watch, daemon=True).start()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m export.obtain", description="Fetch from the Hub and make a pack of it."
    )
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--address", required=True, help="owner/name[@revision]")
    parser.add_argument("--out", type=Path, help="the pack's folder; not for packs")
    parser.add_argument("--commit", help="fail where the address holds another one by now")
    parser.add_argument(
        "--visitor", action="store_true", help="for somebody else: no token, bounded sizes"
    )
    options = parser.parse_args(argv)
    try:
        folder = obtain(options.kind, options.address, options.out, options.commit, options.visitor)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    print(json.dumps({"folder": str(folder)}), file=sys.stderr)
    return 0


if __name__ == "__main__":
    _end_with_input()
    sys.exit(main())
