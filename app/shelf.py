"""The packs that are open: the one the app started with, and those its visitors loaded."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from pathlib import Path

from app.collection import Collection, from_folder, from_pack
from app.retriever import Retriever
from app.settings import Settings, bundled_pack
from export import hub
from export.pack import resolve
from export.runtime import Runtime

_GUESTS = 3  # packs kept open beside the first
_HUB_ID = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?", re.ASCII)


class Shelf:
    """Opens packs and keeps them; each session says by key which one it uses.

    Args:
        settings: how the app was asked to run; its pack is opened at once.
        cache: the user's cache folder.

    Attributes:
        first: the pack the app was started with; its index is for the caller to start.

    Raises:
        FileNotFoundError: the pack or its pictures are missing.
        ValueError: the pack, the device or the gallery cannot be used.
    """

    def __init__(self, settings: Settings, cache: Path) -> None:
        self._settings = settings
        self._cache = cache
        self._lock = threading.Lock()  # of the guests
        self._loading = threading.Lock()  # one pack at a time: each takes memory while it loads
        self._guests: OrderedDict[str, Retriever] = OrderedDict()
        folder = bundled_pack(settings.pack) or resolve(settings.pack)
        self.first = self._open(folder, None)

    @property
    def accepts(self) -> str:
        """What `load` takes, for people."""
        folders = " or a folder on this machine" if self._settings.private else ""
        return f"a Hub id such as owner/name{folders}"

    def get(self, key: str) -> Retriever:
        """The pack a session uses; the empty key means the first.

        Raises:
            ValueError: the pack was closed to make room for others.
        """
        if not key:
            return self.first
        with self._lock:
            if key not in self._guests:
                raise ValueError("this pack was closed to make room; load it again in Models")
            self._guests.move_to_end(key)
            return self._guests[key]

    def packs(self) -> dict[str, Retriever]:
        """Every open pack by its key for `get`, the first one first."""
        with self._lock:
            return {"": self.first, **self._guests}

    def load(self, address: str) -> str:
        """Opens another pack; those already open stay as they are.

        Args:
            address: a bundled name or a Hub id `owner/name[@revision]`; a folder too, where only
                this machine reaches the app.

        Returns:
            Its key for `get`.

        Raises:
            FileNotFoundError: there is no such pack.
            ValueError: it cannot be used, or folders may not be named here.
        """
        folder = self._locate(address.strip())
        with self._loading:
            retriever = self._open(folder, self.first.collection)
            key = retriever.runtime.info.checksum
            if key == self.first.runtime.info.checksum:
                return ""
            with self._lock:
                if key not in self._guests:
                    self._guests[key] = retriever
                    retriever.index.start()
                while len(self._guests) > _GUESTS:
                    _, oldest = self._guests.popitem(last=False)
                    oldest.index.stop()
            return key

    def _locate(self, address: str) -> Path:
        if not address:
            raise ValueError("name a pack: a Hub id such as owner/name")
        bundled = bundled_pack(address)
        if bundled is not None:
            return bundled
        if self._settings.private and Path(address).is_dir():
            return Path(address)
        hub_id = _HUB_ID.fullmatch(address)
        if hub_id is None:
            raise ValueError(f'"{address[:200]}" is no pack; name {self.accepts}')
        return hub.pull(hub_id[1], revision=hub_id[2])

    def _open(self, folder: Path, fallback: Collection | None) -> Retriever:
        runtime = Runtime.load(folder, self._settings.device)
        runtime.require_pictures()
        if self._settings.gallery is not None:
            collection = from_folder(self._settings.gallery)
        elif runtime.info.gallery is not None:
            collection = from_pack(folder)
        elif fallback is not None:
            collection = fallback
        else:
            raise ValueError(
                f"the pack {runtime.info.name} comes without pictures; "
                "give your own with --gallery DIR"
            )
        return Retriever(runtime, collection, self._cache)
