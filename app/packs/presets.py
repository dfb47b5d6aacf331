"""Presets: stronger models by name, fetched once; and the folders of converted packs."""

import hashlib
import os
import re
import sys
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

_MOST_GROWTH = 1.5  # times the stated size; a larger download is probably another model


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

    name: str  # for `--pack`
    title: str  # for people
    about: str  # its use, in a sentence
    published: tuple[str, ...]  # Hub ids, in order; the first that holds safetensors is used
    licence: str  # of the published files, as their authors state it
    megabytes: int  # of the published files, roughly
    time: str  # the step after the download, for people

    @property
    def variable(self) -> str:
        """The environment variable that overrides the address."""
        return f"POLYVIEW_{self.name.upper().replace('-', '_')}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The Hub ids to try, in order."""
        return tuple(os.environ.get(self.variable, "").split()) or self.published

    @property
    def facts(self) -> str:
        """Size, licence and time, for people, without asking the Hub."""
        if self.addresses != self.published:
            return f"from {self.addresses[0]}, under its publisher's licence, {self.time}"
        return f"about {self.megabytes} MB once, {self.licence} licence, {self.time}"

    def find(self, cache: Path) -> Path | None:
        """Its folder if it is on this machine; does not ask the Hub."""
        folders = (converted_pack(cache, CLIP, address) for address in self.addresses)
        return next(filter(None, folders), None)

    def offer(self) -> Offer:
        """The files to fetch from the Hub.

        Raises:
            UnreachableError: the Hub cannot be asked.
            ValueError: the Hub refuses, or the files are much larger than stated.
        """
        *others, last = self.addresses
        for address in others:
            with suppress(NoWeightsError):
                return self._bounded(look(CLIP, address))
        return self._bounded(look(CLIP, last))

    def _bounded(self, offer: Offer) -> Offer:
        most = self.megabytes * 1e6 * _MOST_GROWTH
        if offer.address in self.published and (offer.unknown or offer.missing_bytes > most):
            size = "an unknown size" if offer.unknown else f"{offer.missing_bytes / 1e6:,.0f} MB"
            raise ValueError(
                f"{offer.address} has {size} now, not about {self.megabytes} MB; nothing is "
                "fetched. Load it by its address in Models, if that is what you want"
            )
        return offer


_TINY = Preset(
    name="tinyclip",
    title="TinyCLIP 8M",
    about="Learned from 15 million images of the web: knows far more things than what comes with "
    "the app, and is quick.",
    published=("wkcn/TinyCLIP-ViT-8M-16-Text-3M-YFCC15M",),
    licence="MIT",
    megabytes=97,
    time="then a minute and about 1.6 GB of memory to convert it, once",
)
_MIDDLE = Preset(
    name="tinyclip-39m",
    title="TinyCLIP 39M",
    about="The same with a larger image encoder.",
    published=("wkcn/TinyCLIP-ViT-39M-16-Text-19M-YFCC15M",),
    licence="MIT",
    megabytes=335,
    time="then minutes and about 3 GB of memory to convert it, once",
)
_SIGLIP = Preset(
    name="siglip",
    title="SigLIP",
    about="Learned from billions of images: ranks better, and is slower.",
    published=("google/siglip-base-patch16-224", "google/siglip-base-patch16-256"),
    licence="Apache-2.0",
    megabytes=816,
    time="then some minutes and about 5 GB of memory to convert it, once",
)
_SIGLIP_2 = Preset(
    name="siglip2",
    title="SigLIP 2",
    about="Learned from billions of images, with texts in many languages.",
    published=("google/siglip2-base-patch16-224",),
    licence="Apache-2.0",
    megabytes=1540,
    time="then some minutes and about 10 GB of memory to convert it, once",
)
PRESETS = {preset.name: preset for preset in (_TINY, _MIDDLE, _SIGLIP, _SIGLIP_2)}


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
