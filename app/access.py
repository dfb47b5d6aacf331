"""Access control: host names, origins, routes and limits, which are checked for every request.

A web page cannot forge the `Host` and `Origin` headers that a browser sends. Checking the host
stops DNS rebinding (a foreign name that resolves to this machine). Checking the origin stops forms
and scripts of other sites. Without CORS headers, other sites cannot read responses. Of Gradio's
routes, only those of `gradio_client`, MCP and the queue are open. A reverse proxy must handle slow
clients and floods (docs/deploy.md).
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import time
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyview.app.gradio_queue import GradioQueue
from polyview.app.refusal import Refusal, read_json

JSON_BYTES, IMAGE_BYTES = 1_000_000, 70_000_000  # maximum size of a body without and with a file
MAX_BODIES_BYTES = 300_000_000  # maximum size of all request bodies in memory
BODY_SECONDS = 120.0  # time limit for receiving a body
RATE, BURST = 20.0, 200.0  # requests per second of one client, and in a burst after idling
CHEAP_COST = 0.1  # cost of an image or page file, in requests
MAX_OPEN = 128  # open requests of one client
# for each client, the maximum number of requests below /api/v1 that are answered at the same time,
# and the maximum number of open requests with bodies above `JSON_BYTES`; further requests wait
MAX_CONCURRENT = 4
_MAX_CLIENTS = 10_000  # clients whose counts of requests are in memory

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
_DELIVERY_EVENT = re.compile(  # marks the end of an answer; the group is its event id, if stated
    rb'event: (?:complete|error)|data: \{"msg":"process_completed","event_id":"(\w+)'
)
_CHEAP_PATHS = re.compile(r"/page/.*|/api/v1/(image|clip)/.*|/favicon\.ico")
_SPACE_FRAME_ANCESTORS = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
# headers that proxies and tunnels add
_FORWARDING = re.compile(
    "forwarded|via|x-forwarded-.*|x-real-ip|x-client-ip|true-client-ip|cf-connecting-ip"
    "|fly-client-ip|tailscale-user-login|x-envoy-external-address|x-original-forwarded-for"
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")  # name or address, port
# the client of the current request, see `client_key`; "" without limits per client
client_name: ContextVar[str] = ContextVar("client_name", default="")


def is_loopback(host: str) -> bool:
    """Returns whether an address or name is reachable only from this machine.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "x.example")]
    [True, True, True, False, False]
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


@dataclass(frozen=True)
class Hosts:
    """The host names that the app accepts."""

    private: bool = True  # accept only loopback names, and no forwarded requests
    names: tuple[str, ...] = ()  # `host` or `host:port`; ".host" matches all subdomains of host

    def check(self, headers: Headers, method: str) -> None:
        """Raises `Refusal` for foreign hosts or origins, or requests forwarded to a private app."""
        for name in filter(_FORWARDING.fullmatch, headers if self.private else ()):
            reason = f"this private app refuses forwarded requests (header {name:.100})"
            raise Refusal(403, f"{reason}; start it with --allow-host NAME to serve others")
        own_host = headers.get("host", "").lower()
        forwarded_hosts = ",".join(headers.getlist("x-forwarded-host"))  # Gradio trusts this header
        for host in [own_host, *(forwarded_hosts.lower().split(",") if forwarded_hosts else ())]:
            if not self._accepts(host.strip()):
                advice = "to serve this name, start the app with --allow-host NAME"
                raise Refusal(421, f'this app does not serve "{host:.100}"; {advice}')
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_navigation = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        is_foreign = site not in ("same-origin", "none") and not is_navigation
        if is_foreign or (origin is not None and not self._is_own(origin.lower(), own_host)):
            raise Refusal(403, "other sites may not send requests to this app; open the app's page")

    def _accepts(self, host: str) -> bool:
        """Returns whether the app serves a host `name` or `name:port`."""
        match = HOST.fullmatch(host)
        if match is None or is_loopback(match[1]):
            return match is not None
        with suppress(ValueError):  # a public app accepts all IP addresses: rebinding needs a name
            ipaddress.ip_address(match[1].strip("[]"))
            return not self.private
        return self._is_named(match[1]) or self._is_named(host)

    def _is_own(self, origin: str, host: str) -> bool:
        """Returns whether an origin has the request's host and port, or matches `names`."""
        scheme, _, address = origin.partition("://")
        port = _DEFAULT_PORTS.get(scheme)
        if port is None or HOST.fullmatch(address) is None:
            return False
        address = address.removesuffix(port)
        return address == host.removesuffix(port) or self._is_named(address)

    def _is_named(self, host: str) -> bool:
        """Returns whether a host matches one of `names`, which a private app ignores."""
        names = () if self.private else map(str.lower, self.names)
        return any(host == name or (name[0] == "." and host.endswith(name)) for name in names)


