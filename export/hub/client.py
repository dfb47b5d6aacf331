"""The Hugging Face Hub, or any server that speaks its protocol (`HF_ENDPOINT`).

`huggingface_hub` transfers files and keeps the cache. This module decides what is transferred:
`inspect_repo` asks what a commit holds and checks every name and size before anything is fetched;
`fetch` downloads exactly the files that are wanted, of that commit; errors become one sentence.

An address is `owner/name` or `owner/name@revision`. A token of None is the one that the client is
logged in with, if any; False sends none.
"""

import errno
import glob
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants
from huggingface_hub import errors as hf
from huggingface_hub.utils import tqdm

from models.files import sha256_of, write_whole

Token = str | bool | None
Progress = Callable[[int, int, str], None]  # bytes done, bytes in total, doing what

_log = logging.getLogger(__name__)
ANSWER = 10.0  # seconds until the Hub must begin to answer
_STALL = 60.0  # seconds without a byte, after which a transfer fails
_EVERY = 0.3  # seconds between two reports of progress
_CACHE_NAMES = ("ETag", "X-Linked-ETag", "X-Repo-Commit")  # headers of a HEAD request's answer
# Each part of a revision begins with a letter, a digit or "_": the Hub client makes the path of a
# file of it, also where it asks nobody.
_HUB_ID = re.compile(
    r"(?![^@]*(?:--|\.\.))(?P<id>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
    r"(@(?P<revision>(?!.*\.\.)(?=.{1,200}\Z)\w[\w.-]*(/\w[\w.-]*)*))?",
    re.ASCII,
)
_PLAIN = re.compile(r'(W/)?"?[0-9A-Za-z_-][0-9A-Za-z._-]{0,199}"?')


_LOGIN = "log in with `hf auth login` or pass a token"
_ADVICE = {401: _LOGIN, 403: "use a token that is allowed to", 429: "wait {wait} s, and " + _LOGIN}
_NO_HUB = (
    "what answers at {hub} is no Hub; check HF_ENDPOINT, and whether the network wants a login"
)
_OUT_OF_REACH = (
    "the Hub at {hub} cannot be reached ({error}); check the connection and HF_ENDPOINT, or try "
    "again later"
)


class HubError(ValueError):
    """A transfer from or to the Hub failed; the message is one sentence."""


class RefusedError(HubError):
    """What the Hub holds or sends may not be used; nothing of it is kept."""


class NotCachedError(HubError):
    """Something is not, or not completely, in the local cache, and the Hub was not asked."""


class UnreachableError(HubError):
    """The Hub cannot be asked, so that only the local cache is left."""


_REFUSALS: dict[type[BaseException], str] = {
    hf.GatedRepoError: "{address} is gated; accept its conditions on its page, then " + _LOGIN,
    hf.RepositoryNotFoundError: "there is no {address} at {hub}, or it is private or the token is "
    "not valid; check the name, and " + _LOGIN,
    hf.RevisionNotFoundError: "{address}: there is no such revision; leave it out, or name a "
    "branch, tag or commit",
}
_SILENCE: dict[type[BaseException], str] = {
    hf.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set; unset it",
    httpx2.TransportError: _OUT_OF_REACH,
    httpx2.TooManyRedirects: _OUT_OF_REACH,
    json.JSONDecodeError: _NO_HUB,
    hf.FileMetadataError: _NO_HUB,
}


def endpoint() -> str:
    """The server to talk to; the client itself reads the environment only when imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


@contextmanager
def one_sentence(address: str) -> Iterator[None]:
    """Turns the client's errors into `HubError`s about an address, or a subclass of it."""
    try:
        yield
    except HubError:
        raise
    except (hf.HTTPError, OSError, RuntimeError, ValueError) as error:
        raise _explained(error, address) from error


def _explained(error: BaseException, address: str) -> HubError:
    if isinstance(error, (hf.LocalEntryNotFoundError, RuntimeError)) and error.__cause__:
        return _explained(error.__cause__, address)  # the first only says that something failed
    for kind, sentence in (_REFUSALS | _SILENCE).items():
        if isinstance(error, kind):
            result = HubError if kind in _REFUSALS else UnreachableError
            return result(sentence.format(address=address, hub=endpoint(), error=error))
    if isinstance(error, hf.LocalEntryNotFoundError):
        return NotCachedError(f"{address} is not, or not all, in the local cache; pull it")
    if isinstance(error, hf.HfHubHTTPError):
        status = error.response.status_code
        wait = error.response.headers.get("Retry-After", "some")[:20]
        advice = _ADVICE.get(status, "try again later").format(wait=wait)
        result = UnreachableError if status == 429 or status >= 500 else HubError
        return result(f"the Hub at {endpoint()} refuses {address}, status {status}; {advice}")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return HubError(f"{address}: the disk is full; make room and try again")
    return HubError(f"{address}: {str(error).partition(chr(10))[0]}")


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


