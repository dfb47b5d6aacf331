"""What the command line of the app says, checked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from app.qdrant.address import Address

Device = Literal["auto", "cpu", "cuda"]

DEVICES = ("auto", "cpu", "cuda")
BUNDLED = Path(__file__).parent / "bundled"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Settings:
    """How the app was asked to run.

    Attributes:
        pack: a bundled name, a folder, or a Hub id `owner/name[@revision]`.
        gallery: a folder of pictures, or a ZIP archive of them, to search instead of the pack's
            own; where such pictures lie in Qdrant; or None.
        device: where the models run; "auto" takes a GPU if there is one.
        host: the address to listen on.
        port: the port to listen on; None takes the first free one from 7860.
        mcp: also serve the endpoints as tools of the Model Context Protocol.
    """

    pack: str = "scenes"
    gallery: Path | Address | None = None
    device: Device = "auto"
    host: str = "127.0.0.1"
    port: int | None = None
    mcp: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot work, in a sentence."""
        if not self.pack.strip():
            raise ValueError(
                "--pack is empty; give a folder, a Hub id such as owner/name, or scenes"
            )
        if self.device not in DEVICES:
            raise ValueError(
                f'--device "{self.device}" is unknown; choose one of {", ".join(DEVICES)}'
            )
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError(f"--port must be 1 to 65535, not {self.port}")
        if isinstance(self.gallery, Path) and not self.gallery.exists():
            raise ValueError(
                f"--gallery {self.gallery} is not a folder; give one that holds pictures, or a ZIP "
                "archive"
            )

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> Settings:
        """Reads a command line; prints the sentence and exits with 2 where it makes no sense."""
        parser = _parser()
        given = parser.parse_args(argv)
        try:
            return cls(
                pack=given.pack,
                gallery=_gallery(given.gallery),
                device=cast(Device, given.device),
                host=given.host,
                port=given.port,
                mcp=given.mcp,
            )
        except ValueError as error:
            parser.error(str(error))

    @property
    def private(self) -> bool:
        """Whether only this machine reaches the app, so that its visitor may name local folders."""
        return self.host in LOOPBACK and "SPACE_ID" not in os.environ


def bundled_pack(name: str) -> Path | None:
    """The folder of a pack that comes with the app, or None if there is none of that name."""
    plain = name.replace("_", "").isalnum()
    return BUNDLED / name if plain and (BUNDLED / name / "pack.json").is_file() else None


def _gallery(text: str | None) -> Path | Address | None:
    if text is None:
        return None
    return Address.parse(text) if Address.meant(text) else Path(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python app/main.py",
        description="Polyview: search pictures by words and words by pictures, and look inside.",
    )
    parser.add_argument(
        "--pack",
        default=os.environ.get("POLYVIEW_PACK") or Settings.pack,
        help="a bundled name, a pack's folder, or a Hub id owner/name[@revision] "
        "(default: POLYVIEW_PACK if it is set, else scenes)",
    )
    parser.add_argument(
        "--gallery",
        help="search this folder of your own pictures (read recursively), this ZIP archive of "
        "them, or those that were migrated to qdrant://host:port/collection",
    )
    parser.add_argument("--device", default=Settings.device, help="auto (default), cpu or cuda")
    parser.add_argument(
        "--host",
        default=os.environ.get("GRADIO_SERVER_NAME", Settings.host),
        help="address to listen on (default: 127.0.0.1, this machine only)",
    )
    parser.add_argument(
        "--port", type=int, help="port to listen on (default: the first free one from 7860)"
    )
    parser.add_argument(
        "--mcp",
        action="store_true",
        help="also serve the endpoints as tools for assistants (Model Context Protocol)",
    )
    return parser
