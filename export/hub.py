"""Packs on the Hugging Face Hub, or on any server that speaks its protocol (`HF_ENDPOINT`).

On the command line:

    python -m export.hub push PACK owner/name [--private] [--revision BRANCH]
    python -m export.hub pull owner/name [--revision BRANCH_TAG_OR_COMMIT]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from export.fields import PackError, read_json
from export.gallery import FOLDER
from export.manifest_parser import parse_info
from export.pack import CARD, MANIFEST, list_files, load_info

TIMEOUT = 10.0  # seconds


class HubError(ValueError):
    """A pack could not be pushed or pulled; the message says why and what to do."""


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
        PackError: the pack is damaged.
        HubError: the Hub refused or could not be reached.
    """
    info = load_info(pack)
    adds = [CommitOperationAdd(name, info.folder / name) for name in list_files(info)]
    api = HfApi(endpoint=_endpoint(), token=token)
    with _sentences(repo_id, revision):
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
    token: str | None = None,
    cache_dir: Path | None = None,
) -> Path:
    """Downloads a pack into the Hub client's cache; without a connection, finds it there.

    pack.json comes first and is checked; then exactly the files it lists, of the same commit.

    Args:
        repo_id: `owner/name`.
        revision: a branch, tag or commit; None for the main branch.
        token: a token that may read; None uses the one the client is logged in with, if any.
        cache_dir: where downloads are kept; None for the client's own folder.

    Returns:
        The pack's folder, after every size and checksum in it was found right.

    Raises:
        HubError: the Hub refused or could not be reached, or what it holds is not a whole pack.
    """
    api = HfApi(endpoint=_endpoint(), token=token)
    with _sentences(repo_id, revision):
        manifest, local = _fetch_manifest(api, repo_id, revision, cache_dir)
        commit = manifest.parent.name
        info = parse_info(read_json(manifest), manifest.parent)
        wanted = [MANIFEST, CARD, *info.files]
        if info.gallery is not None:
            wanted.append(f"{FOLDER}/*")
        folder = Path(
            api.snapshot_download(
                repo_id,
                revision=commit,
                allow_patterns=wanted,
                cache_dir=cache_dir,
                local_files_only=local,
            )
        )
        load_info(folder)
    return folder


def _fetch_manifest(
    api: HfApi, repo_id: str, revision: str | None, cache_dir: Path | None
) -> tuple[Path, bool]:
    """Downloads pack.json, or finds it in the cache where the Hub cannot be asked.

    The Hub is asked about the repository first, because that fails at once where nobody answers;
    a download would try again for half a minute.

    Returns:
        pack.json in the folder of its commit, and whether it is to be the cache alone.
    """
    try:
        api.model_info(repo_id, revision=revision, timeout=TIMEOUT)
        local = False
    except (OfflineModeIsEnabled, HTTPError) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise
        local = True
    manifest = api.hf_hub_download(
        repo_id, MANIFEST, revision=revision, cache_dir=cache_dir, local_files_only=local
    )
    return Path(manifest), local


def _endpoint() -> str:
    """The server to talk to; the client itself looks at the environment only when imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


@contextmanager
def _sentences(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turns what goes wrong inside into `HubError`s that a person can act on."""
    name = repo_id if revision is None else f"{repo_id}@{revision}"
    try:
        yield
    except PackError as error:
        raise HubError(
            f"{name} is not a whole pack: {error}; if its owner says it is, delete its folder in "
            "the Hub client's cache and pull again"
        ) from error
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise HubError(_explain(_root_cause(error), name)) from error


def _root_cause(error: BaseException) -> BaseException:
    """What is behind the client's errors that only say that something failed."""
    vague = isinstance(error, (LocalEntryNotFoundError, RuntimeError))
    return _root_cause(error.__cause__) if vague and error.__cause__ is not None else error


def _explain(error: BaseException, name: str) -> str:
    """One sentence for one of the client's errors."""
    if isinstance(error, OfflineModeIsEnabled):
        return f"{name} cannot be reached while HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, LocalEntryNotFoundError):
        offline = constants.is_offline_mode()
        why = "HF_HUB_OFFLINE is set" if offline else f"the Hub at {_endpoint()} cannot be reached"
        return (
            f"{name} is not, or not all, in the local cache, and {why}; pull it once while online"
        )
    if isinstance(error, GatedRepoError):
        return (
            f"{name} is gated; accept its conditions on its page, then log in with `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no {name} at {_endpoint()}, or it is private or the token is not valid; "
            "check the name, and log in with `hf auth login` or pass a token"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name}: there is no such revision; leave it out, or name a branch, tag or commit"
    if isinstance(error, RemoteEntryNotFoundError):
        return f"{name} is not a pack: it has no {MANIFEST}"
    if isinstance(error, HfHubHTTPError):
        return _explain_status(error, name)
    if isinstance(error, HTTPError):
        return (
            f"the Hub at {_endpoint()} cannot be reached ({error}); "
            "check the connection and HF_ENDPOINT"
        )
    return f"{name}: {error}"


def _explain_status(error: HfHubHTTPError, name: str) -> str:
    status = error.response.status_code
    advice = {
        401: "log in with `hf auth login` or pass a valid token",
        403: "use a token that is allowed to",
        429: "wait a little and try again",
    }
    return (
        f"the Hub at {_endpoint()} refused {name} with status {status}; "
        f"{advice.get(status, 'try again later')}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m export.hub", description="Share packs.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("push", help="upload a pack")
    up.add_argument("pack", type=Path, help="the pack's folder")
    up.add_argument("repo_id", help="owner/name")
    up.add_argument("--private", action="store_true", help="make a new repository private")
    down = commands.add_parser("pull", help="download a pack and print its folder")
    down.add_argument("repo_id", help="owner/name")
    down.add_argument("--cache-dir", type=Path, help="where downloads are kept")
    for command in (up, down):
        command.add_argument("--revision", help="branch; for pull also a tag or a commit")
        command.add_argument("--token", help="else HF_TOKEN, else the client's login")
    given = parser.parse_args(argv)
    try:
        if given.command == "push":
            print(push(given.pack, given.repo_id, given.private, given.token, given.revision))
        else:
            print(pull(given.repo_id, given.revision, given.token, given.cache_dir))
    except (ValueError, FileNotFoundError) as error:
        print(f"{given.command} failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
