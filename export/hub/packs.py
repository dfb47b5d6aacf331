"""Packs on the Hub: push, pull and list (`python -m polyview hub`).

A pack on the Hub is a model repository with the files of a pack; the tag `TAG` in its model card
marks it. For addresses and tokens see `export/hub/client.py`.
"""

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants, scan_cache_dir

from polyview.export.hub import client
from polyview.export.hub.client import HubError, Progress, Repo, Token, UnreachableError
from polyview.export.pack.reading import TAG, list_files, load_info, read_info, render_card
from polyview.export.pack.schema import CARD, FOLDER, INDEX, MANIFEST, MAX_MANIFEST, UNKNOWN_LICENCE
from polyview.export.pack.validation import MAX_JSON, PackError
from polyview.models.files import atomic_write

_log = logging.getLogger(__name__)
_MAX_LISTED = 100  # maximum number of packs in a list
_MAX_CARD = 10**6  # bytes of README.md; a larger file is not fetched
# Limits for a pack that a visitor of a public app loads.
MAX_BYTES = 2 * 10**9
MAX_FILES = 20_000
MIN_FREE_BYTES = 10**9  # bytes of the disk that must stay free


def push(pack: Path, address: str, private: bool = False, token: str | None = None) -> str:
    """Uploads a pack to a model repository in one commit; returns the URL of the commit.

    The pack is checked first; other files in its folder are not uploaded. The repository and branch
    are created if missing; `private` applies to a new repository. Raises FileNotFoundError if
    a file of the pack is missing, PackError if the pack is damaged or its licence is unknown,
    HubError if the Hub refuses or cannot be reached.
    """
    repo_id, branch = client.parse_hub_id(address)
    info = load_info(pack)
    if info.licence.lower() == UNKNOWN_LICENCE:
        advice = "ask their authors, and export it again with --licence"
        raise PackError(f"{pack} does not state the licence of its weights; {advice}")
    files = [CommitOperationAdd(name, info.folder / name) for name in list_files(info)]
    if not (info.folder / CARD).is_file():  # the card's tag marks the repository as a pack
        files.append(CommitOperationAdd(CARD, render_card(info).encode()))
    api, message = HfApi(token=token), f"Pack {info.name}"
    with client.convert_errors(address):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        commit = api.create_commit(repo_id, files, commit_message=message, revision=branch)
    return str(commit.commit_url)


