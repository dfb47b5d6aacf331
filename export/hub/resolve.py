"""Packs by name: a folder, or a repository on the Hub such as `owner/name@v1`."""

from pathlib import Path

from export.hub.client import is_hub_id
from export.hub.packs import pull
from export.pack.schema import current_name
from models.files import no_such


def resolve(pack: str) -> Path:
    """Finds a pack by what a person typed.

    Args:
        pack: a folder, or a Hub repository as `owner/name` or `owner/name@revision`, which is
            fetched; a folder that exists wins, and the Hub is not asked for `owner/name` where
            there is a folder `owner`.

    Raises:
        FileNotFoundError: it is neither a folder nor looks like a repository.
        HubError: the repository could not be fetched, or is no pack.
    """
    path = Path(pack).expanduser()
    for folder in (path, path.parent / current_name(path.name)):
        if folder.is_dir():
            return folder
    if not is_hub_id(pack) or (path.parent.is_dir() and "@" not in pack):
        advice = "name a pack's folder, or a Hub repository as owner/name or owner/name@revision"
        raise FileNotFoundError(no_such("folder", path, advice))
    return pull(pack)
