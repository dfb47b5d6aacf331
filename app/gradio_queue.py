"""Guards Gradio's queue: validates the requests for it, and limits unfetched answers."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp

from polyview.app.refusal import Refusal, read_json

MAX_UNFETCHED = 300  # unfetched answers in the queue; the oldest are dropped
MAX_UNFETCHED_PER_CLIENT = 12  # unfetched answers of one client
UNFETCHED_SECONDS = 120.0  # age from which an unfetched answer does not count for the client
_FETCH_SECONDS = 120.0  # time limit of the request that discards an answer
# bytes of requests, which Gradio leaves in reference cycles, before garbage is collected
_MAX_GARBAGE_BYTES = 100_000_000

_JOIN = re.compile(r"/gradio_api/(?:queue/join|call/(v2/)?(\w+))")
_SESSION_HASH = re.compile(r"[A-Za-z0-9_-]{1,64}")


class GradioQueue:
    """Validates requests for Gradio's queue, and limits the answers that clients do not fetch.

    `endpoints` has the parameters of each endpoint with their default values, in Gradio's order.
    """

    def __init__(self, endpoints: Mapping[str, Mapping[str, Any]]) -> None:
        self._endpoints = dict(endpoints)
        # event id of an unfetched answer -> session, client, time in seconds
        self._unfetched: dict[str, tuple[str, object, float]] = {}
        self._garbage_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def accepts(path: str) -> bool:
        """Returns whether requests to a path add events to the queue."""
        return _JOIN.fullmatch(path) is not None

    def complete(self, path: str, body: bytes) -> tuple[bytes, str]:
        """Adds missing parameters to a request; returns its body and its session ("" for none).

        Raises `Refusal` for an unknown endpoint or parameter, an invalid session, and for a JSON
        object as a value, which Gradio could interpret as a file to fetch.
        """
        is_v2, name = _JOIN.fullmatch(path).groups()  # type: ignore[union-attr]
        request = read_json(body)
        index, session = request.get("fn_index"), request.get("session_hash") or ""
        if name is None and type(index) is int and 0 <= index < len(self._endpoints):
            name = list(self._endpoints)[index]
        if any(map(_has_object, request.values())):
            raise Refusal(403, "objects are not accepted here; send an image as a data URI")
        if session and not (isinstance(session, str) and _SESSION_HASH.fullmatch(session)):
            raise Refusal(400, "session_hash must be 1 to 64 letters, digits, - or _")
        if name not in self._endpoints:
            raise Refusal(404, "unknown endpoint; /gradio_api/info lists all endpoints")
        # complete the request: Gradio would log the whole body of an incomplete one
        data, defaults = request.get("data"), self._endpoints[name]
        if is_v2:  # parameters by name
            if unknown := sorted(request.keys() - defaults.keys()):
                choices = ", ".join(defaults) or "none"
                raise Refusal(400, f'unknown parameter "{unknown[0][:80]}"; known: {choices}')
            if defaults.keys() - request.keys():
                body = json.dumps({**defaults, **request}).encode()
        elif isinstance(data, list) and len(data) < len(defaults):
            missing = [*defaults.values()][len(data) :]
            body = json.dumps({**request, "data": data + missing}).encode()
        return body, session

    def check(self, client: object) -> None:
        """Raises `Refusal` if a client has too many unfetched answers."""
        start = time.monotonic() - UNFETCHED_SECONDS
        times = [added_at for _, owner, added_at in self._unfetched.values() if owner is client]
        if sum(added_at > start for added_at in times) >= MAX_UNFETCHED_PER_CLIENT:
            reason = f"you have {MAX_UNFETCHED_PER_CLIENT} requests whose answers were not fetched"
            raise Refusal(429, f"{reason}; fetch them first", 5)

    def collect(self, size: int) -> None:
        """Adds up the sizes of handled requests; collects garbage above `_MAX_GARBAGE_BYTES`."""
        self._garbage_bytes += size
        if self._garbage_bytes > _MAX_GARBAGE_BYTES:
            self._garbage_bytes = 0
            gc.collect()

    def add(self, answer: bytes, session: str, client: object, app: ASGIApp) -> None:
        """Registers the event in Gradio's `answer`; drops the oldest event beyond `MAX_UNFETCHED`.

        Gradio stores the result of an event until the result is fetched. To drop an event, this
        method therefore fetches the result from `app`.
        """
        if b'"event_id"' not in answer:
            return
        event = str(json.loads(answer)["event_id"])
        self._unfetched[event] = session or event, client, time.monotonic()
        if len(self._unfetched) > MAX_UNFETCHED:
            oldest_session, _, _ = self._unfetched.pop(next(iter(self._unfetched)))
            task = asyncio.create_task(_fetch(oldest_session, app))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def remove(self, event: str) -> None:
        """Removes an event whose answer was fetched."""
        self._unfetched.pop(event, None)


async def _fetch(session: str, app: ASGIApp) -> None:
    """Fetches and discards the answers of a session."""
    import httpx  # needed only to drop events

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/gradio_api")
    with suppress(httpx.HTTPError, TimeoutError):
        async with client, asyncio.timeout(_FETCH_SECONDS):
            address = f"/queue/data?session_hash={session}"
            await client.get(address, headers={"x-gradio-user": "mcp"})  # an internal request


def _has_object(value: Any) -> bool:
    """Returns whether a JSON value is an object, or a list that contains one at any depth."""
    return any(map(_has_object, value)) if isinstance(value, list) else isinstance(value, dict)