def pull(
    address: str,
    token: Token = None,
    commit: str | None = None,
    for_visitor: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Downloads a pack into the Hub's cache; without a connection, finds the pack in the cache.

    The cached branch or tag is updated only when the pack is complete and correct: a failed pull
    keeps the previous version, and an invalid pack is deleted. If `commit` is given, the Hub must
    resolve the address to it. For visitors, `MAX_BYTES`, `MAX_FILES` and `MIN_FREE_BYTES` apply.
    Returns the folder of the commit, with verified sizes and checksums. Raises UnreachableError if
    the Hub cannot be reached and the cache lacks the pack, HubError if the Hub refuses, the address
    resolves to another commit, or the pack is invalid or exceeds a visitor's limits.
    """
    try:
        repo = client.inspect_repo(address, token)
    except UnreachableError as error:
        return find_cached(address, error)
    if commit not in (None, repo.commit):
        raise HubError(f"{address} has changed since it was inspected; inspect it again")
    try:
        pack_repo = _select_pack(repo, token)
        if for_visitor:
            _check_limits(pack_repo)
        client.fetch(pack_repo, token, progress)
        load_info(repo.folder)
    except PackError as error:
        if repo.folder.is_dir():  # files shared with other commits are kept
            scan_cache_dir(repo.folder.parents[2]).delete_revisions(repo.commit).execute()
        message = f"the pack {address} cannot be used: {error}; its download was deleted"
        raise HubError(message) from error
    revision = client.parse_hub_id(address)[1] or constants.DEFAULT_REVISION
    if revision != repo.commit:
        with suppress(OSError):
            atomic_write(repo.folder.parents[1] / "refs" / revision, repo.commit)
    return repo.folder


def _select_pack(repo: Repo, token: Token) -> Repo:
    """Fetches the JSON files, restricts `repo` to the pack's files, and checks their sizes."""
    if MANIFEST not in repo.files:
        raise HubError(f"{repo.address} is not a pack: it has no {MANIFEST}")
    limits = {MANIFEST: MAX_MANIFEST, f"{FOLDER}/{INDEX}": MAX_JSON}
    json_repo = repo.select(limits.keys() & repo.files.keys())
    for name, size in json_repo.files.items():
        if (size or 0) > limits[name]:
            raise PackError(f"{name} has {size:,} bytes, more than the {limits[name]:,} allowed")
    client.fetch(json_repo, token, progress=lambda *_: None)  # shows no progress bar
    info = read_info(repo.folder)
    # the card in the cache may come from `evaluate --write` instead of the Hub
    names = [name for name in list_files(info, check_gallery=False) if name != CARD]
    for name in names:
        if name not in repo.files:
            raise PackError(f"its repository lacks {name}")
        size, entry = repo.files[name], info.files.get(name)
        if entry is not None and size not in (None, entry.bytes):
            raise PackError(f"{name} has {size} bytes on the Hub, but pack.json says {entry.bytes}")
    if CARD in repo.files and (repo.files[CARD] or 0) <= _MAX_CARD:
        names.append(CARD)
    return repo.select(names)


def _check_limits(repo: Repo) -> None:
    """Raises PackError if a visitor may not load the files, or the disk has no room for them."""
    total, count = sum(size or 0 for size in repo.files.values()), len(repo.files)
    if unsized_files := [name for name, size in repo.files.items() if size is None]:
        raise PackError(f"the Hub states no size for {unsized_files[0]}")
    for value, limit, unit in ((total, MAX_BYTES, "bytes"), (count, MAX_FILES, "files")):
        if value > limit:
            fault = f"it has {value:,} {unit}"
            raise PackError(f"{fault}, more than the {limit:,} that visitors may load")
    if shutil.disk_usage(constants.HF_HUB_CACHE).free < total + MIN_FREE_BYTES:
        raise PackError(f"there is no room for its {total:,} bytes on the disk")


def find_cached(address: str, error: UnreachableError | None = None) -> Path:
    """Finds a complete pack in the cache; `error` explains why the Hub cannot be reached.

    Raises HubError if the pack is missing or damaged; with `error`, UnreachableError if missing.
    """
    try:
        folder = load_info(client.fetch_matching(address, (), local_files_only=True)).folder
    except PackError as damage:
        raise HubError(f"{address} in the local cache cannot be used: {damage}") from damage
    except (FileNotFoundError, HubError) as cache_error:
        fault = f"{address} is not completely in the local cache"
        if error is not None:
            raise UnreachableError(f"{fault}, and {error}") from cache_error
        raise HubError(f"{fault}; pull it") from cache_error
    if error is not None:
        _log.warning("%s: %s is taken from the local cache, commit %s", error, address, folder.name)
    return folder


def resolve(pack: str) -> Path:
    """Finds a pack's folder (see `find_folder`), or pulls `owner/name[@revision]` from the Hub.

    Raises FileNotFoundError if `pack` is neither a folder nor a Hub id, HubError as `pull` does.
    """
    return client.find_folder(pack) or pull(pack)


def list_packs(token: Token = None) -> list[str]:
    """Returns a line with address, commit and licence for each of at most 100 packs on the Hub.

    A token adds private packs. Raises HubError if the Hub refuses or cannot be reached.
    """
    lines = []
    with client.convert_errors("the list of packs"):
        api = HfApi(token=token)
        for model in api.list_models(filter=TAG, limit=_MAX_LISTED, expand=["sha", "tags"]):
            licences = [tag.partition("license:")[2] for tag in model.tags or []]
            licence = ", ".join(filter(None, licences)) or "licence unknown"
            lines.append(f"{model.id}@{model.sha}  {licence}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m polyview hub", description="Share packs.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("push", help="upload a pack")
    command.add_argument("pack", type=Path, help="the pack's folder")
    command.add_argument("address", help="owner/name, or owner/name@branch")
    command.add_argument("--private", action="store_true", help="make a new repository private")
    command = commands.add_parser("pull", help="download a pack, print its commit and its folder")
    command.add_argument("address", help="owner/name, or owner/name@REVISION (branch, tag, commit)")
    commands.add_parser("list", help=f"list up to {_MAX_LISTED} packs with commit and licence")
    for command in commands.choices.values():
        command.add_argument("--token", help="access token (default: HF_TOKEN, or hf auth login)")
    options = parser.parse_args(argv)
    try:
        if options.command == "push":
            print(push(options.pack, options.address, options.private, options.token))
        elif options.command == "list":
            print(*list_packs(options.token), sep="\n")
        else:
            folder = pull(options.address, options.token)
            print("@".join(client.cached_commit(folder) or ()), file=sys.stderr)
            print(folder)
    except (ValueError, FileNotFoundError) as error:
        print(f"{options.command} failed: {error}", file=sys.stderr)
        return 1
    return 0
