"""Packs that are fetched from the Hub, in the background, and their progress."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from polyview.app.packs import presets
from polyview.app.packs.opened import FullError, GoneError, Opened
from polyview.export.hub.client import CancelledError
from polyview.export.obtain import Offer, obtain

_REMEMBERED = 8


@dataclass
class Download:
    """A pack that is being fetched; whoever has its key may cancel it.

    `state` is "running", "ready", "cancelled" or "failed".
    """

    key: str
    state: str = "running"
    done: int = 0  # bytes fetched
    total: int = 0  # 0 during a conversion
    doing: str = "Starting"
    began: float = field(default_factory=time.monotonic)
    pack: str = ""  # its key among `Opened.packs`, once it is ready
    error: str = ""  # why it failed, in a sentence
    cancelled: threading.Event = field(default_factory=threading.Event)

    def report(self, done: int, total: int, doing: str) -> None:
        """Takes the progress of `obtain`."""
        self.done, self.total, self.doing = done, total, doing

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.began


class Downloads:
    """Fetches one pack at a time.

    Args:
        opened: opens the packs that were fetched.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened, self._lock = opened, threading.Lock()
        self._known: OrderedDict[str, Download] = OrderedDict()
        self._thread: threading.Thread | None = None

    def look(self, address: str, kind: str) -> Offer | Path:
        """The files that an address, or a preset's name, would fetch; a folder if it is here.

        Raises:
            ForbiddenError: a preset is for the owner of this machine.
            ValueError: there is no such thing, or it may not be loaded here.
        """
        sources = self._opened.sources
        if preset := presets.PRESETS.get(address):
            self._opened.require_owner(f"{preset.title} is fetched where the app runs, by --pack")
            return preset.find(sources.converted) or preset.offer()
        return sources.find(kind, address) or sources.look(kind, address)

    def start(self, address: str, kind: str) -> Download:
        """Starts fetching an address; see `look`.

        Raises:
            FullError: something is being fetched already.
        """
        source = self.look(address, kind)
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise FullError("something is being fetched already; try again when it has ended")
            download = self._known.setdefault(key := token_hex(8), Download(key))
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            if isinstance(source, Offer):
                arguments = download, source
                self._thread = threading.Thread(target=self._fetch, args=arguments, daemon=True)
                self._thread.start()
        if isinstance(source, Path):
            download.pack, download.state = self._opened.add_pack(source), "ready"
        return download

    def get(self, key: str) -> Download:
        """A download by its key.

        Raises:
            GoneError: it is not known any more.
        """
        if download := self._known.get(key):
            return download
        raise GoneError("this download is not known any more; fetch the pack again")

    def cancel(self, key: str) -> Download:
        """Ends a download; nothing incomplete is left. A conversion runs to its end, unused."""
        download = self.get(key)
        if download.state == "running":
            download.cancelled.set()
            download.state = "cancelled"
            download.error = f"Cancelled after {download.seconds:.0f} s"
        return download

    def _fetch(self, download: Download, offer: Offer) -> None:
        sources = self._opened.sources
        out, visitor = sources.converted.place(offer.kind, offer.address), not self._opened.private
        try:
            folder = obtain(offer, out, download.report, download.cancelled, visitor)
            download.pack = self._opened.add_pack(folder)
            download.state = "ready"
        except CancelledError:
            download.state = "cancelled"
        except Exception as error:  # every failure is reported to whoever asks
            download.state, download.error = "failed", self._opened.sentence(error)
