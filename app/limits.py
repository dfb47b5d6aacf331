"""The front door of the server: an ASGI middleware that every request passes first.

It answers for known hosts and same-origin pages (`app/access.py`), lets only those of Gradio's own
routes be reached that `gradio_client`, MCP and the queue need, and bounds bodies, rates, open
requests, and answers that nobody fetches from Gradio's queue.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import Hosts, Refusal

JSON_BYTES, IMAGE_BYTES = 1_000_000, 70_000_000
HELD_BYTES = 300_000_000  # of all bodies that are in memory
VALUES = 20_000  # numbers, texts and lists in a body for Gradio, by the signs between them
GRACE, SLOWEST = 15.0, 32_768  # seconds for a body, and bytes that give it one second more
RATE, BURST = 20.0, 200.0  # requests of a client in a second in the long run, and at once
CHEAP = 0.1  # of a request that an image or a file of the page counts
OPEN = 128  # requests of one client at a time
UNREAD = 24  # questions of one client in Gradio's queue whose answers nobody has fetched
ALL_UNREAD, UNREAD_SECONDS = 300, 300.0  # of all clients; after so long they are forgotten
UPLOADED_BYTES, HOUR = 500_000_000, 3600.0  # of one client in an hour
_CLIENTS = 10_000  # remembered
_KEPT = 200  # bytes of an answer, where Gradio names the event

_OURS = r"/|/favicon\.ico|/robots\.txt|/page/.*|/api/v1(/[\w./-]*)?"
_GRADIO = (
    r"/config|/gradio_api/(info|startup-events|queue/(join|data)|call/(v2/)?\w+(/\w+)?|cancel|reset"
    r"|heartbeat/[\w-]+)"
)
_MCP = r"/gradio_api/mcp(/|/http/?|/schema)?"
_IMAGES = re.compile(
    r"/api/v1/(search|explain|explain/hits|collections/file)|/gradio_api/queue/join"
    r"|/gradio_api/call/(v2/)?(search_image|explain|explain_hits|add_file)"
)
_JOIN = re.compile(r"/gradio_api/(queue/join|call/(v2/)?\w+)")
_FETCH = re.compile(r"/gradio_api/(queue/data|call/(?:v2/)?\w+/(\w+))")
_CHEAP = re.compile(r"/page/.*|/api/v1/(image|clip)/.*|/favicon\.ico")
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FRAMES_OF_A_SPACE = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
_NOWHERE = Refusal(404, "there is nothing at this address; /api/v1 lists what there is")
_FAILED = Refusal(500, "this could not be answered; ask for it in another way")
_SLOW = Refusal(408, f"the body did not arrive within {GRACE:g} seconds; send it again")
_FULL = Refusal(503, "the app is busy; ask again in a moment", 2)
_log = logging.getLogger(__name__)


class Door:
    """Refuses requests, or passes them on.

    Args:
        app: what answers.
        hosts: which names it answers for; a private app has no limits of clients.
        endpoints: names of Gradio's endpoints in order, and the defaults of their parameters.
        mcp: assistants may ask.
        space: the app runs as a Hugging Face Space, which shows it in a frame.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Hosts,
        endpoints: Sequence[tuple[str, list[Any]]] = (),
        mcp: bool = False,
        space: bool = False,
    ) -> None:
        self._app, self._hosts, self._endpoints = app, hosts, endpoints
        self._known = re.compile("|".join([_OURS, _GRADIO, *([_MCP] if mcp else [])]))
        self._held = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._unread: OrderedDict[str, tuple[str, float, int]] = OrderedDict()
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
        """Answers a request."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        # Gradio would build addresses from this one
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"x-gradio-server"]
        answer = _Answer(send, self._headers)
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        client = self._client(scope)
        limited = not self._hosts.private and not _asks_itself(scope, headers)
        refusal = self._hosts.check(headers, method)
        if refusal is None and self._known.fullmatch(path) is None:
            refusal = _NOWHERE
        if refusal is None and method not in ("GET", "HEAD", "POST", "DELETE"):
            refusal = Refusal(405, f"{method[:20]} is not answered; use GET or POST")
        if refusal is None and limited:
            refusal = client.refuse(path)
        client.open += 1
        try:
            if refusal is None and method == "POST":
                refusal = await self._pass(scope, receive, answer, client, limited)
            elif refusal is None:
                await self._answer(scope, receive, answer)
            if refusal is not None:
                await refusal.answer(answer.send)
        finally:
            client.open -= 1

    async def _pass(
        self, scope: Scope, receive: Receive, answer: _Answer, client: _Client, limited: bool
    ) -> Refusal | None:
        """Receives a body within bounds and passes it on; says why where it does not."""
        path, size = scope["path"], Headers(scope=scope).get("content-length", "0")
        most = IMAGE_BYTES if _IMAGES.fullmatch(path) else JSON_BYTES
        large = Refusal(413, f"the body is too large; send at most {most // 10**6} MB")
        if not size.isdecimal() or int(size[:20]) > most:
            return large
        body = bytearray()
        try:
            start = asyncio.get_running_loop().time()
            while True:
                async with asyncio.timeout_at(start + GRACE + len(body) / SLOWEST):
                    message = await receive()
                if message["type"] != "http.request":
                    return None  # the client left
                part = message.get("body", b"")
                body += part
                self._held += len(part)
                if len(body) > most:
                    return large
                if self._held > HELD_BYTES:
                    return _FULL
                if not message.get("more_body", False):
                    break
            if limited and len(body) > JSON_BYTES and not client.upload(len(body)):
                limit = UPLOADED_BYTES // 10**6
                return Refusal(429, f"you have uploaded much; at most {limit} MB an hour", 600)
            if path.startswith("/gradio_api/") and _JOIN.fullmatch(path):
                return await self._join(bytes(body), scope, receive, answer, client, limited)
            await self._answer(scope, _replay(bytes(body), receive), answer)
        except TimeoutError:
            return _SLOW
        finally:
            self._held -= len(body)
        return None

    async def _join(
        self,
        body: bytes,
        scope: Scope,
        receive: Receive,
        answer: _Answer,
        client: _Client,
        limited: bool,
    ) -> Refusal | None:
        """Passes a question on to Gradio's queue, and notes that its answer is to be fetched."""
        refusal, value = check_question(body)
        if refusal is not None:
            return refusal
        session = value.get("session_hash")
        body = self._completed(scope["path"], value) or body
        self._forget_unread()
        mine = sum(count for name, _, count in self._unread.values() if name == client.name)
        if limited and mine >= UNREAD:
            sentence = f"{UNREAD} answers of yours wait to be fetched; fetch those first"
            return Refusal(429, sentence, 2)
        size = (b"content-length", str(len(body)).encode())
        rest = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        await self._answer({**scope, "headers": [*rest, size]}, _replay(body, receive), answer)
        try:
            event = str(json.loads(answer.kept)["event_id"])
        except (ValueError, KeyError, TypeError):
            return None
        _, _, count = self._unread.get(session or event, ("", 0.0, 0))
        self._unread[session or event] = client.name, time.monotonic(), count + 1
        return None

    def _completed(self, path: str, value: dict[str, Any]) -> bytes | None:
        """A question with a value for each parameter; Gradio logs one that has fewer, whole."""
        data, number = value.get("data"), value.get("fn_index")
        name = path.rpartition("/")[2]
        known = [one for one in self._endpoints if one[0] == name]
        if path == "/gradio_api/queue/join" and type(number) is int:
            known = list(self._endpoints[number : number + 1]) if number >= 0 else []
        if not known or not isinstance(data, list) or len(data) == len(known[0][1]):
            return None
        defaults = known[0][1]
        return json.dumps(
            {**value, "data": (data + defaults[len(data) :])[: len(defaults)]}
        ).encode()

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Lets the app answer; what fails there becomes a sentence."""
        if fetched := _FETCH.fullmatch(scope["path"]):
            query = QueryParams(scope["query_string"])
            self._unread.pop(fetched[2] or query.get("session_hash", ""), None)
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            about = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            _log.error("%s failed: %s: %.200s", scope["path"], about, error)
            if not answer.begun:
                await _FAILED.answer(answer.send)

    def _forget_unread(self) -> None:
        """Fetches, for nobody, the oldest answers that Gradio would keep."""
        now = time.monotonic()
        for session, (_, then, _) in list(self._unread.items()):
            if now - then < UNREAD_SECONDS and len(self._unread) <= ALL_UNREAD:
                return
            del self._unread[session]
            task = asyncio.create_task(self._fetch(session))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch(self, session: str) -> None:
        address = httpx.URL(
            "http://127.0.0.1/gradio_api/queue/data", params={"session_hash": session}
        )
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, timeout=UNREAD_SECONDS) as inside:
            with suppress(httpx.HTTPError):
                await inside.get(address)

    def _client(self, scope: Scope) -> _Client:
        name = client_of(scope)
        client = self._clients.setdefault(name, _Client(name))
        self._clients.move_to_end(name)
        while len(self._clients) > _CLIENTS:
            self._clients.popitem(last=False)
        return client


class _Client:
    """What one client does: its open requests, its rate, and what it has uploaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = 0
        self._tokens, self._then = BURST, time.monotonic()
        self._uploaded = Counter[int]()  # bytes by sixths of an hour

    def refuse(self, path: str) -> Refusal | None:
        """Says why a request must wait."""
        if self.open >= OPEN:
            return Refusal(429, f"{OPEN} requests of yours are open; end one first", 1)
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._then) * RATE)
        self._then = now
        cost = CHEAP if _CHEAP.fullmatch(path) else 1.0
        if self._tokens < cost:
            return Refusal(429, f"these are too many requests; at most {RATE:g} a second", 1)
        self._tokens -= cost
        return None

    def upload(self, size: int) -> bool:
        """Counts an upload; whether there is room for it."""
        part = int(time.monotonic() / (HOUR / 6))
        for old in [one for one in self._uploaded if one <= part - 6]:
            del self._uploaded[old]
        if self._uploaded.total() + size > UPLOADED_BYTES:
            return False
        self._uploaded[part] += size
        return True


