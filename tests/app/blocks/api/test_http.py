"""The plain HTTP API: the endpoints' answers to the digit, and refusals with a status."""

import asyncio
import base64
import html
import json
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from pydantic import TypeAdapter

from app.blocks.api import answers
from app.blocks.api import http as module
from app.blocks.api.http import BusyError
from tests.app.loops import run
from tests.app.serving import Server

PREFIX = "/api/v1"
ASKED: dict[str, Any] = {"q": "a red circle beside a blue bar", "method": "mv_vse", "k": 3}


@pytest.fixture(scope="module")
def ask(views_server: Server) -> httpx.Client:
    return httpx.Client(base_url=f"{views_server.url}{PREFIX}", timeout=60)


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without the milliseconds that it took."""
    columns = answer.get("columns", [])
    slow = {"ms", "runs"}
    kept = {name: value for name, value in answer.items() if name not in slow | {"columns"}}
    return {**kept, "columns": [{k: v for k, v in c.items() if k not in slow} for c in columns]}


@pytest.mark.parametrize(
    ("path", "model", "given", "endpoint", "values"),
    [
        ("search", answers.Search, ASKED, "search_text", tuple(ASKED.values())),
        (
            "search",
            answers.Search,
            {**ASKED, "filter": ["setting:sand", "setting:dusk", "time:night"]},
            "search_text",
            (*ASKED.values(), {"setting": ["sand", "dusk"], "time": ["night"]}),
        ),
        (
            "explain",
            answers.Explained,
            {"q": "2: a bar - red", "image": 4, "method": "mv_vse", "per_view": True},
            "explain",
            ("2: a bar - red", 4, "mv_vse", True),
        ),
        (
            "explain",
            answers.Explained,
            {"q": "a bar", "image": "images/test-000004.webp"},
            "explain",
            ("a bar", 4),
        ),
        (
            "compare",
            answers.Comparison,
            {"q": "a red circle", "methods": "mv_vse,vse_infty", "k": 2},
            "compare",
            ("a red circle", ["mv_vse", "vse_infty"], 2),
        ),
        ("info", answers.Info, {}, "info", ()),
    ],
)
def test_answers_are_those_of_the_endpoints(
    ask: httpx.Client,
    views_server: Server,
    path: str,
    model: type,
    given: dict[str, Any],
    endpoint: str,
    values: tuple[Any, ...],
) -> None:
    reply = ask.get(path, params=given)
    assert reply.status_code == 200
    answer = reply.json()
    assert timeless(answer) == timeless(views_server.ask(endpoint, *values))
    assert answer.keys() <= model.__annotations__.keys()
    assert TypeAdapter(model).validate_python(answer, strict=True) == answer


def test_a_picture_is_sent_by_itself_or_within_json(
    ask: httpx.Client, views_server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "red.png"
    Image.new("RGB", (96, 64), (214, 48, 49)).save(file)
    expected = timeless(views_server.ask_image(file, "mv_vse", 3))
    asked: dict[str, Any] = {"method": "mv_vse", "k": 3}
    whole = ask.post(
        "search", params=asked, content=file.read_bytes(), headers={"Content-Type": "image/png"}
    )
    uri = f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
    within = ask.post("search", params=asked, json={"image": uri})
    for reply in (whole, within):
        assert timeless(reply.json()) == expected | {"read_as": reply.json()["read_as"]}
        TypeAdapter(answers.ImageSearch).validate_python(reply.json(), strict=True)
    with_words = ask.post("search", params={**asked, "q": "a bar"}, json={"image": uri}).json()
    assert "a bar" in with_words["read_as"]
    assert with_words["captions"] == []


def test_pictures_are_sent_small_and_lit(ask: httpx.Client, views_server: Server) -> None:
    small, lit = ask.get("image/4"), ask.get("explain.png", params={"q": "a bar", "image": 4})
    expected = views_server.ask("explain_image", "a bar", 4)["png"]
    assert small.headers["Content-Type"] == "image/webp"
    assert lit.headers["Content-Type"] == "image/png"
    assert lit.content == base64.b64decode(expected.partition(",")[2])


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("search", 400, "q is missing"),
        ("search?q=", 400, "the query is empty"),
        ("search?q=bar&k=few", 400, 'k cannot be "few"'),
        ("search?q=bar&k=0", 400, "k must be"),
        ("search?q=bar&method=none", 400, 'there is no method "none" in this pack'),
        ("search?q=bar&filter=sand", 400, 'not "sand"'),
        ("search?q=bar&filter=setting:moon", 400, "moon"),
        ("explain?q=bar&image=99999", 400, "there is no picture 99999"),
        ("explain?q=bar&image=..%2F..%2Fpack.json", 400, "there is no picture"),
        ("explain.png?q=bar&image=1&word=circle", 400, 'there is no word "circle"'),
        ("compare?q=bar&methods=mv_vse", 400, "2"),
        ("image/99999", 404, "there is no picture 99999"),
        ("image/one", 404, "nothing at this address"),
        ("nothing", 404, "Not Found"),
        ("search/", 404, "nothing at this address"),
    ],
)
def test_refusals_have_a_status_and_a_sentence(
    ask: httpx.Client, address: str, status: int, said: str
) -> None:
    reply = ask.get(address)
    assert reply.status_code == status
    assert said in reply.json()["error"]


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        ({"Content-Type": "image/png"}, b"no picture", 400, "the body is not a picture"),
        ({"Content-Type": "application/json"}, b"{", 400, "no JSON"),
        ({"Content-Type": "application/json"}, b"[1]", 400, "there is no picture"),
        ({"Content-Type": "text/plain"}, b"", 400, "there is no picture"),
        (
            {"Content-Type": "application/json"},
            json.dumps({"image": {"path": "/etc/hosts"}}).encode(),
            403,
            "was not uploaded",
        ),
        ({"Content-Type": "image/png", "Origin": "http://evil.example"}, b"x", 403, "other sites"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused(
    ask: httpx.Client, headers: dict[str, str], body: bytes, status: int, said: str
) -> None:
    reply = ask.post("search", headers=headers, content=body)
    assert reply.status_code == status
    assert said in reply.json()["error"]
    assert ask.put("search", content=body).status_code == 404


def test_a_large_picture_is_refused_unread(views_server: Server) -> None:
    line = HTTPConnection(views_server.url.removeprefix("http://"), timeout=60)
    line.putrequest("POST", f"{PREFIX}/search")
    line.putheader("Content-Type", "image/png")
    line.putheader("Content-Length", "60000000")
    line.putheader("Expect", "100-continue")
    line.endheaders()
    reply = line.getresponse()
    assert reply.status == 413
    assert "too large" in json.loads(reply.read())["error"]


def test_it_says_how_much_is_searchable_and_describes_itself(ask: httpx.Client) -> None:
    health = ask.get("health").json()
    assert health == {"searchable": 24, "pictures": 24, "complete": True}
    schema, page = ask.get("openapi.json").json(), html.unescape(ask.get("").text)
    assert {path.removeprefix(PREFIX) for path in schema["paths"]} == {
        "/search", "/explain", "/explain.png", "/compare", "/info", "/image/{image_id}",
        "/clip/{image_id}", "/health",
    }  # fmt: skip
    for path, ways in schema["paths"].items():
        assert path in page
        for operation in ways.values():
            assert operation["description"].splitlines()[0] in page
    assert "<script" not in page
    assert "//" not in page.replace("<!doctype html>", "")  # nothing comes from elsewhere


@pytest.mark.parametrize("quick", [False, True])
def test_few_questions_run_and_few_wait(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    monkeypatch.setattr(module, "WAITING", 5)
    running, most, go = 0, 0, threading.Event()
    lock = threading.Lock()

    def work(value: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(20)
        with lock:
            running -= 1
        return value

    async def crowd() -> list[Any]:
        turns = module._Turns()
        asked = [asyncio.ensure_future(turns.answer(work, i, quick=quick)) for i in range(7)]
        await asyncio.sleep(0.2)
        go.set()
        first = await asyncio.gather(*asked, return_exceptions=True)
        return [*first, await turns.answer(work, 9)]

    *first, last = run(crowd())
    assert first[:5] == [0, 1, 2, 3, 4]
    assert all(isinstance(one, BusyError) for one in first[5:])
    assert last == 9  # there is room again
    assert most == (1 if quick else module._AT_ONCE)
