"""Access control: host names, origins, routes and limits, checked before every request.

A web page cannot forge the `Host` and `Origin` headers that a browser sends. Checking the host
stops DNS rebinding (a foreign name that resolves to this machine), checking the origin stops forms
and scripts of other sites. Without CORS headers other sites cannot read responses. Of Gradio's
routes, only those of `gradio_client`, MCP and the queue are open. A reverse proxy must handle slow
clients and floods (docs/deploy.md).
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import json
import logging
import math
import re
import time
import traceback
from codecs import BOM_UTF8
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON_BYTES, IMAGE_BYTES = 1_000_000, 70_000_000
MAX_BODIES_BYTES = 300_000_000  # of all request bodies in memory
BODY_SECONDS = 120.0  # time limit for receiving a body
MAX_VALUES = 20_000  # in a JSON body, estimated by counting separators
RATE, BURST = 20.0, 200.0  # requests per second of one client, and its maximum burst after idling
CHEAP_COST = 0.1  # cost of an image or page file, in requests
MAX_OPEN = 128  # open requests of one client
# requests of one client below /api/v1 that are answered at a time, and those with large bodies that
# are received and answered at a time; others wait
MAX_TOGETHER = 4
MAX_UNREAD = 300  # unfetched answers in Gradio's queue; older ones are dropped
MAX_UNANSWERED = 12  # unfetched answers of one client in Gradio's queue
UNANSWERED_SECONDS = 120.0  # age at which an unfetched answer no longer counts
_MAX_CLIENTS = 10_000  # clients whose request counts are in memory

_APP_PATHS = r"/|/favicon\.ico|/page/.*|/api/v1(/[\w./-]*)?"
_GRADIO_PATHS = (
    r"/config|/gradio_api/(info|startup-events|queue/(join|data)|call/(v2/)?\w+(/\w+)?|cancel|reset"
    r"|heartbeat/[\w-]+)"
)
_MCP_PATHS = r"/gradio_api/mcp(/|/http/?|/schema)?"
_IMAGE_PATHS = re.compile(
    r"/api/v1/(search|explain|explain/hits|collections/file)|/gradio_api/queue/join"
    r"|/gradio_api/call/(v2/)?(search_image|explain|explain_hits|add_file)"
)
_JOIN = re.compile(r"/gradio_api/(?:queue/join|call/(?:v2/)?(\w+))")
_DELIVERY_EVENT = re.compile(
    rb'event: (?:complete|error)|data: \{"msg":"process_completed","event_id":"(\w+)'
)
_CHEAP_PATHS = re.compile(r"/page/.*|/api/v1/(image|clip)/.*|/favicon\.ico")
_SESSION_HASH = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SPACE_FRAME_ANCESTORS = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
# headers that proxies and tunnels add
_FORWARDING = re.compile(
    "forwarded|via|x-forwarded-.*|x-real-ip|x-client-ip|true-client-ip|cf-connecting-ip"
    "|fly-client-ip|tailscale-user-login|x-envoy-external-address|x-original-forwarded-for"
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_log = logging.getLogger(__name__)


class Refusal(ValueError):  # noqa: N818 it is an answer
    """The HTTP status and message of a refused request, which may succeed after `wait` seconds."""

    def __init__(self, status: int, message: str, wait: int = 0) -> None:
        super().__init__(message)
        self.status, self.wait = status, wait

    @classmethod
    def for_unexpected(cls, error: Exception, operation: str) -> Refusal:
        """Logs an unexpected error without its traceback; returns the refusal for the client."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        summary = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        _log.error("%s failed: %s: %.200s", operation, summary, error)
        return cls(500, "internal error; try a different request")

    def response(self) -> JSONResponse:
        """The refusal as a JSON response."""
        headers = {"retry-after": str(self.wait)} if self.wait else None
        return JSONResponse({"error": str(self)}, self.status, headers)


