"""What goes wrong between this machine and the Hub, in one sentence each."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import constants
from huggingface_hub import errors as hf


class HubError(ValueError):
    """A transfer from or to the Hub failed; the message is one sentence."""


class RefusedError(HubError):
    """What the Hub holds or sends may not be used; nothing of it is kept."""


class NotCachedError(HubError):
    """Something is not, or not completely, in the local cache, and the Hub was not asked."""


class UnreachableError(HubError):
    """The Hub cannot be asked, so that only the local cache is left."""


_SENTENCES: tuple[tuple[tuple[type[BaseException], ...], type[HubError], str], ...] = (
    ((hf.OfflineModeIsEnabled,), UnreachableError, "HF_HUB_OFFLINE is set; unset it"),
    (
        (hf.LocalEntryNotFoundError,),
        NotCachedError,
        "{address} is not, or not all, in the local cache; pull it",
    ),
    (
        (hf.GatedRepoError,),
        HubError,
        "{address} is gated; accept its conditions on its page, then log in with `hf auth login` "
        "or pass a token",
    ),
    (
        (hf.RepositoryNotFoundError,),
        HubError,
        "there is no {address} at {hub}, or it is private or the token is not valid; check the "
        "name, and log in with `hf auth login` or pass a token",
    ),
    (
        (hf.RevisionNotFoundError,),
        HubError,
        "{address}: there is no such revision; leave it out, or name a branch, tag or commit",
    ),
    (
        (httpx2.TransportError, httpx2.TooManyRedirects),
        UnreachableError,
        "the Hub at {hub} cannot be reached ({error}); check the connection and HF_ENDPOINT, or "
        "try again later",
    ),
    (
        (json.JSONDecodeError, hf.FileMetadataError),
        UnreachableError,
        "what answers at {hub} is no Hub; check HF_ENDPOINT, and whether the network wants a login "
        "first",
    ),
)
_ADVICE = {
    401: "log in with `hf auth login` or pass a valid token",
    403: "use a token that is allowed to",
    404: "check the name, and that HF_ENDPOINT is a Hub",
    429: "wait {wait} s, and log in with `hf auth login`: who is known may ask more often",
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
    for kinds, result, sentence in _SENTENCES:
        if isinstance(error, kinds):
            return result(sentence.format(address=address, hub=endpoint(), error=error))
    if isinstance(error, hf.HfHubHTTPError):
        status = error.response.status_code
        wait = error.response.headers.get("Retry-After", "some")[:20]
        advice = _ADVICE.get(status, "try again later").format(wait=wait)
        result = UnreachableError if status == 429 or status >= 500 else HubError
        return result(f"the Hub at {endpoint()} refuses {address}, status {status}; {advice}")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return HubError(f"{address}: the disk is full; make room and try again")
    return HubError(f"{address}: {str(error).partition(chr(10))[0]}")