@dataclass(frozen=True)
class Repo:
    """Files of one commit of a repository, as the Hub states them; `fetch` downloads them.

    Attributes:
        address: as it was asked for.
        commit: what the address means now, 40 hexadecimal digits.
        licence: as the repository's card states it, or None.
        tags: of its card, and the Hub's own.
        files: the bytes of each file; None where the Hub states no size.
        sha256: of those files whose checksum the Hub states.
    """

    address: str
    commit: str
    licence: str | None
    tags: frozenset[str]
    files: Mapping[str, int | None]
    sha256: Mapping[str, str]

    @property
    def repo_id(self) -> str:
        """The repository without the revision."""
        return self.address.partition("@")[0]

    @property
    def folder(self) -> Path:
        """Where the client's cache has, or would have, the files of the commit."""
        name = f"models--{self.repo_id.replace('/', '--')}"
        return Path(constants.HF_HUB_CACHE) / name / "snapshots" / self.commit

    @property
    def missing(self) -> dict[str, int | None]:
        """The files that do not lie in the client's cache, with their bytes."""
        return {
            name: size for name, size in self.files.items() if not (self.folder / name).exists()
        }

    def only(self, names: Iterable[str]) -> "Repo":
        """The same commit with fewer files."""
        return replace(self, files={name: self.files[name] for name in names})

    def remember(self) -> None:
        """Lets the cache know the commit by the name of its branch or tag."""
        revision = parse_hub_id(self.address)[1] or constants.DEFAULT_REVISION
        if revision != self.commit:
            with suppress(OSError):
                write_whole(self.folder.parents[1] / "refs" / revision, self.commit)


def connect(token: Token = None) -> HfApi:
    """The Hub client, which gives up on a silent server."""
    _configure()
    return HfApi(endpoint=endpoint(), token=token)


@cache
def _configure() -> None:
    hooks = huggingface_hub.get_session().event_hooks
    hooks["response"] = [*hooks["response"], _check_cache_names]
    waiting = httpx2.Timeout(_STALL, connect=ANSWER)
    huggingface_hub.set_client_factory(
        lambda: httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=waiting)
    )


def _check_cache_names(response: httpx2.Response) -> None:
    """Refuses headers of which the client would make a path outside its cache."""
    for header in _CACHE_NAMES if response.request.method == "HEAD" else ():
        value = response.headers.get(header)
        if value is not None and not _PLAIN.fullmatch(value):
            raise HubError(
                f"the Hub at {endpoint()} answers with {header}: {value[:80]!r}, which is no "
                "name; nothing is fetched from there, check HF_ENDPOINT"
            )


def inspect_repo(address: str, token: Token = None) -> Repo:
    """Asks the Hub what a repository holds; nothing is fetched.

    Raises:
        ValueError: the address is none.
        UnreachableError: the Hub cannot be asked.
        HubError: it refused, or a name or size that it states cannot be one.
    """
    repo_id, revision = parse_hub_id(address)
    with one_sentence(address):
        info = connect(token).model_info(
            repo_id, revision=revision, files_metadata=True, timeout=ANSWER
        )
    if not re.fullmatch(r"[0-9a-f]{40}", str(info.sha)):
        raise HubError(
            f"{address}: what answers at {endpoint()} names no commit; check HF_ENDPOINT"
        )
    siblings = info.siblings or []
    for file in siblings:
        name, size = file.rfilename, file.size
        if not _stays_inside(name):
            raise RefusedError(
                f"{address} lists a file {name[:200]!r}, which is no path inside a repository; "
                "nothing of it is fetched"
            )
        if size is not None and not (type(size) is int and size >= 0):
            raise RefusedError(f"{address} states {str(size)[:80]!r} as the size of {name}")
    card = info.card_data
    licence = card and (card.get("license_name") or card.get("license"))
    if isinstance(licence, list):
        licence = ", ".join(map(str, licence))
    return Repo(
        address,
        str(info.sha),
        str(licence)[:200] if licence else None,
        frozenset(info.tags or []),
        {file.rfilename: file.size for file in siblings},
        {file.rfilename: file.lfs.sha256 for file in siblings if file.lfs is not None},
    )


def _stays_inside(file: str) -> bool:
    r"""Whether the name of a file in a repository is a path that stays in its folder.

    >>> [_stays_inside(name) for name in ("a b/c.bin", "/etc/passwd", "a/../b", "a\\..", "a//b")]
    [True, False, False, False, False]
    """
    parts = re.split(r"[/\\]", file)
    plain = file.isprintable() and len(file) <= 1000
    return plain and not {"", ".", ".."}.intersection(parts) and ":" not in parts[0]