def is_loopback(host: str) -> bool:
    """Whether an address or name is reachable only from this machine.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "x.example")]
    [True, True, True, False, False]
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


@dataclass(frozen=True)
class Hosts:
    """The host names the app answers to."""

    private: bool = True  # accept only loopback names, and no forwarded requests
    names: tuple[str, ...] = ()  # `host` or `host:port`; a leading dot matches all subdomains

    def check(self, headers: Headers, method: str) -> None:
        """Raises `Refusal` for a request with a foreign host name or origin."""
        for name in filter(_FORWARDING.fullmatch, headers if self.private else ()):
            raise Refusal(
                403,
                f"this app serves only its own machine, but the header {name:.100} shows "
                "that the request was forwarded; start it with --allow-host NAME to serve others",
            )
        own_host = headers.get("host", "").lower()
        forwarded_hosts = ",".join(headers.getlist("x-forwarded-host"))  # trusted by gradio
        for host in [own_host, *(forwarded_hosts.lower().split(",") if forwarded_hosts else ())]:
            if not self._accepts(host.strip()):
                raise Refusal(
                    421,
                    f'this app does not serve "{host:.100}"; if that is its name, start '
                    "it with --allow-host NAME",
                )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_navigation = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        is_foreign = site not in ("same-origin", "none") and not is_navigation
        if is_foreign or (origin is not None and not self._is_own(origin.lower(), own_host)):
            raise Refusal(403, "other sites may not send requests to this app; open its own page")

    def _accepts(self, host: str) -> bool:
        match = HOST.fullmatch(host)
        if match is None or is_loopback(match[1]):
            return match is not None
        with suppress(ValueError):  # a public app accepts any address: rebinding needs a name
            return ipaddress.ip_address(match[1].strip("[]")) is not None and not self.private
        return self._is_named(match[1]) or self._is_named(host)

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether an origin is this app: the request's own host and port, or one of `names`."""
        scheme, _, address = origin.partition("://")
        port = _DEFAULT_PORTS.get(scheme)
        if port is None or HOST.fullmatch(address) is None:
            return False
        address = address.removesuffix(port)
        return address == host.removesuffix(port) or self._is_named(address)

    def _is_named(self, host: str) -> bool:
        names = () if self.private else map(str.lower, self.names)
        return any(host == name or (name[0] == "." and host.endswith(name)) for name in names)


