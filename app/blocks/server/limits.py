"""How much one client, and all together, may ask at once and in a row.

Clients are told apart by address; behind a proxy by what it says in X-Forwarded-For, where uvicorn
trusts it (FORWARDED_ALLOW_IPS).
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Scope

from app.access import Refusal

RATE = 20.0  # questions, uploads and pages in a second, in the long run
BURST = 200.0  # of them at once, after a rest
OPEN = 128  # requests that one client waits for, streams of events included
WAITING = 24  # questions of one client that wait, or whose answers nobody has fetched
UPLOAD_BYTES = 500_000_000  # of one client in an hour
UPLOADS = 300
_FILE = 0.1  # of a question that a file of the page counts
_HOUR = 3600.0
_CLIENTS = 10_000  # remembered; the one that was quiet for longest is forgotten first


def client_of(scope: Scope) -> str:
    """By which name a client is counted: its address, or the network of an IPv6 address.

    >>> client_of({"client": ("2001:db8::1:2:3:4", 5)})
    '2001:db8::/64'
    >>> client_of({"client": ("::ffff:192.0.2.7", 5)})
    '192.0.2.7'
    """
    host = str((scope.get("client") or ("", 0))[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


class Limits:
    """Counts what clients do.

    Args:
        waiting: gives the client of each question, see `Visitors.waiting`.
        enter: is told which client uses which session, see `Visitors.enter`.
        clock: gives seconds.
    """

    def __init__(
        self,
        waiting: Callable[[], Iterator[str]] = lambda: iter(()),
        enter: Callable[[str, str], None] = lambda _client, _session: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waiting = waiting
        self.enter = enter
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._answering: Counter[str] = Counter()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at what time
        self._sent: OrderedDict[str, deque[tuple[float, int]]] = OrderedDict()

    @contextmanager
    def entered(self, client: str, waits: bool = False) -> Iterator[None]:
        """Counts a request for as long as it lasts; one that waits for an answer as a question."""
        counts = (self._open, self._answering) if waits else (self._open,)
        for count in counts:
            count[client] += 1
        try:
            yield
        finally:
            for count in counts:
                count[client] -= 1
                if not count[client]:
                    del count[client]

    def check(self, client: str, costs: bool, asks: bool) -> Refusal | None:
        """Says why a client must wait, or None.

        Args:
            client: see `client_of`.
            costs: the request takes time to answer; a file of the page counts a tenth.
            asks: the request is a question for the queue.
        """
        if self._open[client] >= OPEN:
            return Refusal(429, f"{OPEN} requests of yours are open; end one first", 1)
        if not self._take(client, 1.0 if costs else _FILE):
            return Refusal(429, f"these are too many requests; at most {RATE:g} in a second", 1)
        if asks and self._questions(client) >= WAITING:
            return Refusal(
                429,
                f"{WAITING} questions of yours are waiting, or their answers are; fetch those, and "
                "ask when one is done",
                2,
            )
        return None

    def check_upload(self, client: str, size: int) -> Refusal | None:
        """Counts an upload of so many bytes; says why it must wait, or None."""
        now = self._clock()
        sent = _recent(self._sent, client, deque)
        while sent and now - sent[0][0] > _HOUR:
            sent.popleft()
        if len(sent) >= UPLOADS or sum(other for _, other in sent) + size > UPLOAD_BYTES:
            return Refusal(
                429,
                f"you have uploaded much; at most {UPLOADS} times and {UPLOAD_BYTES // 10**6} MB "
                "in an hour",
                600,
            )
        sent.append((now, size))
        return None

    def _questions(self, client: str) -> int:
        waiting = sum(other == client for other in self._waiting())
        return waiting + self._answering[client]

    def _take(self, client: str, cost: float) -> bool:
        now = self._clock()
        left, then = _recent(self._left, client, lambda: (BURST, now))
        left = min(BURST, left + (now - then) * RATE)
        self._left[client] = (left - cost if left >= cost else left, now)
        return left >= cost


def _recent(kept: OrderedDict[str, Any], client: str, new: Callable[[], Any]) -> Any:
    """What is kept of a client, who is now the last to be forgotten."""
    if client not in kept:
        kept[client] = new()
        while len(kept) > _CLIENTS:
            kept.popitem(last=False)
    kept.move_to_end(client)
    return kept[client]
