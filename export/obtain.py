"""Fetches something from the Hub and makes a pack of it, telling how far it is.

    python -m export.obtain --kind clip --address openai/clip-vit-base-patch32 --out PACK

What it tells is one JSON object on each line of stderr, for a program that follows it:

    {"done": 1048576, "total": 605247071, "doing": "model.safetensors"}
    {"done": 0, "total": 0, "doing": "Converting ..."}
    {"folder": "PACK"}

A line that is none says what went wrong. It ends when its standard input ends, so that nothing goes
on where nobody follows any more. A file that was not fetched whole is removed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub.utils import filter_repo_objects
from tqdm import tqdm

from export import clip, hub
from export.offer import CLIP, KINDS, PACK, Offer, Part, look
from export.official import __main__ as official
from export.pack import MANIFEST
from export.to_onnx import Labels
from models.hub import HubError, connect, refuse_damaged

UNKNOWN_LICENCE = official.UNKNOWN_LICENCE
INTERRUPTED = 130
_EVERY = 0.3  # seconds between two lines


def obtain(kind: str, address: str, out: Path | None, commit: str | None = None) -> Path:
    """Fetches what is not here, and converts it where it is no pack yet.

    Args:
        kind: one of `export.offer.KINDS`.
        address: see `export.offer.look`.
        out: the folder to make, or to replace once all is well; a pack stays in the Hub client's
            cache and needs none.
        commit: what the address must still hold, as it was looked at; None for whatever it holds.

    Returns:
        The pack's folder.

    Raises:
        ValueError: it cannot be had, or is not what it should be; the message is a sentence.
    """
    offer = look(kind, address)
    first = offer.parts[0]
    if commit is not None and commit != first.commit:
        raise HubError(f"{address} has changed since it was looked at; look again")
    if kind == PACK:
        return _obtain_pack(offer)
    if out is None:
        raise ValueError(f"--out is needed: the folder for the pack that {address} becomes")
    fetched = _Told(offer.missing_bytes)
    for part in offer.parts:
        with hub.sentences(part.repo_id, part.revision):
            _fetch(part, list(part.missing), fetched)
    tell(0, 0, "Converting, and comparing the result with the original")
    if kind == CLIP:
        labels = Labels(
            clip.METHOD,
            f"CLIP, {first.repo_id.partition('/')[2]}",
            first.licence or UNKNOWN_LICENCE,
            f"CLIP, weights of {first.repo_id}@{first.commit}",
            "Zero-shot retrieval with CLIP (Radford et al., ICML 2021), as it was pre-trained.",
        )
        clip.build_clip(out, address, labels, force=True)
    elif status := official.main(_official(address, out, first)):
        raise SystemExit(status)  # it has said why
    return out


def _official(address: str, out: Path, part: Part) -> list[str]:
    known = ["--licence", part.licence] if part.licence else []
    return ["--from", "vse_infty", "--hub", address, "--out", str(out), "--force", *known]


def _obtain_pack(offer: Offer) -> Path:
    """pack.json comes first; then what it lists."""
    part = offer.parts[0]
    api = connect()
    with hub.sentences(part.repo_id, part.revision):
        manifest = api.hf_hub_download(part.repo_id, MANIFEST, revision=part.commit)
        patterns = hub.patterns_of(Path(manifest))
        wanted = list(filter_repo_objects(part.missing, allow_patterns=patterns))
        _fetch(part, wanted, _Told(sum(part.files[name] or 0 for name in wanted)))
    return hub.pull(part.repo_id, part.revision)


class _Told:
    """How much was fetched, told now and then."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._last = 0.0

    def tell(self, more: int, name: str) -> None:
        """Says that so much of a file is there beyond what was fetched before it."""
        if (now := time.monotonic()) - self._last >= _EVERY:
            self._last = now
            tell(min(self.done + more, self.total), self.total, name)


def _fetch(part: Part, names: Sequence[str], told: _Told) -> None:
    """Downloads files into the Hub client's cache, each whole or not at all."""
    api = connect()
    for name in names:
        bar = _bar(told, name)
        path = api.hf_hub_download(part.repo_id, name, revision=part.commit, tqdm_class=bar)
        refuse_damaged(part.repo_id, Path(path).parents[name.count("/")], [name])
        told.done += part.files[name] or 0
        told.tell(0, name)


def _bar(told: _Told, name: str) -> type[tqdm[Any]]:
    """A bar that is told instead of drawn; the client makes one for each file."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            told.tell(int(self.n), name)
            return shown

        def update_transfer(self, n: float | None = 1) -> None:
            """Bytes on the wire, which may be compressed, do not count."""

    return Bar


def tell(done: int, total: int, doing: str) -> None:
    """One line for whoever follows."""
    print(json.dumps({"done": done, "total": total, "doing": doing}), file=sys.stderr, flush=True)


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
    given = parser.parse_args(argv)
    try:
        folder = obtain(given.kind, given.address, given.out, given.commit)
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
