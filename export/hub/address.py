"""The names of repositories and revisions on the Hub, such as `owner/name@v1`."""

import re

# Parts of a revision begin with a letter, digit or "_", so that none is "..": the client makes the
# path of a file out of it, also where it asks nobody.
HUB_ID = re.compile(
    r"(?![^@]*(?:--|\.\.))(?P<id>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
    r"(@(?P<revision>(?!.*\.\.)(?=.{1,200}\Z)\w[\w.-]*(/\w[\w.-]*)*))?",
    re.ASCII,
)


def parse_hub_id(text: str) -> tuple[str, str | None]:
    """The repository and the revision that a Hub id names, as far as its spelling goes.

    Raises:
        ValueError: it is none.

    >>> parse_hub_id("owner/name@refs/pr/1")
    ('owner/name', 'refs/pr/1')
    """
    match = HUB_ID.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text[:200]}" is no Hub id; name it as owner/name or owner/name@v1')
    return match["id"], match["revision"]


def name_of(repo_id: str, revision: str | None) -> str:
    """A repository as people name it.

    >>> name_of("owner/name", None), name_of("owner/name", "v1")
    ('owner/name', 'owner/name@v1')
    """
    return repo_id if revision is None else f"{repo_id}@{revision}"