class RequestGuard:
    """Middleware that refuses invalid or excessive requests and forwards all others.

    A private app has no limits per client. `defaults` are the default values of the parameters of
    each Gradio endpoint, in order. A Hugging Face Space embeds the app in a frame.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Hosts,
        defaults: Mapping[str, list[Any]],
        mcp: bool = False,
        space: bool = False,
    ) -> None:
        self._app, self._hosts, self._defaults = app, hosts, dict(defaults)
        self._paths = re.compile("|".join([_APP_PATHS, _GRADIO_PATHS, *([_MCP_PATHS] * mcp)]))
        self._body_bytes = 0
        self._client = lru_cache(_MAX_CLIENTS)(lambda _: _Client())
        # session, client and time of each queue event with an unfetched answer
        self._unread: dict[str, tuple[str, _Client, float]] = {}
        self._collectable = 0  # bytes of queue requests, which Gradio leaves in reference cycles
        self._tasks: set[asyncio.Task[None]] = set()
        frames = _SPACE_FRAME_ANCESTORS if space else "'self'"
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
        answer, name = _Answer(send, self._headers), client_key(scope)
        # Gradio's own request on behalf of an MCP client, whose request is already counted
        internal = name == "127.0.0.1" and (b"x-gradio-user", b"mcp") in scope["headers"]
        client = _Client() if internal else self._client(name)
        client.open += 1
        try:
            self._hosts.check(Headers(scope=scope), scope["method"])
            if self._paths.fullmatch(scope["path"]) is None:
                raise Refusal(404, "unknown address; /api/v1 lists all routes")
            if scope["method"] not in ("GET", "HEAD", "POST", "DELETE"):
                raise Refusal(405, "this method is not supported; use GET or POST")
            is_limited = not self._hosts.private and not internal
            if is_limited:
                client.check(scope["path"])
            if is_limited and scope["path"].startswith("/api/v1/"):
                answer.slots = client.slots
            if scope["method"] == "POST":
                length = int(Headers(scope=scope).get("content-length", f"{IMAGE_BYTES}")[:20])
                is_large = is_limited and length > JSON_BYTES
                async with client.large_bodies if is_large else nullcontext():
                    await self._post(scope, receive, answer, client)
            else:
                await self._answer(scope, receive, answer)
        except Refusal as refusal:
            response = refusal.response()
            # the body may not have been read to its end
            response.headers.update({"cache-control": "no-store", "connection": "close"})
            await response(scope, receive, answer.send)
        finally:
            client.open -= 1

    async def _post(self, scope: Scope, receive: Receive, answer: _Answer, client: _Client) -> None:
        """Receives the body within limits and forwards the request."""
        headers, buffer, join = Headers(scope=scope), bytearray(), _JOIN.fullmatch(scope["path"])
        try:
            await self._receive(scope, receive, buffer)
            body, session = bytes(buffer), ""
            client.use(len(body) / 1e6)  # one request per MB
            if join:
                self._check_unread(client)
                body, session = self._complete_request(join[1], body)
                MutableHeaders(scope=scope)["content-length"] = str(len(body))
            elif body and "json" in headers.get("content-type", "").lower():
                read_json(body)
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:
                return messages.pop() if messages else await receive()

            await self._answer(scope, replay, answer)
        finally:
            self._body_bytes -= len(buffer)
            self._collectable += len(buffer) if join else 0
            if self._collectable > MAX_BODIES_BYTES // 3:
                self._collectable = 0
                gc.collect()
        if join and b'"event_id"' in answer.first_part:
            event = str(json.loads(answer.first_part)["event_id"])
            self._unread[event] = session or event, client, time.monotonic()
            if len(self._unread) > MAX_UNREAD:
                oldest, _, _ = self._unread.pop(next(iter(self._unread)))
                task = asyncio.create_task(self._discard_answers(oldest))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _check_unread(self, client: _Client) -> None:
        """Raises `Refusal` if too many answers in Gradio's queue wait for one client."""
        oldest = time.monotonic() - UNANSWERED_SECONDS
        count = sum(owner is client and at > oldest for _, owner, at in self._unread.values())
        if count >= MAX_UNANSWERED and not self._hosts.private:
            reason = f"you have {MAX_UNANSWERED} requests whose answers were not fetched"
            raise Refusal(429, f"{reason}; fetch them first", 5)

    async def _receive(self, scope: Scope, receive: Receive, received: bytearray) -> None:
        """Receives a body; raises `Refusal` if it is too large or arrives too slowly."""
        limit = IMAGE_BYTES if _IMAGE_PATHS.fullmatch(scope["path"]) else JSON_BYTES
        size, has_more = int(Headers(scope=scope).get("content-length", "0")[:20]), True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while has_more or size > limit:
                    if size > limit:
                        raise Refusal(413, f"the body is too large: at most {limit / 1e6:g} MB")
                    if self._body_bytes > MAX_BODIES_BYTES:
                        raise Refusal(503, "the app is busy; try again in a moment", 2)
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refusal(400, "the body ended early; send it again")
                    received += message.get("body", b"")
                    self._body_bytes += len(message.get("body", b""))
                    size, has_more = max(size, len(received)), message.get("more_body", False)
        except TimeoutError:
            reason = f"the body did not arrive within {BODY_SECONDS:g} seconds; send it again"
            raise Refusal(408, reason) from None

    def _complete_request(self, name: str | None, body: bytes) -> tuple[bytes, str]:
        """Adds default values to a request for Gradio's queue; returns the body and the session."""
        value = read_json(body)
        index, session = value.get("fn_index"), value.get("session_hash") or ""
        if name is None and type(index) is int and 0 <= index < len(self._defaults):
            name = list(self._defaults)[index]
        if any(map(_has_object, value.values())):
            raise Refusal(403, "objects are not accepted here; send an image as a data URI")
        if session and not (isinstance(session, str) and _SESSION_HASH.fullmatch(session)):
            raise Refusal(400, "session_hash must be 1 to 64 letters, digits, - or _")
        if name not in self._defaults:
            raise Refusal(404, "unknown endpoint; /gradio_api/info lists all endpoints")
        data, defaults = value.get("data"), self._defaults[name]
        if isinstance(data, list) and len(data) < len(defaults):  # Gradio would log the whole body
            body = json.dumps({**value, "data": data + defaults[len(data) :]}).encode()
        return body, session

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Passes a request to the app; turns an unexpected error into a `Refusal`."""
        await answer.take_slot()
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            refusal = Refusal.for_unexpected(error, scope["path"][:100])
            if not answer.has_started:
                raise refusal from error
        finally:
            answer.release_slot()
        for event in answer.delivered:
            self._unread.pop(event or scope["path"].rpartition("/")[2], None)

    async def _discard_answers(self, session: str) -> None:
        """Fetches and discards the answers of a session, which Gradio would otherwise keep."""
        import httpx  # only after floods

        transport = httpx.ASGITransport(self, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/gradio_api")
        with suppress(httpx.HTTPError, TimeoutError):
            async with client, asyncio.timeout(BODY_SECONDS):
                address = f"/queue/data?session_hash={session}"
                await client.get(address, headers={"x-gradio-user": "mcp"})


class _Client:
    """The open requests and the remaining burst of one client."""

    def __init__(self) -> None:
        self.open = 0
        self.slots, self.large_bodies = (asyncio.Semaphore(MAX_TOGETHER) for _ in range(2))
        self._remaining, self._updated_at = BURST, time.monotonic()

    def use(self, requests: float) -> None:
        """Refills the burst at `RATE`, then subtracts requests."""
        now = time.monotonic()
        self._remaining = min(BURST, self._remaining + (now - self._updated_at) * RATE) - requests
        self._updated_at = now

    def check(self, path: str) -> None:
        """Counts a request; raises `Refusal` if the client must wait."""
        if self.open > MAX_OPEN:
            raise Refusal(429, f"you have {MAX_OPEN} open requests; finish one first", 1)
        self.use(0)
        if self._remaining < 1:
            wait = math.ceil((1 - self._remaining) / RATE)
            raise Refusal(429, f"too many requests; send at most {RATE:g} a second", wait)
        self.use(CHEAP_COST if _CHEAP_PATHS.fullmatch(path) else 1)


class _Answer:
    """Sends the response to a request, with the app's headers and without CORS headers."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send, self._headers = send, headers
        self.slots: asyncio.Semaphore | None = None  # of the client, if they are limited
        self._has_slot = self.has_started = False
        self.first_part = b""  # of the body
        # ids of the queue events whose answers were sent; "" for the event in the URL
        self.delivered: list[str] = []

    async def take_slot(self) -> None:
        """Waits for one of the client's slots; it is released when the response starts."""
        if self.slots is not None:
            await self.slots.acquire()
            self._has_slot = True

    def release_slot(self) -> None:
        """Releases the slot, if there is one; who reads a response slowly holds none."""
        if self.slots is not None and self._has_slot:
            self._has_slot = False
            self.slots.release()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self.release_slot()
            headers = [
                h for h in message.get("headers", ()) if not h[0].startswith(b"access-control-")
            ]
            message = {**message, "headers": headers + self._headers}
        else:
            part = message.get("body", b"")
            self.first_part = self.first_part or part
            if match := _DELIVERY_EVENT.match(part):
                self.delivered.append((match[1] or b"").decode())
        await self._send(message)


def read_json(body: bytes) -> dict[str, Any]:
    """Parses a JSON object; raises `Refusal` for other bodies and for too many values."""
    # counted before parsing: 70 MB of brackets would become 23 million lists
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise Refusal(413, f"the body holds too many values; at most {MAX_VALUES:,}")
    try:
        value = from_json(body.removeprefix(BOM_UTF8))  # rejects lone surrogates
    except ValueError:
        raise Refusal(400, "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value


def _has_object(value: Any) -> bool:
    """Whether a value is or contains an object, which Gradio could take for a file to fetch."""
    return any(map(_has_object, value)) if isinstance(value, list) else isinstance(value, dict)


def client_key(scope: Scope) -> str:
    """The key for counting requests: an IPv4 address, or the /64 network of an IPv6 address.

    >>> client_key({"client": ("2001:db8::1:2:3:4", 5)})
    '2001:db8::/64'
    """
    host = str((scope.get("client") or ("",))[0])
    with suppress(ValueError):
        address = ipaddress.IPv6Address(host)
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return host
