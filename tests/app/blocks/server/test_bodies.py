"""Bodies that come slowly, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from app.blocks.server import bodies
from app.blocks.server.bodies import Bodies, RefusedError, Upload, parse
from tests.app.loops import run

FORM = {"type": "http.request", "body": b"x", "more_body": True}


def trickle(seconds: float) -> Callable[[], Awaitable[Message]]:
    """A client that sends a byte at a time and never ends."""

    async def receive() -> Message:
        await asyncio.sleep(seconds)
        return FORM

    return receive


def test_a_slow_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "GRACE", 0.2)
    kept = Bodies()
    with pytest.raises(RefusedError) as error:
        run(kept.read(trickle(0.01)))
    assert error.value.refusal.status == 408
    assert kept._held == 0


def test_a_slow_upload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "GRACE", 0.2)

    async def receive_all() -> Upload:
        upload = Upload(trickle(0.01))
        while (await upload())["type"] == "http.request":
            pass
        return upload

    refusal = run(receive_all()).refusal
    assert refusal is not None
    assert refusal.status == 408


def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_HELD", 2000)

    async def ask_all() -> list[Any]:
        kept = Bodies()
        left = [b"[" + b" " * 998 + b"]"] * 10

        async def receive() -> Message:
            part = left.pop()
            await asyncio.sleep(0.05)  # while the others send as well
            return {"type": "http.request", "body": part, "more_body": True}

        return await asyncio.gather(*(kept.read(receive) for _ in range(5)), return_exceptions=True)

    found = run(ask_all())
    assert {error.refusal.status for error in found if isinstance(error, RefusedError)} == {503}


@pytest.mark.parametrize("name", ["", "x" * 65, "a<gradio-sep>b", "a b"])
def test_names_that_are_kept_are_short_and_plain(name: str) -> None:
    for key in ("session_hash", "event_id"):
        with pytest.raises(RefusedError) as error:
            parse(json.dumps({"data": [], key: name}).encode())
        assert error.value.refusal.status == 400
    assert parse(b'{"session_hash": "k3j9x0a2b1c", "event_id": null}')["event_id"] is None


@pytest.mark.parametrize("spelt", ['filename="{}"', 'filename ="{}"', "FILENAME={}"])
def test_files_are_counted_however_they_are_spelt(spelt: str) -> None:
    part = '--b\r\nContent-Disposition: form-data; name="files"; {}\r\n\r\nx\r\n'
    body = "".join(part.format(spelt.format(f"{i}.png")) for i in range(11)).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def upload() -> Upload:
        sent = Upload(receive)
        await sent()
        return sent

    refusal = run(upload()).refusal
    assert refusal is not None
    assert refusal.status == 413
