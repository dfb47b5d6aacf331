"""What packs there are: on the Hub, and in its client's cache on this machine.

On the Hub a pack is known by the tag that its model card carries (`export/pack/card.py`).
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from huggingface_hub import CacheNotFound, HfApi, constants, scan_cache_dir

from export.hub.client import HubError, UnreachableError, asking, connect, endpoint, look_at
from export.hub.offer import NOT_PACK, licence_of
from export.pack.card import TAG
from export.pack.reading import load_info
from models import METHODS

MOST = 100  # packs on the Hub that are looked at
_AT_ONCE = 8
_HEADS = ("PACK", "COMMIT", "SIZE", "LICENCE", "METHODS", "HERE")


@dataclass(frozen=True)
class Row:
    """One pack of a list.

    Attributes:
        repo_id: `owner/name`.
        commit: of which the rest is said; None where the Hub does not tell.
        bytes: of all its files; None where unknown.
        licence: as its owner states it, or None.
        methods: keys of `models.METHODS`.
        here: whether it is in the cache, in a word.
    """

    repo_id: str
    commit: str | None
    bytes: int | None
    licence: str | None
    methods: tuple[str, ...]
    here: str


def cached(cache_dir: Path | None = None) -> list[Row]:
    """The whole packs in the Hub client's cache, a row for each commit, the newest first.

    Args:
        cache_dir: where downloads are kept; None for the client's own folder.
    """
    try:
        repos = scan_cache_dir(cache_dir or constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    rows = []
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        for held in sorted(repo.revisions, key=lambda held: -held.last_modified):
            try:
                info = load_info(held.snapshot_path, verify=False)
            except (ValueError, OSError):
                continue  # something else, or not whole
            size = sum(file.size_on_disk for file in held.files)
            methods = tuple(info.methods)
            row = Row(repo.repo_id, held.commit_hash, size, info.licence, methods, "yes")
            rows.append(row)
    return rows


def published(
    api: HfApi, names: Sequence[str] = (), author: str | None = None, here: Iterable[Row] = ()
) -> list[Row]:
    """The packs on the Hub, at most `MOST`, as they are on their main branches.

    Args:
        api: the client to ask with.
        names: `owner/name` of those wanted; none for all.
        author: whose; None for anybody's.
        here: what is in the cache, see `cached`.

    Raises:
        UnreachableError: the Hub cannot be asked.
        HubError: it refused.
    """
    wanted = list(names)
    if not wanted:
        with asking("the list of packs"):
            found = api.list_models(filter=TAG, author=author, limit=MOST)
            wanted = [model.id for model in islice(found, MOST)]
    held: dict[str, list[str]] = {}
    for row in here:
        held.setdefault(row.repo_id, []).append(str(row.commit))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = list(pool.map(lambda name: _look(api, name, bool(names)), wanted))
    return [replace(row, here=_here(row, held)) for row in rows]


def versions(api: HfApi, repo_id: str) -> list[tuple[str, str, str]]:
    """Kind ("branch" or "tag"), name and commit of whatever a repository calls by a name.

    Raises:
        HubError: the Hub refused or could not be reached.
    """
    with asking(repo_id):
        refs = api.list_repo_refs(repo_id)
    kinds = (("branch", refs.branches), ("tag", refs.tags))
    return [(kind, ref.name, ref.target_commit) for kind, some in kinds for ref in some]


def show(
    names: Sequence[str], author: str | None, token: str | None, cache_dir: Path | None
) -> str:
    """The list as text: what the Hub has and what is here; without a connection the latter.

    Args:
        names: `owner/name` of those wanted, with their branches and tags; none for all.
        author: whose; None for anybody's.
        token: one that may read; None for the one that the client is logged in with, if any.
        cache_dir: where downloads are kept; None for the client's own folder.

    Raises:
        HubError: the Hub refused, or cannot be reached while a pack that was named is not here.
    """
    api = connect(token)
    here = [row for row in cached(cache_dir) if _wanted(row, names, author)]
    try:
        rows = published(api, names, author, here)
    except UnreachableError as silent:
        for name in set(names) - {row.repo_id for row in here}:
            raise HubError(silent.missing(name)) from silent
        print(f"{silent.why}: only what is in the local cache is listed", file=sys.stderr)
        return table(here) if here else "no pack is in the local cache"
    elsewhere = {row.repo_id for row in rows}
    rows += [row for row in here if row.repo_id not in elsewhere]
    if not rows:
        return f"no pack is at {endpoint()}{f' by {author}' if author else ''}, and none is here"
    parts = [table(rows)]
    for name in names:
        commits = {row.commit for row in here if row.repo_id == name}
        refs = [
            f"  {kind:6}  {label}  {commit[:8]}{'  here' if commit in commits else ''}"
            for kind, label, commit in versions(api, name)
        ]
        parts.append("\n".join([f"{name}:", *refs]))
    return "\n\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """The rows in aligned columns.

    >>> print(table([Row("owner/name", "0123456789", 1_500_000, "mit", ("pvse", "avse"), "no")]))
    PACK        COMMIT    SIZE    LICENCE  METHODS     HERE
    owner/name  01234567  1.5 MB  mit      pvse, avse  no
    """
    cells = [_HEADS] + [
        (
            row.repo_id,
            (row.commit or "?")[:8],
            "?" if row.bytes is None else f"{row.bytes / 1e6:.1f} MB",
            row.licence or "?",
            ", ".join(row.methods) or "?",
            row.here,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (zip(line, widths, strict=True) for line in cells)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines
    )


def _look(api: HfApi, repo_id: str, named: bool) -> Row:
    """A repository's row; what may not be read and was not named is listed without more."""
    try:
        found = look_at(repo_id, None, api, sizes=True)
    except UnreachableError:
        raise
    except HubError:
        if named:
            raise
        return Row(repo_id, None, None, None, (), "no")
    sizes = [file.size for file in found.siblings or [] if file.rfilename not in NOT_PACK]
    known = [size for size in sizes if size is not None]
    tags = found.tags or []  # those of its card, and the Hub's own
    return Row(
        repo_id,
        found.sha,
        sum(known) if len(known) == len(sizes) else None,
        licence_of(found),
        tuple(method for method in METHODS if method in tags),
        "no",
    )


def _here(row: Row, held: Mapping[str, Sequence[str]]) -> str:
    commits = held.get(row.repo_id, [])
    if row.commit in commits:
        return "yes"
    return f"other: {', '.join(commit[:8] for commit in commits)}" if commits else "no"


def _wanted(row: Row, names: Sequence[str], author: str | None) -> bool:
    owner = row.repo_id.partition("/")[0]
    return (not names or row.repo_id in names) and author in (None, owner)
