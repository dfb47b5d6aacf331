"""Where a gallery in Qdrant is: `qdrant://host:port/collection`, or a folder for small ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Search = Literal["exact", "approximate"]

PORT = 6333
FORM = "qdrant://host:port/collection, qdrants:// where it speaks TLS, or qdrant:///folder/name"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SCHEMES = ("qdrant", "qdrants")
_OPTIONS = ("search", "pictures", "grpc")


@dataclass(frozen=True)
class Address:
    """A collection in Qdrant.

    Attributes:
        name: of the collection.
        host: the server; empty where the collection lies in a folder.
        port: of the server's REST interface.
        tls: whether the server speaks TLS.
        folder: where qdrant-client keeps a collection without a server, or None.
        search: "approximate" lets Qdrant use its HNSW graph, where the collection has one.
        pictures: the folder of the pictures' files on this machine, or None where they lie at the
            paths they were migrated from.
        grpc: the port of the server's gRPC interface, or None to speak REST.
    """

    name: str
    host: str = ""
    port: int = PORT
    tls: bool = False
    folder: Path | None = None
    search: Search = "exact"
    pictures: Path | None = None
    grpc: int | None = None

    def __str__(self) -> str:
        if self.folder is not None:
            return f"qdrant://{self.folder}/{self.name}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'qdrants' if self.tls else 'qdrant'}://{host}:{self.port}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address.

        Args:
            text: as in the module's head; `?search=approximate`, `pictures=DIR` and `grpc=PORT`
                may follow, joined by "&".

        Raises:
            ValueError: it is none; the sentence says what one looks like.

        >>> Address.parse("qdrants://vectors.example:443/photos?grpc=6334").port
        443
        >>> str(Address.parse("qdrant:///srv/qdrant/photos"))
        'qdrant:///srv/qdrant/photos'
        """
        try:
            parts = urlsplit(text.strip())
            port = parts.port
        except ValueError as error:
            raise ValueError(f'"{text[:200]}" is no address ({error}); give {FORM}') from error
        if parts.scheme not in _SCHEMES:
            raise ValueError(f'"{text[:200]}" is no address; give {FORM}')
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "the address holds a password; give a server's key in the variable QDRANT_API_KEY"
            )
        before, _, name = unquote(parts.path).rpartition("/")
        if _NAME.fullmatch(name) is None or (parts.hostname and before):
            raise ValueError(f'"{text[:200]}" names no collection; give {FORM}')
        if not parts.hostname and not before:
            raise ValueError(f'"{text[:200]}" names no server and no folder; give {FORM}')
        options = _options(parts)
        search = options.get("search", "exact")
        if search not in ("exact", "approximate"):
            raise ValueError(f'search must be "exact" or "approximate", not "{search}"')
        grpc = options.get("grpc")
        if grpc is not None and not (grpc.isascii() and grpc.isdigit() and 0 < int(grpc) < 65536):
            raise ValueError(f'grpc must be a port, 1 to 65535, not "{grpc}"')
        images = Path(options["pictures"]).expanduser() if "pictures" in options else None
        if images is not None and not images.is_dir():
            raise ValueError(f"pictures={images} is not a folder on this machine")
        return cls(
            name,
            parts.hostname or "",
            port or PORT,
            parts.scheme == "qdrants",
            None if parts.hostname else Path(before),
            "approximate" if search == "approximate" else "exact",
            images,
            None if grpc is None else int(grpc),
        )

    @staticmethod
    def meant(text: str) -> bool:
        """Whether something is an address, rather than a folder.

        >>> Address.meant("qdrant://localhost/photos"), Address.meant("photos")
        (True, False)
        """
        return text.strip().startswith(tuple(f"{scheme}:" for scheme in _SCHEMES))


def _options(parts: SplitResult) -> dict[str, str]:
    """What follows the "?".

    Raises:
        ValueError: an option is unknown, or a key stands there for everybody to see.
    """
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "api_key" in options:
        raise ValueError(
            "a key in the address would be seen by whoever lists this machine's processes; "
            "give it in the variable QDRANT_API_KEY"
        )
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(
                f'an address takes no option "{name[:80]}"; choose from {", ".join(_OPTIONS)}'
            )
    return options
