"""Packs on the Hugging Face Hub, or on any server that speaks its protocol (`HF_ENDPOINT`).

On the command line:

    python -m export.hub push PACK owner/name [--private] [--revision BRANCH]
    python -m export.hub pull owner/name [--revision BRANCH_TAG_OR_COMMIT]
    python -m export.hub list [--author NAME | owner/name ...]
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError, RemoteEntryNotFoundError

from export.hub.address import name_of
from export.hub.blobs import forget, forget_partial
from export.hub.client import (
    HubError,
    NotHereError,
    UnreachableError,
    check_address,
    connect,
    explain,
    look_at,
    refuse_damaged,
    root_cause,
)
from export.hub.download import Download, Limits, Tell, TooLargeError
from export.hub.listing import show
from export.pack import card
from export.pack.reading import list_files, load_info
from export.pack.schema import CARD, MANIFEST, UNKNOWN_LICENCE
from export.pack.validation import PackError
from models.files import write_whole

__all__ = ["HubError", "main", "pull", "push", "remove", "sentences"]

_log = logging.getLogger(__name__)


def push(
    pack: Path,
    repo_id: str,
    private: bool = False,
    token: str | None = None,
    revision: str | None = None,
) -> str:
    """Uploads a pack as a model repository, in one commit: nobody can ever pull half of it.

    Args:
        pack: the pack's folder; it is checked first, and only its own files are sent.
        repo_id: `owner/name`; made if there is none.
        private: make a new repository private.
        token: a token that may write; None uses the one the client is logged in with.
        revision: the branch; made if there is none.

    Returns:
        The address of the commit.

    Raises:
        FileNotFoundError: a file of the pack is missing.
        PackError: the pack is damaged, or nobody said which licence its weights have.
        HubError: the Hub refused or could not be reached.
    """
    check_address(repo_id, revision)
    info = load_info(pack)
    if info.licence.lower() == UNKNOWN_LICENCE:
        raise PackError(
            f"{pack} does not say which licence its weights have, and the Hub would show that to "
            "everybody; ask their authors, and make the pack again with --licence"
        )
    adds = [CommitOperationAdd(name, info.path(name)) for name in list_files(info)]
    if not (info.folder / CARD).is_file():  # by whose tag it is found
        adds.append(CommitOperationAdd(CARD, card.render(info).encode()))
    api = connect(token)
    with sentences(repo_id, revision):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.create_commit(
            repo_id, adds, commit_message=f"Pack {info.name}", revision=revision
        )
    return str(commit.commit_url)


def pull(
    repo_id: str,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: Path | None = None,
    local: bool = False,
    commit: str | None = None,
    limits: Limits | None = None,
    tell: Tell | None = None,
) -> Path:
    """Downloads a pack into the Hub client's cache; without a connection, finds it there.

    pack.json comes first and is checked; then exactly the files it lists, of the same commit. Only
    when all of them are right, the cache knows them by the name of the branch or tag: a pull that
    fails leaves what was pulled before, and of a pack that is refused nothing is kept.

    Args:
        repo_id: `owner/name`.
        revision: a branch, tag or commit; None for the main branch.
        token: a token that may read; None uses the one the client is logged in with, if any; False
            uses none.
        cache_dir: where downloads are kept; None for the client's own folder.
        local: only look into that folder, and ask nobody.
        commit: what the revision must still mean; None for whatever it means.
        limits: of what may be fetched; None for whatever pack.json says.
        tell: is told how far it is; None draws bars.

    Returns:
        The pack's folder, which is named by its commit, after every size and checksum in it was
        found right.

    Raises:
        NotHereError: it is not in that folder, and the Hub was not to be asked.
        HubError: the Hub refused or could not be reached, or what it holds is not a whole pack.
    """
    check_address(repo_id, revision)
    api, name = connect(token), name_of(repo_id, revision)
    with sentences(repo_id, revision):
        if local:
            return _find(api, repo_id, revision, cache_dir)
        try:
            found = look_at(repo_id, revision, api, sizes=True)
        except UnreachableError as silent:
            try:
                folder = _find(api, repo_id, revision, cache_dir)
            except (LocalEntryNotFoundError, NotHereError) as error:
                raise HubError(silent.missing(name)) from error
            _log.warning("%s; taken from the local cache: %s@%s", silent.why, repo_id, folder.name)
            return folder
        if commit not in (None, found.sha):
            raise HubError(f"{name} has changed since it was looked at; look again")
        forget_partial(repo_id, cache_dir)
        download = Download(api, repo_id, found, cache_dir, limits, tell)
        try:
            folder = download.run()
            _check(name, folder)
        except (PackError, TooLargeError):
            download.forget()
            raise
        _name(folder, revision)
    return folder


def remove(folder: Path) -> None:
    """Removes the files of a whole pack from the Hub client's cache."""
    forget(folder, list_files(load_info(folder, verify=False)))


