"""Talking to the Hugging Face Hub, or to any server that speaks its protocol (`HF_ENDPOINT`)."""

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, ModelInfo, constants, try_to_load_from_cache
from huggingface_hub.errors import (
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from export.hub.address import HUB_ID, name_of
from export.hub.blobs import forget_damaged, forget_partial
from export.hub.connection import UselessError, install

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_NAME = 1000  # characters of a file's path in a repository

_TRY_AGAIN = "try again: files that came whole are kept"
_OTHER_SIZE = re.compile(r"should be of size (\d+) but has size (\d+) \((.+)\)")  # of the client
_ADVICE = {
    401: "log in with `hf auth login` or pass a valid token",
    403: "use a token that is allowed to",
    404: "check the name, and that HF_ENDPOINT is a Hub",
}


class HubError(ValueError):
    """Something could not be sent to or fetched from the Hub; the message says why."""


class NotHereError(HubError):
    """It is not, or not all, in the local cache, and the Hub was not to be asked."""


class UnreachableError(HubError):
    """The Hub cannot be asked, so that only what is on this machine is left.

    Args:
        message: a sentence.
        why: the part of it that says what is the matter.
        advice: what to do about it.
    """

    def __init__(self, message: str, why: str, advice: str) -> None:
        super().__init__(message)
        self.why = why
        self.advice = advice

    def missing(self, name: str) -> str:
        """The sentence for what is not in the cache either."""
        return f"{name} is not, or not all, in the local cache, and {self.why}; {self.advice}"


def endpoint() -> str:
    """The server to talk to; the client itself looks at the environment only when imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def check_address(repo_id: str, revision: str | None) -> None:
    """Refuses a repository or a revision whose name could lead out of the Hub client's cache.

    Raises:
        HubError: it could.
    """
    name = name_of(repo_id, revision)
    if HUB_ID.fullmatch(name) is None:
        raise HubError(
            f'"{name[:200]}" names no repository and revision; use owner/name, and of a revision '
            'letters, digits, "_", "-", "." and "/", with no ".."'
        )


def connect(token: str | bool | None = None) -> HfApi:
    """The Hub client, on a connection that keeps nobody waiting (`export/hub/connection.py`).

    Args:
        token: None for the one that the client is logged in with, if any; False for none at all.
    """
    install()
    return HfApi(endpoint=endpoint(), token=token)


def look_at(
    repo_id: str, revision: str | None, api: HfApi | None = None, sizes: bool = False
) -> ModelInfo:
    """Asks the Hub what a repository holds; where nobody answers, that is known at once.

    A download would try again for half a minute.

    Args:
        repo_id: `owner/name`.
        revision: a branch, tag or commit; None for the main branch.
        api: the client to ask with, such as one with a token.
        sizes: ask for the bytes of each file too.

    Raises:
        UnreachableError: the Hub cannot be asked.
        HubError: it refused, or names in its answer could lead out of the client's cache.
    """
    check_address(repo_id, revision)
    name = name_of(repo_id, revision)
    with asking(name):
        found = (api or connect()).model_info(repo_id, revision=revision, files_metadata=sizes)
    if not _COMMIT.fullmatch(str(found.sha)):
        raise HubError(f"{name}: what answers at {endpoint()} names no commit; check HF_ENDPOINT")
    for file in found.siblings or []:
        if not _stays_inside(file.rfilename):
            raise HubError(
                f"{name} lists a file {file.rfilename[:200]!r}, which is no path inside a "
                "repository; nothing of it is fetched"
            )
        if file.size is not None and not (type(file.size) is int and file.size >= 0):
            raise HubError(
                f"{name}: the Hub states {str(file.size)[:80]!r} as the size of {file.rfilename}; "
                "nothing of it is fetched"
            )
    return found


def _stays_inside(file: str) -> bool:
    r"""Whether the name of a file in a repository is a path that stays in its folder.

    >>> [_stays_inside(name) for name in ("a b/c.bin", "/etc/passwd", "a/../b", "a\\..", "a//b")]
    [True, False, False, False, False]
    """
    parts = re.split(r"[/\\]", file)
    plain = file.isprintable() and len(file) <= _LONGEST_NAME
    return plain and not {"", ".", ".."}.intersection(parts) and ":" not in parts[0]


@contextmanager
def asking(name: str) -> Iterator[None]:
    """Turns what goes wrong inside, where only questions are asked, into sentences about `name`.

    Raises:
        UnreachableError: the Hub cannot be asked.
        HubError: it refused.
    """
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        if silent := _silence(error):
            raise UnreachableError(explain(error, name), *silent) from error
        raise HubError(explain(error, name)) from error


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
    api = connect()
    name = name_of(repo_id, revision)
    try:
        found = look_at(repo_id, revision)
        wanted = choose([file.rfilename for file in found.siblings or []])
        new = [file for file in wanted if not is_cached(repo_id, file, found.sha)]
        forget_partial(repo_id)
        # by the name that was asked for, which the cache then knows without a connection
        folder = Path(api.snapshot_download(repo_id, revision=revision, allow_patterns=wanted))
        refuse_damaged(name, folder, new)
        return folder
    except UnreachableError as silent:
        try:
            # no pattern: what was fetched is asked for, not all that the repository holds
            return Path(
                api.snapshot_download(
                    repo_id, revision=revision, local_files_only=True, allow_patterns=[]
                )
            )
        except LocalEntryNotFoundError as error:
            raise HubError(silent.missing(name)) from error
    except HubError:
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise HubError(explain(root_cause(error), name)) from error


def is_cached(repo_id: str, file: str, commit: str | None, cache_dir: Path | None = None) -> bool:
    """Whether a file of a commit lies in the Hub client's cache."""
    held = try_to_load_from_cache(repo_id, file, cache_dir=cache_dir, revision=commit)
    return isinstance(held, str)


def refuse_damaged(name: str, folder: Path, files: Iterable[str]) -> None:
    """Removes what came damaged from the cache.

    Raises:
        HubError: there was such a file.
    """
    if damaged := forget_damaged(folder, files):
        raise HubError(
            f"{name}: {', '.join(damaged[:3])} came damaged, its bytes are not those that the Hub "
            "states; what was damaged is removed, try again"
        )


def origin(folder: Path) -> tuple[str, str] | None:
    """The repository and the commit that a folder in the Hub client's cache holds.

    >>> origin(Path("hub/models--owner--name/snapshots/0a1b"))
    ('owner/name', '0a1b')
    >>> origin(Path("runs/pack"))
    """
    kind, _, repo_id = folder.parent.parent.name.partition("--")
    if folder.parent.name != "snapshots" or kind != "models" or "--" not in repo_id:
        return None
    return repo_id.replace("--", "/", 1), folder.name


def root_cause(error: BaseException) -> BaseException:
    """What is behind the client's errors that only say that something failed."""
    vague = isinstance(error, (LocalEntryNotFoundError, RuntimeError))
    return root_cause(error.__cause__) if vague and error.__cause__ is not None else error


def explain(error: BaseException, name: str) -> str:
    """One sentence for one of the client's errors; `name` is the repository's."""
    if isinstance(error, OfflineModeIsEnabled):
        return f"{name} cannot be reached while HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, LocalEntryNotFoundError):
        return f"{name} is not, or not all, in the local cache; pull it"
    if isinstance(error, GatedRepoError):
        return (
            f"{name} is gated; accept its conditions on its page, then log in with `hf auth login` "
            "or pass a token"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no {name} at {endpoint()}, or it is private or the token is not valid; "
            "check the name, and log in with `hf auth login` or pass a token"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name}: there is no such revision; leave it out, or name a branch, tag or commit"
    if trouble := _trouble(error):
        return f"{name}: {trouble[0]}; {trouble[1]}"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        advice = _ADVICE.get(status, "try again later")
        return f"the Hub at {endpoint()} refused {name} with status {status}; {advice}"
    if full := without_room(error):
        return f"{name}: {full}"
    if found := _OTHER_SIZE.search(str(error)):
        said, came, address = found.groups()
        file = address.rpartition("/")[2]
        return f"{name}: {file} came with {came} bytes instead of {said}; {_TRY_AGAIN}"
    return f"{name}: {error}"


def without_room(error: BaseException) -> str | None:
    """The sentence for a disk that is full; None where it is not.

    >>> without_room(OSError(28, "No space left on device"))
    'the disk is full; make room and try again: files that came whole are kept'
    """
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return f"the disk is full; make room and {_TRY_AGAIN}" if full else None


def _silence(error: BaseException) -> tuple[str, str] | None:
    """What keeps the Hub from being asked at all, and what to do; None where it did answer."""
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set", "pull it once while online"
    return _trouble(error)


def _trouble(error: BaseException) -> tuple[str, str] | None:
    """What is the matter with the server or the way to it, and what to do; None: nothing is."""
    hub = f"the Hub at {endpoint()}"
    if isinstance(error, UselessError):
        return f"{hub} {error}", error.advice
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        broken = (f"{hub} is out of order (status {status})", "try again later")
        return broken if status >= 500 else None
    if isinstance(error, httpx2.TooManyRedirects):
        return f"{hub} redirects in circles", "check HF_ENDPOINT and the network's proxy"
    if isinstance(error, (httpx2.RemoteProtocolError, httpx2.ReadError)):
        return f"{hub} broke the connection off ({error})", _TRY_AGAIN
    if isinstance(error, httpx2.TimeoutException):
        return f"{hub} stopped sending", _TRY_AGAIN
    if isinstance(error, HTTPError):
        return f"{hub} cannot be reached ({error})", "check the connection and HF_ENDPOINT"
    if isinstance(error, (json.JSONDecodeError, FileMetadataError)):
        return (
            f"what answers at {endpoint()} is no Hub",
            "check HF_ENDPOINT, and whether the network wants a login first",
        )
    return None