def fetch(repo: Repo, token: Token = None, progress: Progress | None = None) -> None:
    """Downloads the files of `repo` into its folder; those that lie there stay.

    Args:
        repo: from `inspect_repo`, narrowed by `Repo.only`.
        token: see above.
        progress: is told how much has come; None draws a bar.

    Raises:
        RefusedError: more bytes came than the Hub states, or others; the commit is removed.
        HubError: the transfer failed.
    """
    new = repo.missing
    max_bytes = None if None in new.values() else sum(size or 0 for size in new.values())
    remove_incomplete(repo.repo_id)
    try:
        with one_sentence(repo.address):
            connect(token).snapshot_download(
                repo.repo_id,
                revision=repo.commit,
                allow_patterns=[glob.escape(name) for name in repo.files],
                cache_dir=constants.HF_HUB_CACHE,
                tqdm_class=_bar(repo.address, max_bytes, progress),
            )
        for name, size in new.items():
            path, sha256 = repo.folder / name, repo.sha256.get(name)
            if size not in (None, path.stat().st_size) or sha256 not in (None, sha256_of(path)):
                raise RefusedError(
                    f"{name} came damaged, its bytes are not those that the Hub states; try again"
                )
    except RefusedError:
        remove_commit(repo.folder)
        raise


def _bar(address: str, max_bytes: int | None, progress: Progress | None) -> type[tqdm]:
    """The class of a bar that reports progress, and ends a download of more than `max_bytes`."""
    received, reported = 0, 0.0

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts = options.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **options | ({"disable": True} if progress else {}))

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal received, reported
            if self._counts:
                received += int(n or 0)
                if max_bytes is not None and received > max_bytes:
                    raise RefusedError(f"more bytes came than the {max_bytes:,} of {address}")
                late = time.monotonic() - reported >= _EVERY
                if progress is not None and (late or received == max_bytes):
                    reported = time.monotonic()
                    progress(received, max_bytes or 0, f"Downloading {address}")
            return super().update(n)

    return Bar


def fetch_chosen(address: str, choose: Callable[[Iterable[str]], list[str]]) -> Path:
    """Downloads files of a repository; without a connection, finds those that were fetched before.

    Args:
        address: of the repository.
        choose: which of its files are wanted.

    Returns:
        The folder of the commit in the client's cache.

    Raises:
        UnreachableError: the Hub cannot be asked, and the cache holds nothing.
        HubError: the Hub refused, or the transfer failed.
    """
    try:
        repo = inspect_repo(address)
    except UnreachableError as error:
        return cached_instead(address, error, cached_folder)
    fetch(repo.only(choose(repo.files)))
    repo.remember()
    return repo.folder


def cached_folder(address: str) -> Path:
    """The folder of a commit in the client's cache, as far as it was fetched; nobody is asked.

    Raises:
        NotCachedError: nothing of it was fetched.
    """
    repo_id, revision = parse_hub_id(address)
    with one_sentence(address):
        folder = connect().snapshot_download(
            repo_id,
            revision=revision,
            cache_dir=constants.HF_HUB_CACHE,
            local_files_only=True,
            allow_patterns=[],
        )
    return Path(folder)


def cached_instead(address: str, error: UnreachableError, find: Callable[[str], Path]) -> Path:
    """What `find` finds in the cache, where the Hub cannot be asked.

    Raises:
        UnreachableError: it finds nothing.
    """
    try:
        folder = find(address)
    except NotCachedError:
        sentence = f"{address} is not, or not all, in the local cache, and {error}"
        raise UnreachableError(sentence) from error
    _log.warning("%s: %s is taken from the local cache, commit %s", error, address, folder.name)
    return folder


def remove_incomplete(repo_id: str) -> None:
    """Deletes what killed downloads left of a repository; downloads in progress hold a lock."""
    cache_dir, name = Path(constants.HF_HUB_CACHE), f"models--{repo_id.replace('/', '--')}"
    for path in (cache_dir / name / "blobs").glob("*.incomplete"):
        lock = cache_dir / ".locks" / name / f"{path.name.partition('.')[0]}.lock"
        with suppress(OSError, Timeout), FileLock(lock, timeout=0):
            path.unlink(missing_ok=True)


def remove_commit(folder: Path) -> None:
    """Deletes a commit's folder from the client's cache, but for bytes that another one shares."""
    if folder.is_dir():
        cached = huggingface_hub.scan_cache_dir(folder.parents[2])
        cached.delete_revisions(folder.name).execute()
