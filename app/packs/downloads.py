"""Packs that visitors name: checks whether they may be loaded, and fetches them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from pydantic import BaseModel, PrivateAttr, computed_field

from polyview.app.packs.errors import FullError, GoneError
from polyview.app.packs.opened import Opened
from polyview.app.packs.presets import PRESETS, converted_folder, converted_pack
from polyview.app.settings import bundled_pack, bundled_packs
from polyview.export.hub.client import CancelledError, UnreachableError, is_hub_id, parse_hub_id
from polyview.export.hub.packs import find_cached
from polyview.export.obtain import PACK, Offer, look, obtain
from polyview.export.pack.schema import MANIFEST

_REMEMBERED = 8


class Job(BaseModel):
    """The download of a pack; whoever has its key may cancel it.

    `state` is "running", "ready", "cancelled" or "failed".
    """

    job: str  # its key
    state: str
    done: int  # bytes fetched
    total: int  # 0 during a conversion
    doing: str
    pack: str  # its key among `Opened.packs`, once it is ready
    error: str  # the error message if it failed
    _began: float = PrivateAttr(default_factory=time.monotonic)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._began


class Downloads:
    """Finds packs by their addresses, and fetches one at a time.

    Args:
        opened: receives the fetched packs; its settings name those that visitors may fetch.

    Raises:
        ValueError: an entry of `settings.allow_packs` is not a Hub id.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened, self._allowed = opened, opened.settings.allow_packs
        for address in self._allowed:
            try:
                parse_hub_id(address)
            except ValueError as error:
                raise ValueError(f"--allow-pack: {error}") from error
        self._lock = threading.Lock()
        self._known: dict[str, Job] = {}
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()

    @property
    def accepts(self) -> str:
        """The accepted pack addresses, for people."""
        if self._opened.private:
            return "a Hub id such as owner/name or a folder on this machine"
        return f"one of {', '.join([*bundled_packs(), *self._allowed])}"

    def look(self, address: str, kind: str) -> Offer | Path:
        """Finds the files that an address would fetch, or the folder if it is already here.

        Args:
            address: a preset's name, or for a pack a bundled name, a Hub id `owner/name[@revision]`
                or a folder. A public app accepts only bundled names and allowed Hub ids. For
                published weights see `export.obtain.look`.
            kind: "pack", "clip" or "vse_infty".

        Raises:
            ForbiddenError: only the owner may fetch presets.
            ValueError: the address is unknown or not allowed, or the Hub refuses.
            UnreachableError: the Hub cannot be reached, and the pack is not in the cache.
        """
        if preset := PRESETS.get(address):
            self._opened.require_owner(
                f"{preset.title} is fetched only by the app's owner, with --pack"
            )
            return preset.find(self._opened.cache) or preset.offer()
        if folder := self._find(address, kind):
            return folder
        private = self._opened.private
        try:  # visitors have no token
            offer = look(kind, address, None if private else False)
        except UnreachableError as error:
            if kind == PACK:
                return find_cached(address, error)
            own = "; a pack in a folder on this machine loads without" if private else ""
            raise UnreachableError(f"{error}{own}") from error
        repo = offer.parts[0]
        if kind == PACK and MANIFEST not in repo.missing:
            with suppress(ValueError):  # incomplete
                return find_cached(f"{repo.repo_id}@{repo.commit}")
        return offer

    def _find(self, address: str, kind: str) -> Path | None:
        """The local folder of an address; None if the Hub must be asked."""
        private = self._opened.private
        if not address:
            raise ValueError("name a pack: a Hub id such as owner/name")
        if kind != PACK:
            if not private:  # conversion takes minutes and much memory
                raise ValueError(
                    "published weights are converted only where no other machine reaches the app; "
                    "convert them there, and name the pack"
                )
            return converted_pack(self._opened.cache, kind, address)
        folder = bundled_pack(address) or (Path(address) if private else None)
        if folder is not None and folder.is_dir():
            return folder
        if not private and address not in self._allowed:
            raise ValueError(f'"{address[:200]}" may not be loaded here; name {self.accepts}')
        if not is_hub_id(address):
            raise ValueError(f'"{address[:200]}" is no pack; name {self.accepts}')
        return None

    def start(self, address: str, kind: str) -> Job:
        """Starts a download; see `look`.

        Raises:
            FullError: another download is running.
        """
        source = self.look(address, kind)
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise FullError("something is being fetched already; try again when it has ended")
            key, doing = token_hex(8), "Starting"
            job = Job(job=key, state="running", done=0, total=0, doing=doing, pack="", error="")
            self._known[key] = job
            for oldest in list(self._known)[:-_REMEMBERED]:
                del self._known[oldest]
            if isinstance(source, Path):
                job.pack, job.state = self._opened.add_pack(source), "ready"
                return job
            self._cancelled = threading.Event()
            arguments = job, source, self._cancelled
            self._thread = threading.Thread(target=self._fetch, args=arguments, daemon=True)
            self._thread.start()
        return job

    def get(self, key: str) -> Job:
        """A download by its key.

        Raises:
            GoneError: the download is no longer known.
        """
        if job := self._known.get(key):
            return job
        raise GoneError("this download is no longer known; fetch the pack again")

    def cancel(self, key: str) -> Job:
        """Cancels a download and removes incomplete files. A conversion runs on, unused."""
        job = self.get(key)
        if job.state == "running":
            self._cancelled.set()
            job.state, job.error = "cancelled", f"Cancelled after {job.seconds:.0f} s"
        return job

    def _fetch(self, job: Job, offer: Offer, cancelled: threading.Event) -> None:
        def report(done: int, total: int, doing: str) -> None:
            job.done, job.total, job.doing = done, total, doing

        out = converted_folder(self._opened.cache, offer.kind, offer.address)
        visitor = not self._opened.private
        try:
            folder = obtain(offer, out, report, cancelled, visitor)
            job.pack, job.state = self._opened.add_pack(folder), "ready"
        except CancelledError:
            job.state = "cancelled"
        except Exception as error:  # failures are reported in the job's state
            job.state, job.error = "failed", self._opened.sentence(error)