class _Answer:
    """The answer to one request: with our headers and without CORS.

    Attributes:
        begun: a part was sent.
        kept: the first bytes of the body.
    """

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send, self._headers = send, headers
        self.begun, self.kept = False, b""

    async def send(self, message: Message) -> None:
        """Sends a part of the answer."""
        if message["type"] == "http.response.start":
            self.begun = True
            own = [h for h in message.get("headers", ()) if not h[0].startswith(b"access-control-")]
            message = {**message, "headers": own + self._headers}
        elif len(self.kept) < _KEPT:
            self.kept += message.get("body", b"")[:_KEPT]
        await self._send(message)


def check_question(body: bytes) -> tuple[Refusal | None, dict[str, Any]]:
    """Why a body for Gradio's queue is refused, and what it says.

    Questions have flat parameters: an object in them would be a file that Gradio fetches.
    """

    def no(status: int, sentence: str) -> tuple[Refusal, dict[str, Any]]:
        return Refusal(status, sentence), {}

    # counted before any of them is made: a MB of brackets would be 300,000 lists
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) > VALUES:
        return no(413, f"the body holds too many values; at most {VALUES:,}")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return no(400, "the body is no JSON")
    if not isinstance(value, dict):
        return no(400, "the body must be a JSON object")
    leaves = _leaves(value)
    if any(isinstance(one, dict) for one in leaves):
        return no(403, "files are not named in questions; send an image as a data URI")
    texts = [one for one in leaves if isinstance(one, str)]
    rest = sum(len(text) for text in texts if not text.startswith("data:"))
    if rest > JSON_BYTES or sum(text.startswith("data:") for text in texts) > 1:
        return no(413, "the body is too large; at most 1 MB beside one image")
    session = value.get("session_hash")
    if session is not None and not (isinstance(session, str) and _SESSION.fullmatch(session)):
        return no(400, "session_hash must be 1 to 64 letters, digits, - or _")
    return None, value


def _leaves(value: dict[str, Any]) -> list[Any]:
    """The values of an object, and those in lists, at most three deep; deeper lists are objects."""
    found: list[Any] = list(value.values())
    for _ in range(3):
        found = [x for one in found for x in (one if isinstance(one, list) else [one])]
    return [{} if isinstance(one, list) else one for one in found]


def client_of(scope: Scope) -> str:
    """By which name a client is counted: its address, or the network of an IPv6 address.

    >>> client_of({"client": ("2001:db8::1:2:3:4", 5)})
    '2001:db8::/64'
    """
    host = str((scope.get("client") or ("", 0))[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    plain = address.version == 4
    return str(address if plain else ipaddress.ip_network((address, 64), strict=False))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was received, and then what comes after it."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


def _asks_itself(scope: Scope, headers: Headers) -> bool:
    """Whether Gradio asks itself on behalf of an assistant, who has been counted already."""
    return (scope.get("client") or ("", 0))[0] == "127.0.0.1" and (
        headers.get("x-gradio-user") == "mcp" and "x-forwarded-for" not in headers
    )
