"""Large files that are taken up where an earlier program was cut off.

The Hub client goes on within one call, but begins anew in the next. Here the bytes that came stay
beside those of whole files, named by their checksum, until the rest is there and it is right.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import http_get

from export.hub.client import HubError
from models.files import sha256_of

_BEGUN = ".part"


def take_up(
    api: HfApi, repo_id: str, commit: str, name: str, bar: type[Any], cache_dir: Path | None = None
) -> None:
    """Fetches the bytes of a file into the cache, where the client then finds them.

    Args:
        api: the client to ask with.
        repo_id: `owner/name`.
        commit: 40 hexadecimal digits.
        name: of the file; nothing is done where the Hub states no SHA-256 or size of it.
        bar: counts what comes; told at its beginning how much was here.
        cache_dir: where downloads are kept; None for the client's own folder.

    Raises:
        HubError: it came damaged; nothing of it is kept.
    """
    url = hf_hub_url(repo_id, name, revision=commit, endpoint=api.endpoint)
    stated = get_hf_file_metadata(url, token=api.token, endpoint=api.endpoint)
    sha256, size = str(stated.etag), stated.size
    if size is None or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        return
    place = _blobs(repo_id, cache_dir)
    place.mkdir(parents=True, exist_ok=True)
    part = place / f"{sha256}{_BEGUN}"
    _forget(repo_id, cache_dir, but=part)
    with _lock(repo_id, cache_dir, sha256):
        if (place / sha256).exists():
            return
        with part.open("ab") as file:
            headers = api._build_hf_headers()
            try:
                http_get(
                    url,
                    file,
                    resume_size=file.tell(),
                    headers=headers,
                    expected_size=size,
                    displayed_filename=name,
                    tqdm_class=bar,
                )
            except BaseException:
                if file.tell() > size:
                    part.unlink()
                raise
        if sha256_of(part) != sha256:
            part.unlink()
            raise HubError(
                f"{repo_id}: {name} came damaged, its bytes are not those that the Hub states; "
                "what was damaged is removed, try again"
            )
        part.replace(place / sha256)


def forget_begun(repo_id: str, cache_dir: Path | None = None) -> None:
    """Removes what was begun of a repository's files; what is under way stays."""
    _forget(repo_id, cache_dir)


def _forget(repo_id: str, cache_dir: Path | None, but: Path | None = None) -> None:
    for part in _blobs(repo_id, cache_dir).glob(f"*{_BEGUN}"):
        if part != but:
            with suppress(OSError, Timeout), _lock(repo_id, cache_dir, part.stem, timeout=0):
                part.unlink(missing_ok=True)


def _lock(repo_id: str, cache_dir: Path | None, sha256: str, timeout: float = -1) -> FileLock:
    """The lock that the client takes for a file, too."""
    place = Path(cache_dir or constants.HF_HUB_CACHE) / ".locks" / _folder(repo_id)
    place.mkdir(parents=True, exist_ok=True)
    return FileLock(place / f"{sha256}.lock", timeout=timeout)


def _blobs(repo_id: str, cache_dir: Path | None) -> Path:
    return Path(cache_dir or constants.HF_HUB_CACHE) / _folder(repo_id) / "blobs"


def _folder(repo_id: str) -> str:
    return f"models--{repo_id.replace('/', '--')}"
