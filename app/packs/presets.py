"""Presets: stronger models by name, fetched once; and the folders of converted packs."""

import hashlib
import re
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from tqdm import tqdm

from polyview.app.settings import bundled_pack
from polyview.export.hub.client import UnreachableError
from polyview.export.hub.packs import resolve
from polyview.export.obtain import CLIP, NoWeightsError, Offer, look, obtain
from polyview.export.pack.reading import load_info


def converted_folder(cache: Path, kind: str, address: str) -> Path:
    """The folder for a pack converted from published weights, by address."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", address).strip("-.")[:80]
    digest = hashlib.sha256(f"{kind} {address}".encode()).hexdigest()[:8]
    return cache / "packs" / f"{kind}-{readable}-{digest}"


def converted_pack(cache: Path, kind: str, address: str) -> Path | None:
    """The pack to which an address was converted before; None if there is none."""
    folder = converted_folder(cache, kind, address)
    with suppress(ValueError, OSError):
        load_info(folder, verify=False)
        return folder
    return None


@dataclass(frozen=True)
class Preset:
    """Published weights of a CLIP or SigLIP that are fetched and converted by name."""

    name: str  # for `--pack`; see `presets.toml` for the others
    title: str
    about: str
    published: list[str]
    licence: str
    megabytes: int
    time: str

    @property
    def facts(self) -> str:
        """Size, licence and time, for people, without asking the Hub."""
        return f"about {self.megabytes} MB once, {self.licence} licence, {self.time}"

    def find(self, cache: Path) -> Path | None:
        """Its folder if it is on this machine; does not ask the Hub."""
        folders = (converted_pack(cache, CLIP, address) for address in self.published)
        return next(filter(None, folders), None)

    def offer(self) -> Offer:
        """The files to fetch from the Hub.

        Raises:
            UnreachableError: the Hub cannot be reached.
            ValueError: the Hub refuses.
        """
        *others, last = self.published
        for address in others:
            with suppress(NoWeightsError):
                return look(CLIP, address)
        return look(CLIP, last)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
PRESETS = {name: Preset(name, **about) for name, about in _TABLE.items()}


def pack_folder(pack: str, cache: Path) -> Path:
    """The folder of a pack by name; fetches presets and Hub ids once.

    Args:
        pack: a bundled name, a folder, a preset's name, or a Hub id `owner/name[@revision]`.
        cache: the user's cache folder.

    Raises:
        FileNotFoundError: the name is none of these.
        ValueError: it cannot be fetched.
    """
    bundled = bundled_pack(pack)
    if bundled is not None or pack not in PRESETS or Path(pack).is_dir():
        try:
            return bundled or resolve(pack)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; or one of {', '.join(PRESETS)}") from error
    preset = PRESETS[pack]
    if folder := preset.find(cache):
        return folder
    try:
        offer = preset.offer()
    except UnreachableError as error:
        raise UnreachableError(
            f"{error}. {preset.title} is not on this machine yet; it is fetched once, and then "
            "needs no network"
        ) from error
    first = offer.parts[0]
    print(
        f"polyview: fetching {preset.title} from {first.repo_id}@{first.commit[:8]}: "
        f"{offer.missing_bytes / 1e6:,.0f} MB, licence {first.licence or 'not stated'}; "
        f"{preset.time}",
        file=sys.stderr,
        flush=True,
    )
    bar = tqdm(total=offer.missing_bytes, unit="B", unit_scale=True, mininterval=0.5)

    def report(done: int, total: int, doing: str) -> None:
        if total:
            bar.update(done - bar.n)
            return
        bar.close()
        print(f"polyview: {doing} …", file=sys.stderr, flush=True)

    return obtain(offer, converted_folder(cache, CLIP, offer.address), report, Event())
