"""Where the packs come from that a visitor asks for: this machine, or the Hub."""

import contextlib
import hashlib
import re
from pathlib import Path

from polyview.app.settings import Settings, bundled_pack, bundled_packs
from polyview.export.hub.client import UnreachableError, cached_instead, is_hub_id, parse_hub_id
from polyview.export.hub.packs import find_cached
from polyview.export.obtain import PACK, Offer, look
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import MANIFEST


class ConvertedPacks:
    """Packs that were made of published weights, each in a folder of its own.

    Args:
        folder: where they are kept; it may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, kind: str, address: str) -> Path:
        """The folder of the pack made of an address; other addresses have other folders."""
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", address).strip("-.")[:80]
        digest = hashlib.sha256(f"{kind} {address}".encode()).hexdigest()[:8]
        return self._folder / f"{kind}-{readable}-{digest}"

    def find(self, kind: str, address: str) -> Path | None:
        """The pack that an address was converted to before, None if there is none."""
        folder = self.place(kind, address)
        with contextlib.suppress(ValueError, OSError):
            load_info(folder, verify=False)
            return folder
        return None


class Sources:
    """Finds packs on this machine, and those on the Hub that may be fetched.

    Args:
        settings: the app's settings.
        cache: the user's cache folder.

    Attributes:
        converted: packs made of published weights.

    Raises:
        ValueError: an address of `--allow-pack` is none.
    """

    def __init__(self, settings: Settings, cache: Path) -> None:
        for address in settings.allow_packs:
            try:
                parse_hub_id(address)
            except ValueError as error:
                raise ValueError(f"--allow-pack: {error}") from error
        self._private, self._allowed = settings.private, settings.allow_packs
        self.converted = ConvertedPacks(cache / "packs")

    @property
    def accepts(self) -> str:
        """What `find` takes for a pack, for people."""
        if self._private:
            return "a Hub id such as owner/name or a folder on this machine"
        return f"one of {', '.join([*bundled_packs(), *self._allowed])}"

    def find(self, kind: str, address: str) -> Path | None:
        """The pack that an address means, where it is on this machine; the Hub is not asked.

        Args:
            kind: one of `export.obtain.KINDS`.
            address: of a pack a bundled name or a Hub id `owner/name[@revision]`; a folder too,
                where only this machine reaches the app. Elsewhere only Hub ids that were allowed.
                Of published weights, see `export.obtain.look`.

        Returns:
            Its folder, or None where the Hub must be asked.

        Raises:
            ValueError: it names nothing, or something that may not be loaded here.
        """
        if not address:
            raise ValueError("name a pack: a Hub id such as owner/name")
        if kind != PACK:
            if not self._private:  # it takes minutes and memory
                raise ValueError(
                    "published weights are converted only where no other machine reaches the app; "
                    "convert them there, and name the pack"
                )
            return self.converted.find(kind, address)
        bundled = bundled_pack(address)
        if bundled is not None:
            return bundled
        if self._private and Path(address).is_dir():
            return Path(address)
        if not self._private and address not in self._allowed:
            raise ValueError(f'"{address[:200]}" may not be loaded here; name {self.accepts}')
        if not is_hub_id(address):
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
        try:  # for visitors without a token
            offer = look(kind, address, None if self._private else False)
        except UnreachableError as error:
            if kind == PACK:
                return cached_instead(address, error, find_cached)
            own = "; a pack in a folder on this machine loads without" if self._private else ""
            raise UnreachableError(f"{error}{own}") from error
        repo = offer.parts[0]
        if kind == PACK and MANIFEST not in repo.missing:
            with contextlib.suppress(ValueError):  # not whole
                return find_cached(f"{repo.repo_id}@{repo.commit}")
        return offer
