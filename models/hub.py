"""Talking to the Hugging Face Hub, or to any server that speaks its protocol (`HF_ENDPOINT`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

TIMEOUT = 10.0  # seconds


def endpoint() -> str:
    """The server to talk to; the client itself looks at the environment only when imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def reachable_files(
    repo_id: str, revision: str | None, api: HfApi | None = None
) -> tuple[str | None, list[str]]:
    """Asks the Hub what a repository holds, which fails at once where nobody answers.

    A download would try again for half a minute.

    Args:
        repo_id: `owner/name`.
        revision: a branch, tag or commit; None for the main branch.
        api: the client to ask with, such as one with a token.

    Returns:
        The commit and the names of its files; None and nothing where the Hub cannot be asked, so
        that only the local cache is left.

    Raises:
        HfHubHTTPError: the Hub answered, and refused.
    """
    try:
        asked = api or HfApi(endpoint=endpoint())
        info = asked.model_info(repo_id, revision=revision, timeout=TIMEOUT)
    except (OfflineModeIsEnabled, HTTPError) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise
        return None, []
    return info.sha, [file.rfilename for file in info.siblings or []]


def fetch(repo_id: str, revision: str | None, choose: Callable[[Iterable[str]], list[str]]) -> Path:
    """Downloads files of a repository into the Hub client's cache, or finds them there.

    Args:
        repo_id: `owner/name`.
        revision: a branch, tag or commit; None for the main branch.
        choose: which of the repository's files are wanted.

    Returns:
        The folder of the commit. Without a connection it holds what was fetched before.

    Raises:
        HubError: the Hub refused or could not be reached, and the cache holds nothing.
    """
    name = repo_id if revision is None else f"{repo_id}@{revision}"
    try:
        commit, files = reachable_files(repo_id, revision)
        api = HfApi(endpoint=endpoint())
        if commit is None:
            # no pattern: what was fetched is asked for, not all that the repository holds
            folder = api.snapshot_download(
                repo_id, revision=revision, local_files_only=True, allow_patterns=[]
            )
            return Path(folder)
        wanted = choose(files)
        # by the name that was asked for, which the cache then knows without a connection
        return Path(api.snapshot_download(repo_id, revision=revision, allow_patterns=wanted))
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise HubError(explain(root_cause(error), name)) from error


class HubError(ValueError):
    """Something could not be sent to or fetched from the Hub; the message says why."""


def root_cause(error: BaseException) -> BaseException:
    """What is behind the client's errors that only say that something failed."""
    vague = isinstance(error, (LocalEntryNotFoundError, RuntimeError))
    return root_cause(error.__cause__) if vague and error.__cause__ is not None else error


def explain(error: BaseException, name: str) -> str:
    """One sentence for one of the client's errors; `name` is the repository's."""
    if isinstance(error, OfflineModeIsEnabled):
        return f"{name} cannot be reached while HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, LocalEntryNotFoundError):
        offline = constants.is_offline_mode()
        why = "HF_HUB_OFFLINE is set" if offline else f"the Hub at {endpoint()} cannot be reached"
        return (
            f"{name} is not, or not all, in the local cache, and {why}; pull it once while online"
        )
    if isinstance(error, GatedRepoError):
        return (
            f"{name} is gated; accept its conditions on its page, then log in with `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no {name} at {endpoint()}, or it is private or the token is not valid; "
            "check the name, and log in with `hf auth login` or pass a token"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name}: there is no such revision; leave it out, or name a branch, tag or commit"
    if isinstance(error, HfHubHTTPError):
        return _explain_status(error, name)
    if isinstance(error, HTTPError):
        return (
            f"the Hub at {endpoint()} cannot be reached ({error}); "
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
        f"the Hub at {endpoint()} refused {name} with status {status}; "
        f"{advice.get(status, 'try again later')}"
    )
