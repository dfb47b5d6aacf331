"""How the front door says no: a status and {"error": sentence}."""

from __future__ import annotations

import json
from dataclasses import dataclass

from starlette.types import Send

_SHOWN = 100  # characters of a value that a sentence repeats


@dataclass(frozen=True)
class Refusal:
    """Why a request goes no further.

    Attributes:
        status: of HTTP: 400, 403, 404, 408, 413, 421, 429, 500 or 503.
        sentence: names the value and what to do.
        wait: seconds after which the same request may succeed; 0 where it never does.
    """

    status: int
    sentence: str
    wait: int = 0

    async def answer(self, send: Send) -> None:
        """Sends the refusal and closes the connection, of whose body something may be left."""
        body = json.dumps({"error": self.sentence}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        if self.wait:
            headers.append((b"retry-after", str(self.wait).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def shown(value: str) -> str:
    r"""A stranger's text as a sentence may repeat it: short, and printable.

    >>> shown("evil.example\n" + "x" * 200)[:20]
    'evil.example?xxxxxxx'
    """
    text = "".join(c if c.isprintable() else "?" for c in value[:_SHOWN])
    return text if len(value) <= _SHOWN else f"{text}…"
