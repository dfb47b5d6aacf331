"""The front door: every request passes it before gradio sees anything of it."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import parse_qs

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import Hosts, Refusal
from app.blocks.server import bodies, uploads
from app.blocks.server.bodies import Bodies, GoneError, RefusedError, Upload
from app.blocks.server.limits import Limits, client_of

# All that the page, gradio_client and assistants need. gradio answers much more: a proxy, links
# that write files, a dashboard, pictures resized to any size.
_READ = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)/?|/(static|assets|svelte)/.+"
    r"|/thumbnails/[0-9a-f]+\.webp|/pwa_icon(/(192|512))?"
    r"|/gradio_api/(info|openapi\.json|theme\.css|app_id|startup-events|upload_progress)/?"
    r"|/gradio_api/(queue/(data|status)|heartbeat/[^/]+|call/(v2/)?[^/]+/[^/]+|file=.+)"
)
_WRITE = re.compile(r"/gradio_api/(queue/join|upload|cancel|reset|(run|api|call|call/v2)/[^/]+)/?")
_MCP = re.compile(r"/gradio_api/mcp(/|/http/?)?")
_MCP_SCHEMA = "/gradio_api/mcp/schema"
HTTP_API = "/api/v1"  # see app/blocks/api/http.py
_HTTP_API = re.compile(rf"{HTTP_API}(/[a-z.]*(/[0-9]+)?)?")
_CLIP = re.compile(rf"{HTTP_API}/clip/[0-9]+")  # a player asks for many parts of one
_UPLOAD = "/gradio_api/upload"
_PROGRESS = "/gradio_api/upload_progress"
_DONE = b'data: {"msg": "done"}\n\n'
_EVENTS = "/gradio_api/queue/data"
_LAST_EVENT = b'data: {"msg":"close_stream"'
_FILE = "/gradio_api/file="
_ASKS = re.compile(r"/gradio_api/(queue/join|(call|call/v2)/[^/]+)/?")
# what a page's address makes the app compute, unlike its files
_COSTLY = re.compile(
    r"/|/config/?|/pwa_icon/.+|/gradio_api/(info|openapi\.json)/?|/gradio_api/mcp.*"
    rf"|{HTTP_API}/(?!clip/).+"
)
# gradio makes addresses of the first, and reads what it does not have here by the others
_DROPPED = b"x-gradio-server"
_QUERIES = frozenset({"page", "deep_link"})
_ASSISTANTS = 16  # at a time; each holds a thread of the forty that answer questions
_WRITE_SECONDS = 30.0  # until a client has taken the next part of an answer

_log = logging.getLogger(__name__)

NOWHERE = Refusal(404, "there is nothing at this address")
NO_FILE = Refusal(403, "there is no such file; only what was uploaded, or made here, is sent")
NO_FORM = Refusal(
    400, "this is no upload; send a form of files (multipart/form-data), each with its filename"
)
FAILED = Refusal(500, "this could not be answered; ask for it in another way")
NOT_KEPT = Refusal(503, "the upload could not be kept; try again later", 60)
FULL = Refusal(503, "there is no room for more uploads; try again later", 60)


class FrontDoor:
    """Refuses requests, or passes them on to the page.

    Args:
        app: the page.
        hosts: which names it answers for.
        limits: of each client; None where only this machine asks.
        frames: who may show the page in a frame, as in a content security policy.
        mcp: assistants may ask, too.
        api: answers what lies below `HTTP_API`.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Hosts,
        limits: Limits | None = None,
        frames: str = "'self'",
        mcp: bool = False,
        api: ASGIApp | None = None,
    ) -> None:
        self._app = app
        self._api = api
        self._hosts = hosts
        self._limits = limits
        self._mcp = mcp
        self._assistants = asyncio.Semaphore(_ASSISTANTS)
        self._bodies = Bodies()
        self._own_headers = [
            (b"content-security-policy", f"frame-ancestors {frames}".encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != _DROPPED]
        answer, body = _Answer(send, self._own_headers), _Body(receive)
        client = client_of(scope)
        assistant = scope["method"] == "POST" and _MCP.fullmatch(scope["path"]) is not None
        own = self._is_own(scope["path"]) and _CLIP.fullmatch(scope["path"]) is None
        waits = assistant or own  # for its answer, as a question does
        refusal = self._refuse(scope, client, waits)
        with self._limits.entered(client, waits) if self._limits else nullcontext():
            if refusal is None:
                refusal = await self._pass(scope, body, answer, client)
            if refusal is not None:
                await self._close(scope, refusal, body, answer)

    def _refuse(self, scope: Scope, client: str, waits: bool) -> Refusal | None:
        """Why a request is refused before anything of its body is read."""
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        if self._limits is not None and not _asks_itself(scope, headers):
            costs = method == "POST" or _COSTLY.fullmatch(path) is not None
            asks = waits or (method == "POST" and _ASKS.fullmatch(path) is not None)
            refusal = self._limits.check(client, costs, asks)
            if refusal is not None:
                return refusal
        refusal = self._hosts.check(headers, method)
        if refusal is not None:
            return refusal
        if not self._is_known(path, method) or _names_a_page(scope):
            return NOWHERE
        if path.startswith(_FILE) and not _is_sent(path[len(_FILE) :]):
            return NO_FILE
        if method == "POST":
            size = headers.get("content-length", "0")
            upload = _uploads(path, headers)
            if not size.isdecimal() or bodies.is_large(int(size[:20]), upload):
                return bodies.upload_too_large() if upload else bodies.TOO_LARGE
        return None

    def _is_known(self, path: str, method: str) -> bool:
        if self._mcp and _MCP.fullmatch(path):
            return method in ("GET", "POST", "DELETE")
        if self._is_own(path):
            return method in ("GET", "HEAD", "POST")
        if method == "POST":
            return _WRITE.fullmatch(path) is not None
        if method not in ("GET", "HEAD"):
            return False
        return _READ.fullmatch(path) is not None or (self._mcp and path == _MCP_SCHEMA)

    def _is_own(self, path: str) -> bool:
        return self._api is not None and _HTTP_API.fullmatch(path) is not None

    async def _pass(
        self, scope: Scope, receive: _Body, answer: _Answer, client: str
    ) -> Refusal | None:
        """Lets the page answer; says why where it does not."""
        if scope["path"].rstrip("/") == _PROGRESS:
            await _end_progress(answer.send)
            return None
        app = self._api if self._api and self._is_own(scope["path"]) else self._app
        if scope["method"] != "POST":
            return await answer.of(app, scope, receive)
        if _uploads(scope["path"], Headers(scope=scope)):
            return await self._upload(app, scope, receive, answer, client)
        try:
            body, value = await self._bodies.read(receive)
        except RefusedError as error:
            return error.refusal
        except GoneError:
            return None
        session = value.get("session_hash") if isinstance(value, dict) else None
        if self._limits is not None and isinstance(session, str):
            self._limits.enter(client, session)
        assistant = _MCP.fullmatch(scope["path"]) is not None
        # only now, that the body is there, for which others need not wait
        async with self._assistants if assistant else nullcontext():
            return await answer.of(app, scope, _replay(body, receive))

    async def _upload(
        self, app: ASGIApp, scope: Scope, receive: _Body, answer: _Answer, client: str
    ) -> Refusal | None:
        size = int(Headers(scope=scope).get("content-length", 0))
        refusal = None if self._limits is None else self._limits.check_upload(client, size)
        if refusal is not None:
            return refusal
        if not await run_sync(uploads.reserve, size):
            return FULL
        try:
            if app is self._app:
                # gradio would remember for ever how far each upload is that it has a name for
                scope = {**scope, "query_string": b""}
            return await answer.of(app, scope, Upload(receive))
        finally:
            uploads.release(size)

    async def _close(self, scope: Scope, refusal: Refusal, receive: _Body, answer: _Answer) -> None:
        # A client that waits for leave to send its body has none; one that asks too much or too
        # slowly is not waited for.
        ends = "expect" in Headers(scope=scope) or refusal.status in (408, 429)
        if not receive.complete and not ends:
            await bodies.read_rest(receive)
        await refusal.answer(answer.send)


class _Body:
    """The body of one request.

    Attributes:
        complete: nothing more of it comes.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def __call__(self) -> Message:
        """Receives the next part."""
        message = await self._receive()
        self.complete = not message.get("more_body", False)
        return message


class _Answer:
    """The answer to one request, without CORS, and ended where its client takes nothing of it."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._gone = False

    async def of(self, app: ASGIApp, scope: Scope, receive: Receive) -> Refusal | None:
        """Lets the page answer; says why where it fails, or where an upload is refused."""
        failed = False

        async def send(message: Message) -> None:
            nonlocal failed
            failed = failed or message.get("status") == 500 or _refusal(receive) is not None
            if not failed:
                await self.send(message)

        try:
            if scope["path"] == _EVENTS:
                await app(scope, *_ending_once(receive, send))
            else:
                await app(scope, receive, send)
        except Exception as error:
            if self._gone:
                return None
            if isinstance(receive, Upload):
                return receive.refusal or (NOT_KEPT if isinstance(error, OSError) else NO_FORM)
            place = traceback.extract_tb(error.__traceback__)[-1]
            about = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            _log.error("%s failed: %s: %.200s", scope["path"], about, error)
        return (_refusal(receive) or FAILED) if failed else None

    async def send(self, message: Message) -> None:
        """Sends a part of the answer."""
        if self._gone:
            raise OSError("the client takes nothing of its answer")
        if message["type"] == "http.response.start":
            own = [
                (name, value)
                for name, value in message.get("headers", ())
                if not name.lower().startswith(b"access-control-")
            ]
            message = {**message, "headers": own + self._headers}
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                await self._send(message)
        except TimeoutError as error:
            self._gone = True
            raise OSError("the client takes nothing of its answer") from error


def _ending_once(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """A stream of events of which the page does not learn that its client left after the last one.

    A client that has read "close_stream" leaves at once. gradio, where it sees that before it has
    ended the stream itself, forgets whatever the session has asked meanwhile.
    """
    ended = False

    async def noted(message: Message) -> None:
        nonlocal ended
        ended = ended or message.get("body", b"").startswith(_LAST_EVENT)
        await send(message)

    async def heard() -> Message:
        message = await receive()
        if ended and message["type"] == "http.disconnect":
            await asyncio.Event().wait()  # for good: the stream ends by itself
        return message

    return heard, noted


def _refusal(receive: Receive) -> Refusal | None:
    return receive.refusal if isinstance(receive, Upload) else None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was received, and then what comes after it."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


async def _end_progress(send: Send) -> None:
    """Tells the page that an upload's progress ends; the answer to the upload says the rest."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _DONE})


def _uploads(path: str, headers: Headers) -> bool:
    """Whether a body is no JSON but files, or an image by itself."""
    if path == f"{HTTP_API}/search":
        return headers.get("content-type", "").startswith("image/")
    return path.rstrip("/") == _UPLOAD


def _is_sent(path: str) -> bool:
    """Whether a file that is asked for may be sent; gradio looks whether it is there."""
    return "://" not in path and uploads.is_inside(path)


def _names_a_page(scope: Scope) -> bool:
    """Whether gradio would look for a page, or for what somebody had saved of one."""
    return any(name in _QUERIES for name in parse_qs(scope["query_string"].decode("latin-1")))


def _asks_itself(scope: Scope, headers: Headers) -> bool:
    """Whether the app asks itself on behalf of an assistant, who has been counted already."""
    return (scope.get("client") or ("", 0))[0] == "127.0.0.1" and (
        headers.get("x-gradio-user") == "mcp" and "x-forwarded-for" not in headers
    )
