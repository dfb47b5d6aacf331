"""What a request may send: how much, how slowly, and which values in it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from starlette.types import Message, Receive

from app.access import Refusal, shown
from app.blocks.server import uploads

JSON_BYTES = 1_000_000
VALUES = 20_000  # numbers, texts, lists and objects in a JSON body, by its signs between them
DEPTH = 40  # of lists and objects within one another
TEXT = 50_000  # characters of a text, unless it is a picture as a data URI
GRACE = 15.0  # seconds until a body must have arrived
SLOWEST = 32_768  # bytes that give an upload one second more
_HELD = 64_000_000  # bytes of all JSON bodies that are being received
_REST = 100_000_000  # bytes of a refused body that are read, for a client that reads later
_REST_SECONDS = 5.0
_FILE = b"content-disposition"  # of each part; how it names a file can be spelt in many ways
# what gradio keeps, in part for ever, of each question; its own are of eleven letters
_NAMED = ("session_hash", "event_id")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

TOO_SLOW = Refusal(408, f"the body did not arrive within {GRACE:g} seconds; send it again")
TOO_LARGE = Refusal(
    413, f"the body is too large; at most {JSON_BYTES // 10**6} MB of JSON, a picture is uploaded"
)
NO_JSON = Refusal(400, "the body is no JSON")


class RefusedError(Exception):
    """A body is refused while it arrives."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class GoneError(Exception):
    """The client went away before its body was complete."""


class Bodies:
    """Receives JSON bodies, of which all together are bounded."""

    def __init__(self) -> None:
        self._held = 0

    async def read(self, receive: Receive) -> tuple[bytes, Any]:
        """Receives a JSON body and checks the values in it.

        Returns:
            The body, and what it says; None where it is empty, as some events say all in their
            address.

        Raises:
            RefusedError: it is too large, too slow, no JSON, or names a file of this machine.
            GoneError: the client went away.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(GRACE):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise GoneError
                    part = message.get("body", b"")
                    body += part
                    self._held += len(part)
                    if len(body) > JSON_BYTES:
                        raise RefusedError(TOO_LARGE)
                    if self._held > _HELD:
                        raise RefusedError(Refusal(503, "the app is busy; ask again", 2))
                    if not message.get("more_body", False):
                        break
        except TimeoutError as error:
            raise RefusedError(TOO_SLOW) from error
        finally:
            self._held -= len(body)
        return bytes(body), parse(bytes(body)) if body.strip() else None


def parse(body: bytes) -> Any:
    """Reads a JSON body and checks the values in it.

    Raises:
        RefusedError: it is no JSON, or names a file of this machine.
    """
    # Counted before any of them is made: a MB of brackets would be 300,000 lists. Signs within
    # texts count, too; nobody needs so many.
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) > VALUES:
        raise RefusedError(Refusal(413, f"the body holds too many values; at most {VALUES:,}"))
    try:
        value = json.loads(body)
        refusal = _check_names(value) or _check(value)
    except (ValueError, RecursionError) as error:
        raise RefusedError(NO_JSON) from error
    if refusal is not None:
        raise RefusedError(refusal)
    return value


class Upload:
    """Counts an upload while gradio receives it.

    Attributes:
        refusal: why it was refused, once it was; the receiver is then told that the client left.
    """

    def __init__(self, receive: Receive) -> None:
        self.refusal: Refusal | None = None
        self._receive = receive
        self._size = self._files = 0
        self._tail = b""
        self._start = asyncio.get_running_loop().time()

    async def __call__(self) -> Message:
        """Receives the next part."""
        if self.refusal is None:
            try:
                deadline = self._start + GRACE + self._size / SLOWEST
                async with asyncio.timeout_at(deadline):
                    message = await self._receive()
            except TimeoutError:
                self.refusal = TOO_SLOW
            else:
                self._count(message.get("body", b""))
                if self.refusal is None:
                    return message
        return {"type": "http.disconnect"}

    def _count(self, part: bytes) -> None:
        self._size += len(part)
        self._files += (self._tail + part).lower().count(_FILE)
        self._tail = part[1 - len(_FILE) :]
        if self._size > uploads.FORM_BYTES:
            self.refusal = upload_too_large()
        elif self._files > uploads.MOST_FILES:
            self.refusal = Refusal(
                413, f"these are too many files; upload at most {uploads.MOST_FILES} at once"
            )


def upload_too_large() -> Refusal:
    """The sentence about a large upload."""
    return Refusal(413, f"the upload is too large; at most {uploads.MOST_BYTES // 10**6} MB")


def is_large(size: int, upload: bool) -> bool:
    """Whether a body of the announced size is refused unread."""
    return size > (uploads.FORM_BYTES if upload else JSON_BYTES)


async def read_rest(receive: Receive) -> None:
    """Reads what is left of a refused body, so that its sender comes to read the refusal."""
    size = 0
    try:
        async with asyncio.timeout(_REST_SECONDS):
            while size < _REST:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _check(value: Any) -> Refusal | None:
    level = [value]
    for _ in range(DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if len(item) > TEXT and not item.startswith(uploads.DATA):
                    return Refusal(
                        413, f"a text has {len(item):,} characters; use at most {TEXT:,}"
                    )
            elif isinstance(item, list):
                below += item
            elif isinstance(item, dict):
                refusal = _check_file(item)
                if refusal is not None:
                    return refusal
                below += item
                below += item.values()
        if not below:
            return None
        level = below
    return Refusal(413, f"the body is nested deeper than {DEPTH} levels")


def _check_names(value: Any) -> Refusal | None:
    for key in _NAMED if isinstance(value, dict) else ():
        name = value.get(key)
        if isinstance(name, str) and _NAME.fullmatch(name) is None:
            return Refusal(400, f"{key} must be 1 to 64 letters, digits, - or _")
    return None


def _check_file(value: dict[str, Any]) -> Refusal | None:
    """Refuses what gradio would take for a file that was not uploaded."""
    path = value.get("path")
    if not isinstance(path, str) or not path or uploads.is_data(path):
        return None
    if "://" in path:
        return Refusal(
            403, f'files are not fetched from addresses such as "{shown(path)}"; upload the picture'
        )
    if not uploads.is_inside(path):
        return Refusal(403, "the picture was not uploaded; upload it first, and name that file")
    return None
