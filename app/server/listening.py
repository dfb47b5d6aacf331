"""How the app listens: connections bounded in number, and in the time a request takes to come."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # until the head of a request has arrived
MOST = 1000  # connections at a time
_BACKLOG = 128  # connections accepted in one go
_RESERVED = 256  # file descriptors for everything else
_BODY = b'{"error": "too many connections are open; try again in a moment"}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nRetry-After: 2\r\nConnection: close\r\n\r\n%b" % (len(_BODY), _BODY)
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


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for heads, and room for whoever comes.

    Where all connections are taken, the one that has waited longest without a whole request makes
    room for a new one. Half-sent requests, however many, so keep nobody out.
    """

    most = MOST
    _late: asyncio.TimerHandle | None = None
    _since = 0.0

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
