"""The packs that are open: the one the app started with, and those its visitors loaded."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from pathlib import Path

from app.archive import open_pictures
from app.collection import Collection, from_pack
from app.obtaining import Obtainer
from app.qdrant.address import Address
from app.retriever import Retriever
from app.settings import Settings, bundled_pack
from export import hub
from export.offer import HUB_ID, PACK, Offer, look
from export.pack import MANIFEST, resolve
from export.runtime import Runtime
from models.hub import NotHereError, UnreachableError

_GUESTS = 3  # packs kept open beside the first


class Shelf:
    """Opens packs and keeps them; each session says by key which one it uses.

    Args:
        settings: how the app was asked to run; its pack is opened at once.
        cache: the user's cache folder.

    Attributes:
        first: the pack the app was started with; its index is for the caller to start.
        obtainer: fetches packs that are not on this machine, and converts published weights.

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
        self.obtainer = Obtainer(cache / "packs")
        folder = bundled_pack(settings.pack) or resolve(settings.pack)
        self.first = self._open(folder, None)

    @property
    def converts(self) -> bool:
        """Whether visitors may have published weights converted, which takes minutes and memory."""
        return self._settings.private

    @property
    def private(self) -> bool:
        """Whether only this machine reaches the app, so that its visitor may stop its work."""
        return self._settings.private

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
        address = address.strip()
        folder = self.find(PACK, address)
        if folder is None:
            hub_id = HUB_ID.fullmatch(address)
            assert hub_id is not None  # `find` refuses what is none
            folder = hub.pull(hub_id["id"], revision=hub_id["revision"])
        return self.open(folder)

    def find(self, kind: str, address: str) -> Path | None:
        """The pack that an address means, where it is on this machine; the Hub is not asked.

        Args:
            kind: one of `export.offer.KINDS`.
            address: see `load`; of published weights, see `export.offer.look`.

        Returns:
            Its folder, or None where the Hub must be asked.

        Raises:
            ValueError: it names nothing, or published weights may not be converted here.
        """
        if not address:
            raise ValueError("name a pack: a Hub id such as owner/name")
        if kind != PACK:
            if not self.converts:
                raise ValueError(
                    "published weights are converted only where no other machine reaches the app; "
                    "convert them there, and name the pack"
                )
            return self.obtainer.find(kind, address)
        bundled = bundled_pack(address)
        if bundled is not None:
            return bundled
        if self._settings.private and Path(address).is_dir():
            return Path(address)
        if HUB_ID.fullmatch(address) is None:
            raise ValueError(f'"{address[:200]}" is no pack; name {self.accepts}')
        return None

    def look(self, kind: str, address: str) -> Offer | Path:
        """Asks the Hub what an address would fetch; a whole pack in its client's cache is taken.

        Returns:
            What would be fetched, or the folder of the pack where nothing is left to fetch.

        Raises:
            ValueError: there is no such thing, or the Hub refuses.
            UnreachableError: the Hub cannot be asked, and the cache holds no such pack.
        """
        hub_id = HUB_ID.fullmatch(address)
        try:
            offer = look(kind, address)
        except UnreachableError as error:
            if kind == PACK and hub_id is not None:
                try:
                    return hub.pull(hub_id["id"], hub_id["revision"], local=True)
                except NotHereError:
                    sentence = error.missing(address)
                    raise UnreachableError(sentence, error.why, error.advice) from error
            own = "; a pack in a folder on this machine loads without" if self.converts else ""
            raise UnreachableError(f"{error}{own}", error.why, error.advice) from error
        first = offer.parts[0]
        if kind == PACK and MANIFEST in first.here:
            with contextlib.suppress(hub.HubError):
                return hub.pull(first.repo_id, first.commit, local=True)
        return offer

    def open(self, folder: Path) -> str:
        """Opens the pack in a folder; see `load`."""
        with self._loading:
            try:
                retriever = self._open(folder, self.first.collection)
            except (ValueError, OSError) as error:
                if self._settings.private:
                    raise
                # where packs lie on this machine is nobody else's business
                said = str(error).replace(f"{folder}/", "").replace(str(folder), "the pack")
                raise ValueError(said) from error
            key = retriever.runtime.info.checksum
            if key == self.first.runtime.info.checksum:
                return ""
            return self._keep(key, retriever)

    def show(self, key: str, place: str) -> str:
        """Opens other pictures with a pack that is open.

        Args:
            key: of the pack for `get`.
            place: a folder of pictures on this machine, or a ZIP archive of them.

        Returns:
            The key for `get` of the pack with these pictures.

        Raises:
            FileNotFoundError: there is no such place, or it holds no picture.
            ValueError: the archive cannot be used, or places may not be named here.
        """
        if not self.private:
            raise ValueError("pictures are chosen where the app runs, by --gallery")
        if not place:
            raise ValueError("name a folder of pictures on this machine, or a ZIP archive of them")
        with self._loading:
            runtime = self.get(key).runtime
            collection = open_pictures(Path(place).expanduser(), self._cache)
            where = hashlib.sha256(str(collection.folder).encode()).hexdigest()[:16]
            retriever = Retriever(runtime, collection, self._cache)
            return self._keep(f"{runtime.info.checksum}@{where}", retriever)

    def _keep(self, key: str, retriever: Retriever) -> str:
        """Takes a guest in, unless it is there; the oldest makes room."""
        with self._lock:
            if key not in self._guests:
                self._guests[key] = retriever
                retriever.index.start()
            while len(self._guests) > _GUESTS:
                _, oldest = self._guests.popitem(last=False)
                oldest.index.stop()
        return key

    def _open(self, folder: Path, fallback: Collection | None) -> Retriever:
        runtime = Runtime.load(folder, self._settings.device)
        runtime.require_pictures()
        given = self._settings.gallery
        if isinstance(given, Address):
            from app.qdrant.store import open_collection  # needs a package that few have

            collection: Collection = fallback or open_collection(given)
        elif given is not None:
            collection = open_pictures(given, self._cache)
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
