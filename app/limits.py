"""The outermost ASGI middleware, which checks every request.

It checks host names and origins (`app/access.py`), allows only the Gradio routes that
`gradio_client`, MCP and the queue need, and limits bodies, requests per client and Gradio's queue.
Slow clients and floods are left to a reverse proxy (docs/deploy.md).
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import json
import math
import re
import time
from codecs import BOM_UTF8
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import httpx
from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyview.app.access import Hosts, Refusal

JSON_BYTES, IMAGE_BYTES = 1_000_000, 70_000_000
HELD_BYTES = 300_000_000  # all bodies in memory together
BODY_SECONDS = 120.0  # within which a body must arrive
VALUES = 20_000  # numbers, texts and lists in a JSON body, counted by separators
RATE, BURST = 20.0, 200.0  # requests of a client: a second on average, and burst
CHEAP = 0.1  # cost of an image or page file, in requests
OPEN = 128  # requests of one client at a time
UNREAD = 300  # unfetched answers in Gradio's queue; older ones are dropped
UNANSWERED = 12  # questions of one client in Gradio's queue
UNANSWERED_SECONDS = 120.0  # until they no longer count
_CLIENTS = 10_000  # remembered

_OURS = r"/|/favicon\.ico|/page/.*|/api/v1(/[\w./-]*)?"
_GRADIO = (
    r"/config|/gradio_api/(info|startup-events|queue/(join|data)|call/(v2/)?\w+(/\w+)?|cancel|reset"
    r"|heartbeat/[\w-]+)"
)
_MCP = r"/gradio_api/mcp(/|/http/?|/schema)?"
_IMAGES = re.compile(
    r"/api/v1/(search|explain|explain/hits|collections/file)|/gradio_api/queue/join"
    r"|/gradio_api/call/(v2/)?(search_image|explain|explain_hits|add_file)"
)
_JOIN = re.compile(r"/gradio_api/(?:queue/join|call/(?:v2/)?(\w+))")
_DELIVERED = re.compile(
    rb'event: (?:complete|error)|data: \{"msg":"process_completed","event_id":"(\w+)'
)
_CHEAP = re.compile(r"/page/.*|/api/v1/(image|clip)/.*|/favicon\.ico")
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FRAMES_OF_A_SPACE = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"


class Door:
    """Refuses requests or passes them on to the app.

    Args:
        app: the wrapped application.
        hosts: the host names it answers to; a private app has no limits per client.
        endpoints: default values of the parameters of each Gradio endpoint, in order.
        mcp: whether MCP is served.
        space: whether the app runs as a Hugging Face Space, which embeds it in a frame.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Hosts,
        endpoints: Mapping[str, list[Any]],
        mcp: bool = False,
        space: bool = False,
    ) -> None:
        self._app, self._hosts, self._endpoints = app, hosts, dict(endpoints)
        self._known = re.compile("|".join([_OURS, _GRADIO, *([_MCP] if mcp else [])]))
        self._held = 0
        self._client = lru_cache(_CLIENTS)(lambda _: _Client())
        # of each event whose answer was not fetched: its session, client and time
        self._unread: dict[str, tuple[str, _Client, float]] = {}
        self._collectable = 0  # bytes of refused bodies, which Gradio leaves in reference cycles
        self._tasks: set[asyncio.Task[None]] = set()
        frames = _FRAMES_OF_A_SPACE if space else "'self'"
        policy = (
            "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
            f"style-src 'self' 'unsafe-inline'; frame-ancestors {frames}"
        )
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        del MutableHeaders(scope=scope)["x-gradio-server"]  # Gradio would build URLs from it
        answer, name = _Answer(send, self._headers), client_of(scope)
        # Gradio's own request for an MCP client, whose request was counted already
        itself = name == "127.0.0.1" and (b"x-gradio-user", b"mcp") in scope["headers"]
        client = _Client() if itself else self._client(name)
        client.open += 1
        try:
            self._hosts.check(Headers(scope=scope), scope["method"])
            if self._known.fullmatch(scope["path"]) is None:
                raise Refusal(404, "there is nothing at this address; /api/v1 lists all routes")
            if scope["method"] not in ("GET", "HEAD", "POST", "DELETE"):
                raise Refusal(405, "this method is not supported; use GET or POST")
            if not self._hosts.private and not itself:
                client.check(scope["path"])
            if scope["method"] == "POST":
                await self._post(scope, receive, answer, client)
            else:
                await self._answer(scope, receive, answer)
        except Refusal as refusal:
            response = refusal.response()
            # part of the body may be unread
            response.headers.update({"cache-control": "no-store", "connection": "close"})
            await response(scope, receive, answer.send)
        finally:
            client.open -= 1

    async def _post(self, scope: Scope, receive: Receive, answer: _Answer, client: _Client) -> None:
        """Receives a body within limits and passes it on."""
        headers, received, join = Headers(scope=scope), bytearray(), _JOIN.fullmatch(scope["path"])
        try:
            await self._receive(scope, receive, received)
            body, session = bytes(received), ""
            client.use(len(body) / 1e6)
            if join:
                self._check_unread(client)
                body, session = self._question(join[1], body)
                MutableHeaders(scope=scope)["content-length"] = str(len(body))
            elif body and "json" in headers.get("content-type", "").lower():
                read_json(body)
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:
                return messages.pop() if messages else await receive()

            await self._answer(scope, replay, answer)
        finally:
            self._held -= len(received)
            self._collectable += len(received) if join else 0
            if self._collectable > HELD_BYTES // 3:
                self._collectable = 0
                gc.collect()
        if join and b'"event_id"' in answer.first:
            event = str(json.loads(answer.first)["event_id"])
            self._unread[event] = session or event, client, time.monotonic()
            if len(self._unread) > UNREAD:
                oldest, _, _ = self._unread.pop(next(iter(self._unread)))
                task = asyncio.create_task(self._fetch(oldest))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _check_unread(self, client: _Client) -> None:
        """Raises `Refusal` if too many answers in Gradio's queue wait for one client."""
        oldest = time.monotonic() - UNANSWERED_SECONDS
        own = sum(other is client and then > oldest for _, other, then in self._unread.values())
        if own >= UNANSWERED and not self._hosts.private:
            waiting = f"you have {UNANSWERED} questions whose answers were not fetched"
            raise Refusal(429, f"{waiting}; fetch them", 5)

    async def _receive(self, scope: Scope, receive: Receive, received: bytearray) -> None:
        """Receives a body; raises `Refusal` if it is too large or too slow."""
        most = IMAGE_BYTES if _IMAGES.fullmatch(scope["path"]) else JSON_BYTES
        size, more = int(Headers(scope=scope).get("content-length", "0")[:20]), True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more or size > most:
                    if size > most:
                        raise Refusal(413, f"the body is too large; send at most {most / 1e6:g} MB")
                    if self._held > HELD_BYTES:
                        raise Refusal(503, "the app is busy; ask again in a moment", 2)
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refusal(400, "the body ended early; send it again")
                    received += message.get("body", b"")
                    self._held += len(message.get("body", b""))
                    size, more = max(size, len(received)), message.get("more_body", False)
        except TimeoutError:
            sentence = f"the body did not arrive within {BODY_SECONDS:g} seconds; send it again"
            raise Refusal(408, sentence) from None

    def _question(self, name: str | None, body: bytes) -> tuple[bytes, str]:
        """Completes a question for Gradio's queue with defaults; returns it and its session."""
        value = read_json(body)
        number, session = value.get("fn_index"), value.get("session_hash") or ""
        if name is None and type(number) is int and 0 <= number < len(self._endpoints):
            name = list(self._endpoints)[number]
        if any(map(_has_object, value.values())):
            raise Refusal(403, "files are not named in questions; send an image as a data URI")
        if session and not (isinstance(session, str) and _SESSION.fullmatch(session)):
            raise Refusal(400, "session_hash must be 1 to 64 letters, digits, - or _")
        if name not in self._endpoints:
            raise Refusal(404, "there is no such question; /gradio_api/info lists all")
        data, defaults = value.get("data"), self._endpoints[name]
        if isinstance(data, list) and len(data) < len(defaults):  # Gradio would log all of it
            body = json.dumps({**value, "data": data + defaults[len(data) :]}).encode()
        return body, session

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Lets the app answer; turns its failure into an error message."""
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            refusal = Refusal.of_defect(error, scope["path"][:100])
            if not answer.begun:
                raise refusal from error
        for event in answer.delivered:
            self._unread.pop(event or scope["path"].rpartition("/")[2], None)

    async def _fetch(self, session: str) -> None:
        """Fetches and discards answers of a session that Gradio would keep."""
        transport = httpx.ASGITransport(self, raise_app_exceptions=False)
        inside = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/gradio_api")
        with suppress(httpx.HTTPError, TimeoutError):
            async with inside, asyncio.timeout(BODY_SECONDS):
                address = f"/queue/data?session_hash={session}"
                await inside.get(address, headers={"x-gradio-user": "mcp"})


class _Client:
    """The open requests of one client, and its remaining burst."""

    def __init__(self) -> None:
        self.open = 0
        self._left, self._then = BURST, time.monotonic()

    def use(self, requests: float) -> None:
        """Counts requests; an upload counts as one for each MB."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._then) * RATE) - requests
        self._then = now

    def check(self, path: str) -> None:
        """Counts a request; raises `Refusal` if it must wait."""
        if self.open > OPEN:
            raise Refusal(429, f"you have {OPEN} open requests; finish one first", 1)
        self.use(0)
        if self._left < 1:
            wait = math.ceil((1 - self._left) / RATE)
            raise Refusal(429, f"too many requests; send at most {RATE:g} a second", wait)
        self.use(CHEAP if _CHEAP.fullmatch(path) else 1)


