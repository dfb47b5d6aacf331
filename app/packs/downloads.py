"""Packs that are being fetched from the Hub, in the background, and how far each is."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from app.packs import presets
from app.packs.jobs import CancelledError, Step
from app.packs.opened import FullError, GoneError, Opened
from export.build.offer import Offer

_REMEMBERED = 8


@dataclass
class Download:
    """A pack that is being fetched.

    Attributes:
        key: names it; whoever has it may cancel it.
        state: "running", "ready", "cancelled" or "failed".
        step: how far it is.
        pack: its key among `Opened.packs`, once it is ready.
        error: why it failed, in a sentence.
    """

    key: str
    state: str = "running"
    step: Step = Step(0, 0, "Starting", 0.0)  # noqa: RUF009, which is frozen
    pack: str = ""
    error: str = ""


class Downloads:
    """Fetches one pack at a time.

    Args:
        opened: takes what was fetched.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened, self._lock = opened, threading.Lock()
        self._known: OrderedDict[str, Download] = OrderedDict()

    def look(self, address: str, kind: str) -> Offer | Path:
        """What an address, or a preset's name, would fetch; a folder where nothing is left to.

        Raises:
            ForbiddenError: a preset is for the owner of this machine.
            ValueError: there is no such thing, or it may not be loaded here.
        """
        sources = self._opened.sources
        if preset := presets.PRESETS.get(address):
            self._opened.require_owner(f"{preset.title} is fetched where the app runs, by --pack")
            return preset.find(sources.obtainer) or preset.offer()
        return sources.find(kind, address) or sources.look(kind, address)

    def start(self, address: str, kind: str) -> Download:
        """Begins to fetch what an address holds; see `look`.

        Raises:
            FullError: something is being fetched already.
        """
        found = self.look(address, kind)
        with self._lock:
            if any(one.state == "running" for one in self._known.values()):
                raise FullError("something is being fetched already; try again when it has ended")
            begun = self._known.setdefault(key := token_hex(8), Download(key))
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        if isinstance(found, Path):
            begun.pack, begun.state = self._opened.add_pack(found), "ready"
        else:
            threading.Thread(target=self._fetch, args=(begun, found), daemon=True).start()
        return begun

    def get(self, key: str) -> Download:
        """A download by its key.

        Raises:
            GoneError: it is not known any more.
        """
        if found := self._known.get(key):
            return found
        raise GoneError("this download is not known any more; fetch the pack again")

    def cancel(self, key: str) -> Download:
        """Ends a download; nothing half done is left."""
        self._opened.sources.obtainer.cancel(key)
        return self.get(key)

    def _fetch(self, begun: Download, offer: Offer) -> None:
        try:
            for step in self._opened.sources.obtain(offer, begun.key):
                if isinstance(step, Path):
                    begun.pack = self._opened.add_pack(step)
                else:
                    begun.step = step
            begun.state = "ready"
        except CancelledError as error:
            begun.state, begun.error = "cancelled", str(error)
        except Exception as error:  # whatever it was, whoever asks is told
            begun.state, begun.error = "failed", self._opened.sentence(error)
