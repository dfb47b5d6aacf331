"""Questions of any kind to a running app, in short; see `tests/soak/fuzz.py`."""

import re
from collections.abc import Callable

import httpx
import pytest

from tests.app.conftest import Server
from tests.soak import checks
from tests.soak.fuzz import fuzz, questions, whole_image

_CASES = 50
_HUGE = 10**400
_KNOWN: list[checks.Question] = [
    ("search_text", ["a", "vsepp", _HUGE, None]),
    ("search_text", ["a", "vsepp", 1e308, None]),
    ("lens", ["a", "vsepp", [_HUGE], 3]),
    ("views", [_HUGE, "vsepp", ""]),
    ("compare", ["a", ["vsepp", "vse_infty"], _HUGE]),
    ("show_words", [None] * 11),
    ("../../photo.png", whole_image("PNG")[:300]),
]


def test_events_answer_whatever_they_are_asked(server: Server) -> None:
    caller = checks.Caller(server.url)

    def ask_some(ask: Callable[[checks.Question], None]) -> None:
        for question in _KNOWN:
            ask(question)
        fuzz(questions(caller), ask, _CASES, repeated=True)

    caller.ask_all(ask_some)
    assert server.ask("search_text", "a red circle", "vsepp", 3)["hits"]


def test_a_method_that_only_another_pack_has_gives_way_to_the_best(server: Server) -> None:
    caller = checks.Caller(server.url)
    filters = [None] * (caller.events["show_words"] - 6)
    said = caller.answer("show_words", ["", "a red circle", "another", None, "", 1.0, *filters])
    assert "thumbnails/" in said


@pytest.mark.parametrize("value", [None, {"settings": [1], "weights": "x"}, 10**6])
def test_no_event_is_surprised(views_server: Server, value: object) -> None:
    caller = checks.Caller(views_server.url)
    found = httpx.get(f"{views_server.url}/config", timeout=checks.SLOW).json()["dependencies"]
    before = len(views_server.log.read_text())
    for event in found:
        if event["api_name"] and event["queue"]:
            said = caller.answer(event["api_name"], [value] * len(event["inputs"]))
            assert len(said) < 2_000_000, event["api_name"]
    assert "an event failed" not in views_server.log.read_text()[before:]


@pytest.mark.parametrize(
    "address",
    [
        "gradio_api/file=/etc/passwd",
        "gradio_api/proxy=http://127.0.0.1:22/",
        "static/%2e%2e/%2e%2e/routes.py",
        "thumbnails/%2e%2e/catalogue.sqlite",
        "thumbnails/none.webp",
        "thumbnails/",
    ],
)
def test_addresses_that_are_none_tell_nothing(server: Server, address: str) -> None:
    reply = httpx.get(f"{server.url}/{address}", timeout=checks.SLOW)
    assert reply.status_code in (400, 403, 404)
    checks.tells_nothing(reply.text.replace("/etc/passwd", ""))


def test_the_page_tells_nothing(server: Server) -> None:
    for address in ("config", "gradio_api/info", "gradio_api/openapi.json"):
        page = httpx.get(f"{server.url}/{address}", timeout=checks.SLOW).text
        checks.tells_nothing(re.sub(r"/\*.*?\*/", "", page))  # without the styles' remarks


def test_thumbnails_are_fetched_by_name(server: Server) -> None:
    page = checks.Caller(server.url).answer("search_swap", ["", None, None])
    name, *_ = re.findall(r"thumbnails/[0-9a-f]+\.\w+", page)
    assert httpx.get(f"{server.url}/{name}", timeout=checks.SLOW).content[:4] == b"RIFF"
