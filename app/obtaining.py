"""Packs that the app fetches from the Hub, or makes of what it fetches there and keeps."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import re
import shutil
import subprocess
import sys
import threading
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
        self._lock = threading.Lock()
        self._owner: str | None = None
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = False

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
        with self._lock:
            if self._owner is not None:
                raise ObtainError(
                    "something is being fetched already, and there can be only one at a time; "
                    "try again when it has ended"
                )
            self._owner, self._cancelled = owner, False
        try:
            yield from self._follow(offer)
        finally:
            with self._lock:
                self._owner = self._process = None

    def cancel(self, owner: str) -> bool:
        """Ends what `owner` started; False where there is nothing."""
        with self._lock:
            if self._owner != owner:
                return False
            self._cancelled = True
            process = self._process
        if process is not None:
            child.end(process, _PATIENCE)
        return True

    def _follow(self, offer: Offer) -> Iterator[Fetched | Path]:
        began = time.monotonic()
        place = self._place(offer.kind, offer.address)
        process = self._start(offer, place)
        lines, last = child.follow(process), Fetched(0, 0, "Starting", 0.0)
        said: dict[str, Any] = {}
        complaint, ended = "it said nothing", False
        try:
            while not ended:
                for line in _take(lines):
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
            child.end(process, _PATIENCE)
            self._tidy(place)
        if self._cancelled:
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
        process = child.start(command, self._root, held=True)
        with self._lock:
            self._process = process
            cancelled = self._cancelled
        if cancelled:  # before it was there
            child.end(process)
        return process

    def _place(self, kind: str, address: str) -> Path:
        """Where the pack made of an address is kept; other addresses have other folders."""
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", address).strip("-.")[:80]
        told_apart = hashlib.sha256(f"{kind} {address}".encode()).hexdigest()[:8]
        return self._folder / f"{kind}-{readable}-{told_apart}"

    def _tidy(self, place: Path) -> None:
        """Removes what a conversion that was killed had begun beside its place."""
        for half in self._folder.glob(f".{place.name}.*"):
            shutil.rmtree(half, ignore_errors=True)


def _take(lines: child.Lines) -> Iterator[str | None]:
    """What is said within a while; it ends early at the end of all."""
    patience = time.monotonic() + _PAUSE
    while (rest := patience - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=rest)
        except queue.Empty:
            return
        yield line
        if line is None:
            return


def _parse(line: str) -> dict[str, Any] | None:
    """What a line says where it is a sign of life or the end."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.keys() & {"doing", "folder"} else None
