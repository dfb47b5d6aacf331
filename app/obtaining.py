"""Packs that the app fetches from the Hub, or makes of what it fetches there and keeps."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import child
from export.offer import PACK, Offer
from export.pack import load_info

ROOT = Path(__file__).resolve().parents[1]
_PAUSE = 0.5  # seconds between two signs of life
_PATIENCE = 5.0  # seconds to remove what is half done


class ObtainError(ValueError):
    """It was not obtained; the message is a sentence."""


class CancelledError(ObtainError):
    """Somebody ended it."""


@dataclass(frozen=True)
class Fetched:
    """A sign of life: `done` of `total` bytes (0 of 0: not counted), doing what, seconds."""

    done: int
    total: int
    doing: str
    seconds: float


class Obtainer:
    """Obtains one pack at a time, whoever asks.

    The work is `python -m export.obtain` in a process of its own: a conversion takes much memory,
    which is given back so, and whatever goes wrong there, the app goes on.

    Args:
        folder: where converted packs are kept; made when there is one.
        root: the folder that holds `export/`.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder = folder
        self._root = root
        self._child = child.Place(_PATIENCE)

    def find(self, kind: str, address: str) -> Path | None:
        """The pack that an address was converted to before, None where there is none."""
        folder = self._place(kind, address)
        with contextlib.suppress(ValueError, OSError):
            load_info(folder, verify=False)
            return folder
        return None

    def run(self, offer: Offer, owner: str) -> Generator[Fetched | Path, None, None]:
        """Obtains what was offered; closing the iterator before its end ends the work.

        Args:
            offer: what was looked at.
            owner: who may cancel it.

        Yields:
            Signs of life, at least one in a second, then the pack's folder.

        Raises:
            ObtainError: another one is under way, or it failed; nothing half done is left.
            CancelledError: it was cancelled.
        """
        if not self._child.take(owner):
            raise ObtainError(
                "something is being fetched already, and there can be only one at a time; "
                "try again when it has ended"
            )
        try:
            yield from self._follow(offer)
        finally:
            self._child.leave()

    def cancel(self, owner: str) -> bool:
        """Ends what `owner` started; False where there is nothing."""
        return self._child.cancel(owner)

    def _follow(self, offer: Offer) -> Iterator[Fetched | Path]:
        began = time.monotonic()
        place = self._place(offer.kind, offer.address)
        process = self._start(offer, place)
        lines, last = child.follow(process), Fetched(0, 0, "Starting", 0.0)
        said: dict[str, Any] = {}
        complaint, ended = "it said nothing", False
        try:
            while not ended:
                for line in child.said(lines, _PAUSE):
                    if line is None:
                        ended = True
                    elif found := _parse(line):
                        said = found
                    elif line.strip():
                        complaint = line.strip()[:500]
                seconds = time.monotonic() - began
                if "doing" in said:
                    last = Fetched(int(said["done"]), int(said["total"]), said["doing"], seconds)
                yield Fetched(last.done, last.total, last.doing, seconds)
            status = process.wait()
        finally:
            self._child.end(process)
            self._tidy(place)
        if self._child.cancelled:
            raise CancelledError(f"Cancelled after {time.monotonic() - began:.0f} s")
        if status or "folder" not in said:
            raise ObtainError(re.sub(r"^conversion failed: ", "", complaint))
        yield Path(said["folder"])

    def _start(self, offer: Offer, place: Path) -> subprocess.Popen[str]:
        command = [
            *(sys.executable, "-m", "export.obtain", "--kind", offer.kind),
            *(f"--address={offer.address}", f"--commit={offer.parts[0].commit}"),
        ]
        if offer.kind != PACK:
            place.parent.mkdir(parents=True, exist_ok=True)
            command.append(f"--out={place.resolve()}")
        return self._child.start(command, self._root, held=True)

    def _place(self, kind: str, address: str) -> Path:
        """Where the pack made of an address is kept; other addresses have other folders."""
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", address).strip("-.")[:80]
        told_apart = hashlib.sha256(f"{kind} {address}".encode()).hexdigest()[:8]
        return self._folder / f"{kind}-{readable}-{told_apart}"

    def _tidy(self, place: Path) -> None:
        """Removes what a conversion that was killed had begun beside its place."""
        for half in self._folder.glob(f".{place.name}.*"):
            shutil.rmtree(half, ignore_errors=True)


def _parse(line: str) -> dict[str, Any] | None:
    """What a line says where it is a sign of life or the end."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.keys() & {"doing", "folder"} else None