def _find(api: HfApi, repo_id: str, revision: str | None, cache_dir: Path | None) -> Path:
    """The folder of a pack that is whole in the cache."""
    manifest = api.hf_hub_download(
        repo_id, MANIFEST, revision=revision, cache_dir=cache_dir, local_files_only=True
    )
    folder, name = Path(manifest).parent, name_of(repo_id, revision)
    try:
        _check(name, folder)
    except FileNotFoundError as error:
        raise NotHereError(f"{name} is not, or not all, in the local cache; pull it") from error
    return folder


def _check(name: str, folder: Path) -> None:
    """Refuses a pack that is not whole, and removes what came damaged from the cache."""
    try:
        load_info(folder)
    except PackError:
        files = [path for path in folder.rglob("*") if path.is_file()]
        refuse_damaged(name, folder, [path.relative_to(folder).as_posix() for path in files])
        raise


def _name(folder: Path, revision: str | None) -> None:
    """Lets the cache know a commit by the name of a branch or tag."""
    if revision == folder.name:
        return
    place = folder.parent.parent / "refs" / (revision or constants.DEFAULT_REVISION)
    with suppress(OSError):
        write_whole(place, folder.name)


@contextmanager
def sentences(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turns what goes wrong inside into `HubError`s that a person can act on."""
    name = name_of(repo_id, revision)
    try:
        yield
    except HubError:
        raise
    except PackError as error:
        raise HubError(
            f"{name} is not a whole pack: {error}; nothing of it was kept. If its owner says it is "
            "whole, delete its folder in the Hub client's cache and pull again"
        ) from error
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        cause = root_cause(error)
        if isinstance(cause, LocalEntryNotFoundError):
            raise NotHereError(explain(cause, name)) from error
        if isinstance(cause, RemoteEntryNotFoundError):
            raise HubError(f"{name} is not a pack: it has no {MANIFEST}") from error
        raise HubError(explain(cause, name)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m export.hub", description="Share packs.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("push", help="upload a pack")
    up.add_argument("pack", type=Path, help="the pack's folder")
    up.add_argument("repo_id", help="owner/name")
    up.add_argument("--private", action="store_true", help="make a new repository private")
    down = commands.add_parser("pull", help="download a pack, print its commit and its folder")
    down.add_argument("repo_id", help="owner/name")
    seen = commands.add_parser("list", help="packs on the Hub, and which of them are here")
    seen.add_argument("repo_ids", nargs="*", help="owner/name: these, with branches and tags")
    seen.add_argument("--author", help="only this owner's")
    for command in (down, seen):
        command.add_argument("--cache-dir", type=Path, help="where downloads are kept")
    for command in (up, down):
        command.add_argument("--revision", help="branch; for pull also a tag or a commit")
    for command in (up, down, seen):
        command.add_argument("--token", help="else HF_TOKEN, else the client's login")
    given = parser.parse_args(argv)
    try:
        if given.command == "push":
            print(push(given.pack, given.repo_id, given.private, given.token, given.revision))
        elif given.command == "list":
            print(show(given.repo_ids, given.author, given.token, given.cache_dir))
        else:
            folder = pull(given.repo_id, given.revision, given.token, given.cache_dir)
            print(f"{given.repo_id}@{folder.name}", file=sys.stderr)
            print(folder)
    except (ValueError, FileNotFoundError) as error:
        print(f"{given.command} failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
