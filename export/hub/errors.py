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


_LOGIN = "log in with `hf auth login` or pass a token"
_REFUSALS: dict[type[BaseException], str] = {
    hf.GatedRepoError: "{address} is gated; accept its conditions on its page, then " + _LOGIN,
    hf.RepositoryNotFoundError: "there is no {address} at {hub}, or it is private or the token is "
    "not valid; check the name, and " + _LOGIN,
    hf.RevisionNotFoundError: "{address}: there is no such revision; leave it out, or name a "
    "branch, tag or commit",
}
_NO_HUB = (
    "what answers at {hub} is no Hub; check HF_ENDPOINT, and whether the network wants a login"
)
_OUT_OF_REACH = (
    "the Hub at {hub} cannot be reached ({error}); check the connection and HF_ENDPOINT, or try "
    "again later"
)
_SILENCE: dict[type[BaseException], str] = {
    hf.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set; unset it",
    httpx2.TransportError: _OUT_OF_REACH,
    httpx2.TooManyRedirects: _OUT_OF_REACH,
    json.JSONDecodeError: _NO_HUB,
    hf.FileMetadataError: _NO_HUB,
}
_ADVICE = {401: _LOGIN, 403: "use a token that is allowed to", 429: "wait {wait} s, and " + _LOGIN}


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
    for sentences, result in ((_REFUSALS, HubError), (_SILENCE, UnreachableError)):
        for kind, sentence in sentences.items():
            if isinstance(error, kind):
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
