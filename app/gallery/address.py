"""The address of a gallery in Qdrant: `qdrant://host:port/collection`, or a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 6333
FORM = "qdrant://host:port/collection, qdrants:// where it speaks TLS, or qdrant:///folder/name"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SCHEMES = ("qdrant", "qdrants")


@dataclass(frozen=True)
class Address:
    """A collection in Qdrant.

    Attributes:
        name: of the collection.
        host: the server; empty if the collection is in a folder.
        port: of the server's REST interface.
        tls: whether the server speaks TLS.
        folder: the folder of a collection without a server, or None.
        approximate: whether Qdrant may use the collection's HNSW graph.
        pictures: the folder of the image files on this machine; None if they are still at the paths
            from which they were migrated.
    """

    name: str
    host: str = ""
    port: int = PORT
    tls: bool = False
    folder: Path | None = None
    approximate: bool = False
    pictures: Path | None = None

    def __str__(self) -> str:
        if self.folder is not None:
            return f"qdrant://{self.folder}/{self.name}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'qdrants' if self.tls else 'qdrant'}://{host}:{self.port}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses an address.

        Args:
            text: see `FORM`; `?search=approximate` and `pictures=DIR` may follow, joined by "&".

        Raises:
            ValueError: it is not an address; the message shows the form.

        >>> Address.parse("qdrants://vectors.example:443/photos").port
        443
        >>> str(Address.parse("qdrant:///srv/qdrant/photos"))
        'qdrant:///srv/qdrant/photos'
        """
        try:
            parts = urlsplit(text.strip())
            port = parts.port or PORT
        except ValueError as error:
            raise ValueError(f'"{text[:200]}" is no address ({error}); give {FORM}') from error
        before, _, name = unquote(parts.path).rpartition("/")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.password is not None or parts.username is not None or "api_key" in options:
            raise ValueError(
                "a key in the address would be seen by whoever lists this machine's processes; "
                "give it in the variable QDRANT_API_KEY"
            )
        placed = bool(parts.hostname) != bool(before)  # either a server or a folder
        if parts.scheme not in _SCHEMES or _NAME.fullmatch(name) is None or not placed:
            raise ValueError(f'"{text[:200]}" names no collection of Qdrant; give {FORM}')
        if unknown := options.keys() - {"search", "pictures"}:
            raise ValueError(
                f'an address has no option "{min(unknown)[:80]}"; choose from search, pictures'
            )
        search = options.get("search", "exact")
        if search not in ("exact", "approximate"):
            raise ValueError(f'search must be "exact" or "approximate", not "{search}"')
        images = Path(options["pictures"]).expanduser() if "pictures" in options else None
        if images is not None and not images.is_dir():
            raise ValueError(f"pictures={images} is not a folder on this machine")
        host, folder = parts.hostname or "", None if parts.hostname else Path(before)
        tls, approximate = parts.scheme == "qdrants", search == "approximate"
        return cls(name, host, port, tls, folder, approximate, images)

    @staticmethod
    def meant(text: str) -> bool:
        """Whether a text is an address rather than a folder.

        >>> Address.meant("qdrant://localhost/photos"), Address.meant("photos")
        (True, False)
        """
        return text.strip().startswith(tuple(f"{scheme}:" for scheme in _SCHEMES))
