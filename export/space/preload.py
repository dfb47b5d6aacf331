"""A pack that a Space takes from the Hub, which fetches it while it builds the Space."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from export.fields import read_json
from export.hub import patterns_of, sentences
from export.manifest_parser import parse_info
from export.offer import HUB_ID
from export.pack import MANIFEST
from models.hub import UnreachableError, connect, look_at

_MOST_NAMED = 100  # files in the front matter; of a pack with more, the whole repository is fetched


@dataclass(frozen=True)
class HubPack:
    """A pack on the Hub.

    Attributes:
        repo_id: `owner/name`.
        commit: of which it is.
        title: the pack's.
        licence: the pack's.
        credits: the pack's.
        files: its files, as far as they can be named in one line.
    """

    repo_id: str
    commit: str
    title: str
    licence: str
    credits: str
    files: tuple[str, ...]

    @property
    def address(self) -> str:
        """What the app is started with."""
        return f"{self.repo_id}@{self.commit}"

    @property
    def line(self) -> str:
        """Its entry in `preload_from_hub`: repository, files, commit."""
        return (
            f"{self.repo_id} {','.join(self.files)} {self.commit}" if self.files else self.repo_id
        )


def look_up(address: str) -> HubPack:
    """Asks the Hub for a pack, of which only pack.json is fetched.

    Args:
        address: `owner/name[@revision]`.

    Raises:
        ValueError: the address is none, or the pack has no pictures to search.
        HubError: the Hub refused or could not be reached, or what it holds is no pack.
    """
    match = HUB_ID.fullmatch(address)
    if match is None:
        raise ValueError(f'"{address[:200]}" is no Hub id; name it as owner/name or owner/name@v1')
    repo_id, revision = match["id"], match["revision"]
    api = connect()
    with sentences(repo_id, revision):
        try:
            found = look_at(repo_id, revision, api)
        except UnreachableError as silent:
            raise UnreachableError(
                f"{address} cannot be looked up, because {silent.why}; try again with a "
                "connection, or put a folder in with --pack",
                silent.why,
                silent.advice,
            ) from silent
        commit, names = str(found.sha), [file.rfilename for file in found.siblings or []]
        manifest = Path(api.hf_hub_download(repo_id, MANIFEST, revision=commit))
        info = parse_info(read_json(manifest), manifest.parent)
        patterns = patterns_of(manifest)
    if info.gallery is None:
        raise ValueError(
            f"the pack {address} comes without pictures, so that a Space could not start on it; "
            "name one with a gallery"
        )
    files = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
    plain = len(files) <= _MOST_NAMED and all(re.fullmatch(r"[^\s,]+", name) for name in files)
    named = tuple(sorted(files)) if plain else ()
    return HubPack(repo_id, commit, info.title, info.licence, info.credits, named)
