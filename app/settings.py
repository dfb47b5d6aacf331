"""The settings of the app, from its command line and environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polyview.app.access import HOST, is_loopback

Device = Literal["auto", "cpu", "cuda"]

DEVICES = ("auto", "cpu", "cuda")
BUNDLED = Path(__file__).parent / "bundled"
SCENES, PHOTOGRAPHS = "scenes", "photos"  # bundled packs for rendered scenes and photographs
# host names of Spaces, and of Gradio's tunnel (GRADIO_SHARE)
_SPACE_NAME, _SHARE_NAME = ".hf.space", ".gradio.live"


@dataclass(frozen=True)
class Settings:
    """The options of the app, which `python app/main.py --help` describes.

    Attributes:
        gallery: a folder or ZIP archive; a `str` is the address of a gallery in Qdrant.
        allow_packs: the Hub ids `owner/name[@revision]` that visitors of a public app may load.
        allow_hosts: names by which others reach the app, as `host` or `host:port`.
    """

    pack: str | None = None  # None for the bundled pack that suits the gallery
    gallery: Path | str | None = None
    device: Device = "auto"
    host: str = "127.0.0.1"
    port: int | None = None
    mcp: bool = False
    allow_packs: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for an option or environment variable that is not valid."""
        if self.pack is not None and not self.pack.strip():
            raise ValueError("--pack is empty; give a bundled name, a folder or a Hub id")
        if self.device not in DEVICES:
            choices = ", ".join(DEVICES)
            raise ValueError(f'--device "{self.device}" is unknown; choose one of {choices}')
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError(f"--port must be 1 to 65535, not {self.port}")
        for name in self.allow_hosts:
            if HOST.fullmatch(name.lower()) is None:
                advice = "use one such as polyview.example"
                raise ValueError(f'--allow-host "{name}" is not a host name; {advice}')
        proxies = os.environ.get("FORWARDED_ALLOW_IPS", "")
        trusts_all = any(p.strip() == "*" or p.strip().endswith("/0") for p in proxies.split(","))
        if trusts_all and not (self.private or self.on_space):
            fault = "lets every client fake its address"
            advice = "set it to the proxy's address, such as 10.0.0.2"
            raise ValueError(f'FORWARDED_ALLOW_IPS="{proxies}" {fault}; {advice}')
        if isinstance(self.gallery, Path) and not self.gallery.exists():
            raise ValueError(f"--gallery {self.gallery} does not exist; give a folder or ZIP file")

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> Settings:
        """Parses a command line; prints an error and exits with status 2 if it is not valid."""
        parser = _parser()
        values, environment = vars(parser.parse_args(argv)), os.environ
        try:
            source = values["gallery"]
            if source is not None and not source.startswith(("qdrant:", "qdrants:")):
                values["gallery"] = Path(source)
            if ":" in values["host"]:  # an IPv6 address
                values["host"] = f"[{values['host'].strip('[]')}]"
            names = environment.get("POLYVIEW_ALLOW_HOST", "").split(",")
            names = values["allow_hosts"] or [name.strip() for name in names if name]
            packs = values["allow_packs"] or environment.get("POLYVIEW_ALLOW_PACK", "").split()
            return cls(**{**values, "allow_hosts": tuple(names), "allow_packs": tuple(packs)})
        except ValueError as error:
            parser.error(str(error))

    @property
    def first_pack(self) -> str:
        """The pack to start with; by default `photos` for a folder or archive, else `scenes`."""
        return self.pack or (PHOTOGRAPHS if isinstance(self.gallery, Path) else SCENES)

    @property
    def private(self) -> bool:
        """True if only this machine can reach the app, so that users may open local folders.

        The app cannot detect every proxy. Behind a proxy, --allow-host must therefore be set.
        """
        return not (self.on_space or self.shared or self.allow_hosts) and is_loopback(self.host)

    @property
    def on_space(self) -> bool:
        """True if the app runs as a Hugging Face Space."""
        return "SPACE_ID" in os.environ

    @property
    def shared(self) -> bool:
        """True if Gradio opens a tunnel to the app."""
        return os.environ.get("GRADIO_SHARE", "").lower() == "true" and not self.on_space

    @property
    def names(self) -> tuple[str, ...]:
        """The host names that `Hosts` in `app/access.py` accepts in addition to loopback names."""
        names = [*self.allow_hosts, self.host]
        if self.shared:
            names.append(_SHARE_NAME)
        if self.on_space:
            names += [*filter(None, os.environ.get("SPACE_HOST", "").split(",")), _SPACE_NAME]
        return tuple(names)


def bundled_packs() -> list[str]:
    """Returns the names of the bundled packs, sorted."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/pack.json"))


def bundled_pack(name: str) -> Path | None:
    """Returns the folder of a bundled pack; None for an unknown name."""
    is_valid, folder = name.replace("_", "").isalnum(), BUNDLED / name
    return folder if is_valid and (folder / "pack.json").is_file() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python app/main.py",
        description="Polyview: search images by words and words by images, and see why they match.",
    )
    add, pack = parser.add_argument, os.environ.get("POLYVIEW_PACK") or None
    text = (
        "a bundled name, a preset such as tinyclip (fetched once), a pack's folder, or a Hub id "
        "owner/name[@revision] (default: POLYVIEW_PACK if it is set, else "
        f"{PHOTOGRAPHS} for a folder or ZIP archive, otherwise {SCENES})"
    )
    add("--pack", default=pack, help=text)
    text = "your images: a folder (with subfolders), a ZIP archive or qdrant://host:port/collection"
    add("--gallery", help=text)
    add("--device", default=Settings.device, choices=DEVICES, help="auto (default): CUDA if usable")
    host = os.environ.get("GRADIO_SERVER_NAME", Settings.host)
    add("--host", default=host, help="address to listen on (default: 127.0.0.1, this machine only)")
    text = (
        "a name by which others reach the app, such as polyview.example; may be repeated "
        "(default: POLYVIEW_ALLOW_HOST, separated by commas). Needed behind a proxy"
    )
    add("--allow-host", dest="allow_hosts", action="append", metavar="NAME", help=text)
    add("--port", type=int, help="port to listen on (default: the first free one from 7860)")
    text = "also serve the endpoints as tools for assistants (Model Context Protocol)"
    add("--mcp", action="store_true", help=text)
    text = (
        "a pack that visitors of a public app may load from the Hub, in exactly this spelling; may "
        "be repeated (default: POLYVIEW_ALLOW_PACK, separated by spaces)"
    )
    name = "OWNER/NAME[@REVISION]"
    add("--allow-pack", dest="allow_packs", action="append", metavar=name, help=text)
    return parser
