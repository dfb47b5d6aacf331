"""The front door by itself: a page behind it that the test writes, and a clock that it turns."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from app.access import Hosts
from app.blocks.server import door
from app.blocks.server.door import FrontDoor
from app.blocks.server.limits import BURST, Limits
from tests.app.loops import run


def scope(path: str, method: str = "GET", address: str = "127.0.0.1") -> dict[str, Any]:
    """A request."""
    headers = [(b"host", b"127.0.0.1")]
    known = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "query_string": b"",
    }
    return {**known, "client": (address, 1)}


async def nothing() -> Message:
    """An empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def page(_scope: Any, _receive: Any, send: Any) -> None:
    """Answers everything."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def answer(app: FrontDoor, **request: str) -> tuple[int, dict[bytes, bytes], Any]:
    """Status, headers and body of an answer."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope(**request), nothing, send)
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


def test_a_crowd_of_one_client_must_wait_and_others_need_not() -> None:
    app = FrontDoor(page, Hosts(private=False), Limits(clock=lambda: 0.0))
    asked = {"path": "/gradio_api/queue/join", "method": "POST"}

    async def ask_all() -> list[tuple[int, dict[bytes, bytes], Any]]:
        many = [await answer(app, **asked) for _ in range(int(BURST) + 1)]
        return [*many, await answer(app, **asked, address="127.0.0.2")]

    *many, last, other = run(ask_all())
    assert {status for status, _, _ in many} == {200}
    assert last[0] == 429
    assert last[1][b"retry-after"] == b"1"
    assert last[2].keys() == {"error"}
    assert other[0] == 200


def test_who_seeks_in_a_clip_asks_for_many_parts_of_it() -> None:
    app = FrontDoor(page, Hosts(private=False), Limits(clock=lambda: 0.0), api=page)

    async def ask_all(path: str) -> list[int]:
        return [(await answer(app, path=path))[0] for _ in range(5 * int(BURST))]

    assert set(run(ask_all("/api/v1/clip/3"))) == {200}
    assert 429 in run(ask_all("/api/v1/image/3"))


def test_an_answer_that_nobody_takes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_WRITE_SECONDS", 0.1)
    ended = []

    async def endless(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
        except OSError:
            ended.append(scope["path"])
            raise

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    run(FrontDoor(endless, Hosts())(scope("/"), nothing, stuck))
    assert ended == ["/"]


@pytest.mark.parametrize(("last", "learns"), [("close_stream", False), ("process_completed", True)])
def test_who_leaves_after_the_last_event_ends_nothing_else(last: str, learns: bool) -> None:
    learned: list[str] = []

    async def stream(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = f'data: {{"msg":"{last}"}}\n\n'.encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait([leaving], timeout=0.05)
        learned.extend([leaving.result()["type"]] if leaving.done() else [])
        leaving.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        pass

    run(FrontDoor(stream, Hosts())(scope("/gradio_api/queue/data"), gone, send))
    assert learned == (["http.disconnect"] if learns else [])
