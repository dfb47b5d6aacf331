"""Hub ids, such as `owner/name@v1`."""

import re
from pathlib import Path

# Each part of a revision begins with a letter, a digit or "_": the Hub client makes the path of a
# file of it, also where it asks nobody.
_HUB_ID = re.compile(
    r"(?![^@]*(?:--|\.\.))(?P<id>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
    r"(@(?P<revision>(?!.*\.\.)(?=.{1,200}\Z)\w[\w.-]*(/\w[\w.-]*)*))?",
    re.ASCII,
)


def is_hub_id(text: str) -> bool:
    """Whether a text is spelled as `owner/name` or `owner/name@revision`."""
    return _HUB_ID.fullmatch(text) is not None


def parse_hub_id(text: str) -> tuple[str, str | None]:
    """Splits a Hub id into repository and revision; neither can lead out of the client's cache.

    Raises:
        ValueError: it is no Hub id.

    >>> parse_hub_id("owner/name@refs/pr/1")
    ('owner/name', 'refs/pr/1')
    """
    match = _HUB_ID.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text[:200]}" is no Hub id; name it as owner/name or owner/name@v1')
    return match["id"], match["revision"]


def cached_commit(folder: Path) -> tuple[str, str] | None:
    """The repository and the commit that a folder in the Hub client's cache holds.

    >>> cached_commit(Path("hub/models--owner--name/snapshots/0a1b"))
    ('owner/name', '0a1b')
    >>> cached_commit(Path("runs/pack"))
    """
    kind, _, repo_id = folder.parent.parent.name.partition("--")
    if folder.parent.name != "snapshots" or kind != "models" or "--" not in repo_id:
        return None
    return repo_id.replace("--", "/", 1), folder.name
