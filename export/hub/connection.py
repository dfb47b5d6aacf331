"""The connection to the Hub, on which a server cannot keep anybody waiting for long.

Left to itself the Hub client asks a server that does not answer again for six minutes, sleeps for
as long as a busy one says, five times over, and follows a trickle for ever. Here what cannot be
hoped for ends at once, as an error of which the client makes no further attempt; what may be
a disturbance, a connection that broke or stalled within a file, it still takes up again where it
was.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as LateError
from contextlib import closing, suppress
from contextvars import copy_context
from functools import cache
from threading import Thread
from typing import Any

import httpx2
from httpx2 import USE_CLIENT_DEFAULT
from huggingface_hub import constants, get_session, set_client_factory

STORING = 60.0  # seconds until an upload must be answered
PAUSE = 1.0  # seconds before a server with a fault of its own is asked again
WINDOW = 20.0  # seconds of waiting for a body, after which it is looked at how much came
SLOWEST = 1000.0  # bytes a second
_READING = ("GET", "HEAD")
# of what a HEAD answers the client makes names of files and folders in its cache
_ETAG = re.compile(r'(W/)?"?[0-9A-Za-z_-][0-9A-Za-z._-]{0,199}"?')
_NAMING = {"ETag": _ETAG, "X-Linked-ETag": _ETAG, "X-Repo-Commit": re.compile(r"[0-9a-f]{40}")}


class UselessError(httpx2.TransportError):
    """The server is no use now; the message goes on after its name: "the Hub at ... MESSAGE"."""

    advice = "check the connection and HF_ENDPOINT, or try again later"


class AbsentError(UselessError):
    """Nobody listens there."""


class CutError(UselessError):
    """It broke the connection off, twice in a row."""

    advice = "try again: files that came whole are kept"


class SilentError(UselessError):
    """It did not answer."""


class SlowError(UselessError):
    """It sends hardly anything."""

    advice = "check the connection, or try again later; files that came whole are kept"


class BrokenError(UselessError):
    """It has a fault of its own (status 500 or above), twice in a row."""

    advice = "try again later"


class NamingError(UselessError):
    """It gives a file a checksum or a commit that is no name."""

    advice = "nothing is fetched from there; check HF_ENDPOINT"


class BusyError(UselessError):
    """It answers no more for now (status 429)."""

    advice = "try again then, and log in with `hf auth login`: who is known may ask more often"


@cache
def install() -> None:
    """Makes the Hub client of this process use `BoundedClient`; done once, whoever asks.

    Xet, by which it would else fetch large files, goes past this client and waits for minutes
    for a store that is silent: it is left out unless the environment says HF_HUB_DISABLE_XET=0.
    """
    if "HF_HUB_DISABLE_XET" not in os.environ:
        constants.HF_HUB_DISABLE_XET = True
    usual = get_session()
    hooks, follow = usual.event_hooks, usual.follow_redirects
    set_client_factory(
        lambda: BoundedClient(event_hooks=hooks, follow_redirects=follow, timeout=None)
    )


class BoundedClient(httpx2.Client):
    """A client that gives up on a server that is silent, slow, busy or out of order.

    An answer must begin within HF_HUB_ETAG_TIMEOUT seconds, looking up the name, connecting and
    redirects included; a body may pause for HF_HUB_DOWNLOAD_TIMEOUT seconds. Both are 10 unless
    the environment says otherwise.
    """

    def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: Any = USE_CLIENT_DEFAULT,
        follow_redirects: Any = USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        """See `httpx2.Client.send`.

        Raises:
            UselessError: the server is silent, slow, busy or out of order.
        """
        usual = super().send

        def ask() -> httpx2.Response:
            return usual(request, stream=True, auth=auth, follow_redirects=follow_redirects)

        if request.method not in _READING:
            # sending takes its time, only the answer may not; nothing is sent twice
            request.extensions = {**request.extensions, "timeout": _timeouts(STORING)}
            return _answer(ask, STORING, stream)
        seconds = float(constants.HF_HUB_ETAG_TIMEOUT)
        try:
            return _answer(lambda: _within(seconds, ask), seconds, stream)
        except (BrokenError, CutError):
            time.sleep(PAUSE)
            return _answer(lambda: _within(seconds, ask), seconds, stream)


def _answer(ask: Callable[[], httpx2.Response], seconds: float, stream: bool) -> httpx2.Response:
    """An answer that is of use; of one that is not a stream, the whole.

    Raises:
        UselessError: there is none.
    """
    try:
        response = ask()
        if refusal := _refusal(response):
            response.close()
            raise refusal
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _Watched(response.stream)
        if not stream:
            with closing(response):
                response.read()
    except (httpx2.TimeoutException, LateError) as error:
        raise SilentError(f"did not answer within {seconds:.0f} s") from error
    except (httpx2.ConnectError, httpx2.ReadError, httpx2.RemoteProtocolError) as error:
        if stream:  # the client takes a file up again itself
            raise
        if isinstance(error, httpx2.ConnectError):
            raise AbsentError(f"cannot be reached ({error})") from error
        raise CutError(f"broke the connection off ({error})") from error
    return response


def _refusal(response: httpx2.Response) -> UselessError | None:
    """The error that an answer amounts to, whatever it was that was asked for."""
    # what is sent the client may send again itself
    if response.is_server_error and response.request.method in _READING:
        return BrokenError(f"is out of order (status {response.status_code})")
    if response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
        return BusyError(f"is busy (status 429) and asks to wait {_wait(response.headers)}")
    for header, plain in _NAMING.items() if response.request.method == "HEAD" else ():
        given = response.headers.get(header)
        if given is not None and plain.fullmatch(given) is None:
            return NamingError(f"answers with {header}: {given[:80]!r}, which is none")
    return None


class _Watched(httpx2.SyncByteStream):
    """A body that ends with an error where it comes too slowly."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self._stream)
        waited, came = 0.0, 0
        while True:
            began = time.monotonic()
            try:
                chunk = next(chunks, None)
            except httpx2.ReadError as error:  # the kind that the Hub client takes up again
                raise httpx2.RemoteProtocolError(str(error)) from error
            if chunk is None:
                return
            # longer than this the socket never waits: the machine itself was asleep
            most = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
            waited, came = waited + min(time.monotonic() - began, most), came + len(chunk)
            if waited >= WINDOW:
                if came < SLOWEST * waited:
                    raise SlowError(f"sent only {came:,} bytes in {waited:.0f} s")
                waited, came = 0.0, 0
            yield chunk

    def close(self) -> None:
        self._stream.close()


