"""A pack by what a person typed: a folder, or an id on the Hub."""

from pathlib import Path

from export.hub.address import HUB_ID
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
    given = Path(pack).expanduser()
    for folder in (given, given.parent / current_name(given.name)):
        if folder.is_dir():
            return folder
    match = HUB_ID.fullmatch(pack)
    if match is None or (given.parent.is_dir() and not match["revision"]):
        advice = "name a pack's folder, or a Hub repository as owner/name or owner/name@revision"
        raise FileNotFoundError(no_such("folder", given, advice))
    from export.hub.transfer import pull  # here: most starts need neither it nor its imports

    return pull(match["id"], match["revision"])
