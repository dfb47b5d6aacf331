"""Stronger packs that have a name: what each is, and how to fetch it once."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from tqdm import tqdm

from polyview.app.packs.sources import ConvertedPacks
from polyview.app.settings import bundled_pack
from polyview.export.hub.client import UnreachableError, cached_folder
from polyview.export.hub.packs import find_cached, resolve
from polyview.export.obtain import CLIP, PACK, NoWeightsError, Offer, look, obtain
from polyview.export.pack.schema import MANIFEST

_MOST_GROWTH = 1.5  # times the size that is stated here; what is larger is something else by now


@dataclass(frozen=True)
class Preset:
    """A pack that is fetched by a name."""

    name: str  # for `--pack`
    title: str  # for people
    about: str  # its use, in a sentence
    kind: str  # one of `export.obtain.KINDS`
    published: tuple[str, ...]  # Hub ids; the first that holds safetensors is used
    licence: str  # of the published files, as their authors state it
    megabytes: int  # of the published files, roughly
    time: str  # the step after the download, for people
    needs: str = ""  # advice if nobody has published it

    @property
    def variable(self) -> str:
        """The environment variable that names another address, of the same kind."""
        return f"POLYVIEW_{self.name.upper()}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it may come from."""
        named = os.environ.get(self.variable, "").split()
        return tuple(named) or self.published

    @property
    def facts(self) -> str:
        """Size, licence and time, as far as they are known before the Hub is asked."""
        if not self.addresses:
            return self.needs
        if self.addresses != self.published:
            return f"from {self.addresses[0]}, under its publisher's licence, {self.time}"
        return f"about {self.megabytes} MB once, {self.licence} licence, {self.time}"

    def find(self, converted: ConvertedPacks) -> Path | None:
        """Its folder, where it is on this machine; the Hub is not asked."""
        for address in self.addresses:
            if self.kind != PACK:
                if folder := converted.find(self.kind, address):
                    return folder
                continue
            with suppress(ValueError, OSError):
                return find_cached(address)
        return None

    def is_here(self, converted: ConvertedPacks) -> bool:
        """Whether it is on this machine, as far as one glance tells."""
        if self.kind != PACK:
            return self.find(converted) is not None
        for address in self.addresses:
            with suppress(ValueError):  # not cached, or no Hub id
                if (cached_folder(address) / MANIFEST).is_file():
                    return True
        return False

    def offer(self) -> Offer:
        """What the Hub would send.

        Raises:
            UnreachableError: the Hub cannot be asked.
            ValueError: nobody has published it; or the Hub refuses, or holds much more by now.
        """
        if not self.addresses:
            raise ValueError(f"{self.title} cannot be fetched: {self.needs}")
        *others, last = self.addresses
        for address in others:
            with suppress(NoWeightsError):
                return self._bounded(look(self.kind, address))
        return self._bounded(look(self.kind, last))

    def _bounded(self, offer: Offer) -> Offer:
        most = self.megabytes * 1e6 * _MOST_GROWTH
        if offer.address in self.published and (offer.unknown or offer.missing_bytes > most):
            size = "an unknown size" if offer.unknown else f"{offer.missing_bytes / 1e6:,.0f} MB"
            raise ValueError(
                f"{offer.address} has {size} now, not about {self.megabytes} MB; nothing is "
                "fetched. Load it by its address in Models, if that is what you want"
            )
        return offer


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "clip",
            "CLIP",
            "Learned from 400 million images of the web: knows far more things than what comes "
            "with the app; one view an image.",
            CLIP,
            ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch16"),
            "MIT",
            605,
            "then some minutes and about 4 GB of memory to convert it, once",
        ),
        Preset(
            "photos_large",
            "Photographs, large",
            "MobileNetV2 and MiniLM, with methods trained on captions of photographs.",
            PACK,
            (),
            "",
            0,
            "ready as soon as it is here",
            "nobody has published its weights. Set POLYVIEW_PHOTOS_LARGE to the Hub id of a pack "
            "that you or your organisation pushed, or train it (docs/your-data.md)",
        ),
    )
}


def offered(converted: ConvertedPacks) -> list[tuple[Preset, bool]]:
    """Every preset, and whether it is on this machine."""
    return [(preset, preset.is_here(converted)) for preset in PRESETS.values()]


def pack_folder(pack: str, cache: Path) -> Path:
    """The folder of a pack by its name; a preset or a Hub id is fetched, and kept.

    Args:
        pack: a bundled name, a folder, a preset's name, or a Hub id `owner/name[@revision]`.
        cache: the user's cache folder.

    Raises:
        FileNotFoundError: it is none of these.
        ValueError: it cannot be fetched; the message is a sentence.
    """
    bundled = bundled_pack(pack)
    if bundled is not None or pack not in PRESETS or Path(pack).is_dir():
        return bundled or resolve(pack)
    preset, converted = PRESETS[pack], ConvertedPacks(cache / "packs")
    if folder := preset.find(converted):
        return folder
    try:
        offer = preset.offer()
    except UnreachableError as error:
        raise UnreachableError(
            f"{error}. {preset.title} is not on this machine yet; it is fetched once, and then "
            "needs no network"
        ) from error
    out = converted.place(offer.kind, offer.address)
    return obtain(offer, out, _Bar(preset, offer).report, Event())


class _Bar:
    """Draws the progress of a preset on stderr."""

    def __init__(self, preset: Preset, offer: Offer) -> None:
        first, size = offer.parts[0], offer.missing_bytes / 1e6
        self._say(
            f"fetching {preset.title} from {first.repo_id}@{first.commit[:8]}: {size:,.0f} MB, "
            f"licence {first.licence or 'not stated'}; {preset.time}"
        )
        self._bar = tqdm(total=offer.missing_bytes, unit="B", unit_scale=True, mininterval=0.5)

    def report(self, done: int, total: int, doing: str) -> None:
        """Draws one step."""
        if total:
            self._bar.update(done - self._bar.n)
        else:
            self._bar.close()
            self._say(f"{doing} …")

    @staticmethod
    def _say(sentence: str) -> None:
        print(f"polyview: {sentence}", file=sys.stderr, flush=True)
