"""A pack that a Space takes from the Hub, which fetches it while it builds the Space."""

from dataclasses import dataclass

from export.hub.address import parse_hub_id
from export.hub.client import HubError, UnreachableError, connect, look_at
from export.hub.download import Download
from export.hub.transfer import sentences

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
    """Asks the Hub for a pack, of which only what describes it is fetched.

    Args:
        address: `owner/name[@revision]`.

    Raises:
        ValueError: the address is none, or the pack has no images to search.
        HubError: the Hub refused or could not be reached, or what it holds is no pack.
    """
    repo_id, revision = parse_hub_id(address)
    api = connect()
    with sentences(repo_id, revision):
        try:
            found = look_at(repo_id, revision, api, sizes=True)
        except UnreachableError as silent:
            raise UnreachableError(
                f"{address} cannot be looked up, because {silent.why}; try again with a "
                "connection, or put a folder in with --pack",
                silent.why,
                silent.advice,
            ) from silent
        download = Download(api, repo_id, found)
        info = download.describe()
        if info.gallery is None:
            raise HubError(
                f"the pack {address} comes without pictures, so that a Space could not start on "
                "it; name one with a gallery"
            )
        wanted = download.plan(info)
    named = tuple(sorted(wanted)) if len(wanted) <= _MOST_NAMED else ()
    return HubPack(repo_id, str(found.sha), info.title, info.licence, info.credits, named)
