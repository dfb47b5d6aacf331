"""The Hugging Face Hub, or another server with its protocol (`HF_ENDPOINT`).

`huggingface_hub` transfers files and manages the cache. File sizes stated by the server are
trusted; names and content of files are not. An address is `owner/name` or `owner/name@revision`.
With the token None, `HF_TOKEN` or the login of `hf auth login` is used; False sends no token.
"""

import errno
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants
from huggingface_hub import errors as hf
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import tqdm

from polyview.models.files import not_found_error

Token = str | bool | None
Progress = Callable[[int, int, str], None]  # bytes fetched, bytes in total, description
ANSWER_TIMEOUT = 10.0  # seconds
_LOGIN = "log in with `hf auth login` or pass a token"
_ADVICE = {401: _LOGIN, 403: "use a token with access to it", 429: "wait {wait} s, and " + _LOGIN}
# Every segment of a revision starts with a letter, a digit or "_": the client uses it in a path.
_HUB_ID = re.compile(
    r"(?![^@]*(?:--|\.\.))(?P<id>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
    r"(@(?P<revision>(?!.*\.\.)(?=.{1,200}\Z)\w[\w.-]*(/\w[\w.-]*)*))?",
    re.ASCII,
)


class HubError(ValueError):
    """A transfer from or to the Hub failed; the message is one sentence."""


class CancelledError(HubError):
    """A download or conversion was cancelled."""


class UnreachableError(HubError):
    """The Hub cannot be reached; only the local cache is available."""


@contextmanager
def convert_errors(address: str) -> Iterator[None]:
    """Converts errors of `huggingface_hub` to a `HubError` about an address."""
    try:
        yield
    except HubError:
        raise
    except (hf.HTTPError, OSError, RuntimeError, ValueError) as error:
        cause: BaseException = error
        while isinstance(cause, (hf.LocalEntryNotFoundError, RuntimeError)) and cause.__cause__:
            cause = cause.__cause__  # the outer error only states that something failed
        raise _to_hub_error(cause, address) from error


def _to_hub_error(error: BaseException, address: str) -> HubError:
    hub = constants.ENDPOINT or "HF_ENDPOINT, which is empty,"
    match error:
        case hf.GatedRepoError():
            return HubError(f"{address} is gated; accept its conditions on its page, then {_LOGIN}")
        case hf.RepositoryNotFoundError():
            reason = "or it is private, or the token is not valid; check the name, and"
            return HubError(f"there is no {address} at {hub}, {reason} {_LOGIN}")
        case hf.RevisionNotFoundError():
            advice = "leave it out, or name a branch, tag or commit"
            return HubError(f"{address}: there is no such revision; {advice}")
        case hf.OfflineModeIsEnabled():
            return UnreachableError("HF_HUB_OFFLINE is set; unset it")
        case hf.LocalEntryNotFoundError():
            return HubError(f"{address} is not completely in the local cache; pull it")
        case hf.HfHubHTTPError():
            status, headers = error.response.status_code, error.response.headers
            advice = _ADVICE.get(status, "try again later")
            advice = advice.format(wait=headers.get("Retry-After", "some")[:20])
            error_type = UnreachableError if status == 429 or status >= 500 else HubError
            return error_type(f"the Hub at {hub} answered {address} with status {status}; {advice}")
        case httpx2.TransportError() | httpx2.TooManyRedirects():
            advice = "check the connection and HF_ENDPOINT, or try again later"
            return UnreachableError(f"the Hub at {hub} cannot be reached ({error}); {advice}")
        case json.JSONDecodeError() | hf.FileMetadataError():
            advice = "check HF_ENDPOINT, and whether the network requires a login"
            return UnreachableError(f"the server at {hub} is not a Hugging Face Hub; {advice}")
        case OSError(errno=errno.ENOSPC):
            return HubError(f"{address}: the disk is full; make room and try again")
    first_line = str(error).partition("\n")[0]
    return HubError(f"{address}: {first_line}")


def is_hub_id(text: str) -> bool:
    """Returns whether a string has the form `owner/name` or `owner/name@revision`."""
    return _HUB_ID.fullmatch(text) is not None


def parse_hub_id(text: str) -> tuple[str, str | None]:
    """Splits a Hub id into repository and revision; raises ValueError for any other text."""
    if (match := _HUB_ID.fullmatch(text)) is None:
        raise ValueError(f'"{text[:200]}" is not a Hub id; write owner/name or owner/name@v1')
    return match["id"], match["revision"]


def find_folder(name: str) -> Path | None:
    """Finds a local folder; returns None if `name` stands for a repository on the Hub.

    Folders take precedence. If a folder `owner` exists, `owner/name` without a revision must be a
    folder, too. Raises FileNotFoundError if `name` is neither a folder nor a Hub id.
    """
    folder = Path(os.path.expanduser(name))  # noqa: PTH111  # Path.expanduser rejects unknown users
    if folder.is_dir():
        return folder
    if not is_hub_id(name) or (folder.parent.is_dir() and "@" not in name):
        advice = "name the folder of a pack, a run or a model, or a Hub id, owner/name[@revision]"
        raise not_found_error("folder", folder, advice)
    return None