class _Answer:
    """The answer to one request, with our headers and without CORS."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send, self._headers = send, headers
        self.begun, self.first = False, b""  # whether a part was sent; the first part of the body
        # ids of the events of Gradio's queue that it answered; "" for the one in the URL
        self.delivered: list[str] = []

    async def send(self, message: Message) -> None:
        """Sends a part of the answer."""
        if message["type"] == "http.response.start":
            self.begun = True
            own = [h for h in message.get("headers", ()) if not h[0].startswith(b"access-control-")]
            message = {**message, "headers": own + self._headers}
        else:
            part = message.get("body", b"")
            self.first = self.first or part
            if match := _DELIVERED.match(part):
                self.delivered.append((match[1] or b"").decode())
        await self._send(message)


def read_json(body: bytes) -> dict[str, Any]:
    """Parses a JSON object; raises `Refusal` for other bodies and for too many values."""
    # counted before parsing: 70 MB of brackets would become 23 million lists
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) > VALUES:
        raise Refusal(413, f"the body holds too many values; at most {VALUES:,}")
    try:
        value = from_json(body.removeprefix(BOM_UTF8))  # no lone surrogates
    except ValueError:
        raise Refusal(400, "the body is no JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value


def _has_object(value: Any) -> bool:
    """Whether a value is or contains an object, which Gradio may take for a file to fetch."""
    return any(map(_has_object, value)) if isinstance(value, list) else isinstance(value, dict)


def client_of(scope: Scope) -> str:
    """The key by which requests are counted: an IPv4 address, or an IPv6 network.

    >>> client_of({"client": ("2001:db8::1:2:3:4", 5)})
    '2001:db8::/64'
    """
    host = str((scope.get("client") or ("",))[0])
    with suppress(ValueError):
        address = ipaddress.IPv6Address(host)
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return host