class RequestGuard:
    """Middleware that refuses invalid and excessive requests and forwards all others.

    A private app has no limits per client. `mcp` opens the routes of MCP. With `space`, the Hub may
    embed the app in a frame.
    """

    def __init__(
        self, app: ASGIApp, hosts: Hosts, queue: GradioQueue, mcp: bool = False, space: bool = False
    ) -> None:
        self._app, self._hosts, self._gradio_queue = app, hosts, queue
        self._paths = re.compile("|".join([_APP_PATHS, _GRADIO_PATHS, *([_MCP_PATHS] * mcp)]))
        self._body_bytes = 0
        self._client = lru_cache(_MAX_CLIENTS)(lambda _: _Client())
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
        """Handles a request: refuses it, or forwards it to the app."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        del MutableHeaders(scope=scope)["x-gradio-server"]  # Gradio would build URLs from its value
        sender, key = _ResponseSender(send, self._headers), client_key(scope)
        # Gradio's request to itself for an MCP client, whose request is already counted
        is_internal = key == "127.0.0.1" and (b"x-gradio-user", b"mcp") in scope["headers"]
        client = _Client() if is_internal else self._client(key)
        client.open_count += 1
        try:
            self._hosts.check(Headers(scope=scope), scope["method"])
            if self._paths.fullmatch(scope["path"]) is None:
                raise Refusal(404, "unknown address; /api/v1 lists all routes")
            if scope["method"] not in ("GET", "HEAD", "POST", "DELETE"):
                raise Refusal(405, f"{scope['method']:.20} is not supported; use GET or POST")
            is_limited = not (self._hosts.private or is_internal)
            client_name.set(key if is_limited else "")
            if is_limited:
                client.check(scope)
            if is_limited and scope["path"].startswith("/api/v1/"):
                sender.slots = client.slots
            if scope["method"] == "POST":
                length = int(Headers(scope=scope).get("content-length", f"{IMAGE_BYTES}")[:20])
                is_large = is_limited and length > JSON_BYTES  # also true if no length is stated
                async with client.large_bodies if is_large else nullcontext():
                    await self._post(scope, receive, sender, client if is_limited else None)
            else:
                await self._forward(scope, receive, sender)
        except Refusal as refusal:
            response = refusal.response()
            # the connection cannot be reused if a part of the body is unread
            response.headers.update({"cache-control": "no-store", "connection": "close"})
            await response(scope, receive, sender.send)
        finally:
            client.open_count -= 1

    async def _post(
        self, scope: Scope, receive: Receive, sender: _ResponseSender, client: _Client | None
    ) -> None:
        """Receives, checks and forwards a request; `client` is None without limits per client."""
        headers, buffer = Headers(scope=scope), bytearray()
        is_queued = self._gradio_queue.accepts(scope["path"])
        try:
            await self._receive(scope, receive, buffer)
            body, session = bytes(buffer), ""
            if client:
                client.spend(len(body) / 1e6)  # a MB costs one request
            if is_queued:
                if client:
                    self._gradio_queue.check(client)
                body, session = self._gradio_queue.complete(scope["path"], body)
                MutableHeaders(scope=scope)["content-length"] = str(len(body))
            elif body and "json" in headers.get("content-type", "").lower():
                read_json(body)  # raises `Refusal` if it is not valid
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:  # returns the body, then later messages
                return messages.pop() if messages else await receive()

            await self._forward(scope, replay, sender)
        finally:
            self._body_bytes -= len(buffer)
            if is_queued:
                self._gradio_queue.collect(len(buffer))
        if is_queued:
            self._gradio_queue.add(sender.first_chunk, session, client, self)

    async def _receive(self, scope: Scope, receive: Receive, received: bytearray) -> None:
        """Appends a body to `received`; raises `Refusal` if it breaks a limit or ends early."""
        limit = IMAGE_BYTES if _IMAGE_PATHS.fullmatch(scope["path"]) else JSON_BYTES
        size, has_more = int(Headers(scope=scope).get("content-length", "0")[:20]), True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while has_more or size > limit:
                    if size > limit:
                        raise Refusal(413, f"the body is too large; send up to {limit / 1e6:g} MB")
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

    async def _forward(self, scope: Scope, receive: Receive, sender: _ResponseSender) -> None:
        """Waits for a slot, then forwards a request; raises `Refusal` if the app cannot answer."""
        await sender.take_slot()
        try:
            await self._app(scope, receive, sender.send)
        except Exception as error:
            refusal = Refusal.for_unexpected(error, scope["path"][:100])
            if not sender.has_started:
                raise refusal from error
        finally:
            sender.release_slot()
        for event in sender.delivered_event_ids:
            self._gradio_queue.remove(event or scope["path"].rpartition("/")[2])


class _Client:
    """The number of open requests, the slots and the remaining burst of one client."""

    def __init__(self) -> None:
        self.open_count = 0  # open requests
        self.slots, self.large_bodies = (asyncio.Semaphore(MAX_CONCURRENT) for _ in range(2))
        self._remaining, self._updated_at = BURST, time.monotonic()

    def spend(self, requests: float) -> None:
        """Adds `RATE` a second to the allowance, up to `BURST`; subtracts `requests`."""
        now = time.monotonic()
        self._remaining = min(BURST, self._remaining + (now - self._updated_at) * RATE) - requests
        self._updated_at = now

    def check(self, scope: Scope) -> None:
        """Counts a request; raises `Refusal` if the client must wait."""
        if self.open_count > MAX_OPEN:
            raise Refusal(429, f"you have {MAX_OPEN} open requests; finish one first", 1)
        self.spend(0)  # updates `_remaining`
        if self._remaining < 1:
            wait = math.ceil((1 - self._remaining) / RATE)
            raise Refusal(429, f"too many requests; send at most {RATE:g} a second", wait)
        # a large image is not cheap: it is decoded for each request
        large = QueryParams(scope["query_string"]).get("large", "false")
        is_cheap = _CHEAP_PATHS.fullmatch(scope["path"]) and large == "false"
        self.spend(CHEAP_COST if is_cheap else 1)


class _ResponseSender:
    """Sends the response to a request, with the app's headers and without CORS headers."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send, self._headers = send, headers
        self.slots: asyncio.Semaphore | None = None  # the client's slots; None without limits
        self._has_slot = self.has_started = False
        self.first_chunk = b""  # the first non-empty chunk of the body
        # ids of the queue events whose answers were sent; "" for the event in the URL
        self.delivered_event_ids: list[str] = []

    async def take_slot(self) -> None:
        """Waits for one of the client's slots; `send` releases it when the response starts."""
        if self.slots is not None:
            await self.slots.acquire()
            self._has_slot = True

    def release_slot(self) -> None:
        """Releases the slot, if it was taken."""
        if self.slots is not None and self._has_slot:
            self._has_slot = False
            self.slots.release()

    async def send(self, message: Message) -> None:
        """Sends an ASGI message of the response; records the ids of delivered events."""
        if message["type"] == "http.response.start":
            self.has_started = True
            self.release_slot()  # a client that reads slowly must not occupy a slot
            headers = [
                h for h in message.get("headers", ()) if not h[0].startswith(b"access-control-")
            ]
            message = {**message, "headers": headers + self._headers}
        else:
            chunk = message.get("body", b"")
            self.first_chunk = self.first_chunk or chunk
            if match := _DELIVERY_EVENT.match(chunk):
                self.delivered_event_ids.append((match[1] or b"").decode())
        await self._send(message)


def client_key(scope: Scope) -> str:
    """Returns the key of a client: its IPv4 address, or the /64 network of its IPv6 address.

    >>> client_key({"client": ("2001:db8::1:2:3:4", 5)})
    '2001:db8::/64'
    """
    host = str((scope.get("client") or ("",))[0])
    with suppress(ValueError):
        address = ipaddress.IPv6Address(host)
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return host