def _within(seconds: float, ask: Callable[[], httpx2.Response]) -> httpx2.Response:
    """What is answered within some seconds; what still comes later is closed unread.

    Time-outs of single reads do not bound a whole answer, nor does any bound the look-up of a name.
    """
    outcome: Future[httpx2.Response] = Future()
    context = copy_context()

    def run() -> None:
        try:
            response = context.run(ask)
        except BaseException as error:
            with suppress(InvalidStateError):
                outcome.set_exception(error)
            return
        try:
            outcome.set_result(response)
        except InvalidStateError:
            response.close()

    Thread(target=run, daemon=True).start()
    try:
        return outcome.result(seconds)
    except LateError:
        if outcome.cancel():
            raise
        return outcome.result()  # it came just now


def _timeouts(seconds: float) -> dict[str, float]:
    return dict.fromkeys(("connect", "read", "write", "pool"), seconds)


def _wait(headers: httpx2.Headers) -> str:
    """How long a busy server wants to be left alone, in words.

    >>> _wait(httpx2.Headers({"Retry-After": "30"}))
    '30 s'
    >>> _wait(httpx2.Headers({"RateLimit": '"api";r=0;t=55'}))
    '55 s'
    >>> _wait(httpx2.Headers())
    'a little'
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*", headers.get("Retry-After", ""))
    match = match or re.search(r"\bt=(\d{1,6})\b", headers.get("RateLimit", ""))
    return f"{int(match[1])} s" if match else "a little"
