"""How the app listens: connections bounded in number, and in the time a request takes to come."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # until the head of a request has arrived
MOST = 1000  # connections at a time
_BACKLOG = 128  # connections accepted in one go
_RESERVED = 256  # file descriptors for everything else
_HEAD_BYTES = 16_384


def _refusal(status: str, sentence: str) -> bytes:
    """A whole answer, for where there is no request yet that could be answered."""
    body = json.dumps({"error": sentence})
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Retry-After: 2\r\nConnection: close\r\n\r\n{body}"
    ).encode()


_BUSY = _refusal("503 Service Unavailable", "too many connections are open; try again in a moment")
_NO_LENGTH = _refusal(
    "411 Length Required", "a body in chunks is not taken; send it whole, with its Content-Length"
)


def most_connections() -> int:
    """How many connections the limit of open files leaves room for, at most `MOST`."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(16, min(MOST, soft - _RESERVED - _BACKLOG))


class _Connection(h11.Connection):
    """Ends with the head of a request whose body comes in chunks.

    Each chunk, of a byte perhaps, would be parsed in Python while everybody else waits.
    """

    chunked = False

    def next_event(self) -> Any:
        """The next part of a request."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            if self.chunked:
                raise h11.RemoteProtocolError("chunked")
        return event


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for heads, and room for whoever comes.

    Where all connections are taken, the one that has waited longest without a whole request makes
    room for a new one. Half-sent requests, however many, so keep nobody out.
    """

    most = MOST
    _late: asyncio.TimerHandle | None = None
    _since = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = _Connection(h11.SERVER, _HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection in, or refuses it."""
        super().connection_made(transport)
        if len(self.connections) > self.most and not self._make_room():
            transport.write(_BUSY)
            transport.close()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request."""
        super().data_received(data)
        if not self._waits:
            self._forget()

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        super().on_response_complete()
        if self._waits:
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request, or one whose body comes in chunks."""
        if isinstance(self.conn, _Connection) and self.conn.chunked:
            self.transport.write(_NO_LENGTH)
            self.transport.close()
        else:
            super().send_400_response(msg)

    @property
    def _waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        self._forget()
        self._since = self.loop.time()
        self._late = self.loop.call_later(HEAD_SECONDS, self._end)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        if self._waits:
            self.connections.discard(self)
            self.transport.abort()

    def _make_room(self) -> bool:
        others = [
            other
            for other in self.connections
            if other is not self and isinstance(other, BoundedProtocol) and other._waits
        ]
        if not others:
            return False
        min(others, key=lambda other: other._since)._end()
        return True


def configure(app: ASGIApp, proxies: str | None = None, **options: Any) -> uvicorn.Config:
    """A server's configuration with these bounds.

    Args:
        app: what answers.
        proxies: addresses whose X-Forwarded-For is believed; None for FORWARDED_ALLOW_IPS.
        options: of `uvicorn.Config`.
    """
    BoundedProtocol.most = most_connections()
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        backlog=_BACKLOG,
        proxy_headers=True,
        forwarded_allow_ips=proxies,
        **options,
    )