def cached_commit(folder: Path) -> tuple[str, str] | None:
    """Returns repository and commit of a folder in the Hub's cache; None for other folders."""
    kind, _, repo_id = folder.parent.parent.name.partition("--")
    if folder.parent.name != "snapshots" or kind != "models" or "--" not in repo_id:
        return None
    return repo_id.replace("--", "/", 1), folder.name


@dataclass(frozen=True)
class Repo:
    """The files of one commit of a repository."""

    address: str  # as requested
    commit: str  # to which the address resolved, 40 hexadecimal digits
    licence: str | None  # from the model card
    files: Mapping[str, int | None]  # file name -> bytes; None if the Hub states no size

    @property
    def repo_id(self) -> str:
        """The address without the revision."""
        return self.address.partition("@")[0]

    @property
    def folder(self) -> Path:
        """The folder of the commit in the Hub's cache; it may not exist."""
        name = repo_folder_name(repo_id=self.repo_id, repo_type="model")
        return Path(constants.HF_HUB_CACHE, name, "snapshots", self.commit)

    @property
    def missing_files(self) -> dict[str, int | None]:
        """The files that are not in the Hub's cache: file name -> bytes, None if unknown."""
        folder = self.folder
        return {name: size for name, size in self.files.items() if not (folder / name).exists()}

    @property
    def missing_bytes(self) -> int:
        """The number of bytes to fetch; files of unknown size count as 0."""
        return sum(size or 0 for size in self.missing_files.values())

    def select(self, names: Iterable[str]) -> "Repo":
        """Returns a copy that has only the files `names`."""
        return replace(self, files={name: self.files[name] for name in names})


def inspect_repo(address: str, token: Token = None) -> Repo:
    """Lists the files of a repository, without fetching them.

    Raises ValueError if the address is not a Hub id, UnreachableError if the Hub cannot be reached,
    HubError if the Hub refuses, or lists a file name that points outside the repository.
    """
    repo_id, revision = parse_hub_id(address)
    with convert_errors(address):
        info = HfApi(token=token).model_info(
            repo_id, revision=revision, files_metadata=True, timeout=ANSWER_TIMEOUT
        )
    if not re.fullmatch(r"[0-9a-f]{40}", str(info.sha)):
        raise HubError(f"{address}: {constants.ENDPOINT} names no commit; check HF_ENDPOINT")
    files = {file.rfilename: file.size for file in info.siblings or []}
    if bad_names := [name for name in files if not _stays_inside(name)]:
        raise HubError(f"{address} lists {bad_names[0][:200]!r}, which is not a path inside it")
    card = info.card_data
    licence = card and (card.get("license_name") or card.get("license"))
    if isinstance(licence, list):
        licence = ", ".join(map(str, licence))
    return Repo(address, str(info.sha), str(licence)[:200] if licence else None, files)


def _stays_inside(file: str) -> bool:
    r"""Returns whether a file name is a printable relative path inside its repository.

    >>> [_stays_inside(name) for name in ("a b/c.bin", "/etc/passwd", "a/../b", "a\\..", "a//b")]
    [True, False, False, False, False]
    """
    parts = re.split(r"[/\\]", file)
    is_printable = file.isprintable() and len(file) <= 1000
    return is_printable and not {"", ".", ".."}.intersection(parts) and ":" not in parts[0]


def fetch(repo: Repo, token: Token = None, progress: Progress | None = None) -> None:
    """Downloads the missing files of `repo` into its cache folder.

    `progress` is called from several threads; if it raises an error, the download stops. None shows
    a progress bar. Raises HubError if the transfer fails; the folder then has no incomplete file.
    """
    received, total = 0, repo.missing_bytes

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # the client shows two bars: one counts bytes, the other files
            self._counts_bytes = options.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **options | ({"disable": True} if progress else {}))

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal received
            if self._counts_bytes and progress is not None:
                received += int(n or 0)
                progress(received, total, f"Downloading {repo.address}")
            return super().update(n)

    patterns = [glob.escape(name) for name in repo.files]
    fetch_matching(f"{repo.repo_id}@{repo.commit}", patterns, token, tqdm_class=Bar)


def fetch_matching(
    address: str, patterns: Sequence[str], token: Token = None, **options: Any
) -> Path:
    """Downloads the files that match glob patterns; without a connection, finds them in the cache.

    `options` are passed to `snapshot_download`. Returns the folder of the commit in the cache.
    Raises HubError if the Hub refuses, or cannot be reached and the cache lacks the files.
    """
    repo_id, revision = parse_hub_id(address)
    options |= {"revision": revision, "cache_dir": constants.HF_HUB_CACHE}
    with convert_errors(address):
        api = HfApi(token=token)
        return Path(api.snapshot_download(repo_id, allow_patterns=[*patterns], **options))
