"""Attacks on a public server: limits per client, and places that visitors may not name."""

import itertools
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from polyview.app import access, gradio_queue
from polyview.app.access import Hosts
from polyview.app.api import adapter
from polyview.app.explain import collapse
from polyview.app.explain.collapse import Collapse
from polyview.app.packs.state import AppState
from polyview.app.search.retriever import Retriever
from polyview.app.server import build, launch
from polyview.app.settings import Settings
from tests.app.api.conftest import ask, refused
from tests.app.serving import PATIENCE, Server, free_port

ADDRESS = "/gradio_api/call/search_text"
BURST, WAITING = 20, 10


@contextmanager
def hosted(folder: Path, *arguments: str | Path, **variables: str) -> Iterator[Server]:
    """Runs the app in a thread of this process, where tests can lower its limits."""
    port = free_port()
    url, log = f"http://127.0.0.1:{port}", folder / "log.txt"
    command = ["--port", str(port), "--device", "cpu", *map(str, arguments)]
    with patch.dict(os.environ, {"GRADIO_ANALYTICS_ENABLED": "False", **variables}):
        settings = Settings.from_argv(command)
        state = AppState(settings, folder / "cache")
        app = build(settings, state)
        with log.open("w") as out, redirect_stdout(out):
            launch(app, settings)
    try:
        state.first.index.start()
        assert state.first.index.wait(PATIENCE)
        yield Server(url, log, os.getpid())
    finally:
        app.get_blocks().close(verbose=False)
        state.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_pack: Path) -> Iterator[Server]:
    options = ["--pack", str(tiny_pack), "--host", "0.0.0.0", "--allow-host", "polyview.example"]
    options += ["--mcp", "--allow-pack", "owner/allowed"]
    proxies = {"FORWARDED_ALLOW_IPS": "127.0.0.1,127.0.0.99"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "MAX_WAITING", WAITING)
        with hosted(tmp_path_factory.mktemp("server"), *options, **proxies) as app:
            yield app


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that few requests reach."""
    for name, value in {"BURST": BURST, "RATE": 0.5, "MAX_OPEN": 6}.items():
        monkeypatch.setattr(access, name, value)
    monkeypatch.setattr(gradio_queue, "MAX_UNFETCHED_PER_CLIENT", 3)


def client(server: Server, address: str) -> httpx.Client:
    """A client at one of the many loopback addresses."""
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(transport=transport, base_url=server.url, timeout=60)


def exhaust(ask_once: Callable[[], httpx.Response]) -> int:
    """Repeats a request until it is refused for its rate; returns the number of answers."""
    for count in range(200):
        reply = ask_once()
        if reply.status_code == 429:
            assert "too many requests" in refused(reply, 429)
            return count
    raise AssertionError("nothing was refused")


def test_visitors_may_not_use_the_machine(server: Server, tiny_pack: Path) -> None:
    place = str(tiny_pack / "gallery")
    for path, values, status, sentence in (
        ("collections/open", {"place": place}, 403, "only the app's owner chooses"),
        ("collections/stop", {}, 403, "owner"),
        ("collections/resume", {}, 403, "owner"),
        ("packs/look", {"address": str(tiny_pack)}, 400, "not a pack that may be loaded"),
        ("packs/fetch", {"address": "owner/other"}, 400, "not a pack that may be loaded"),
        ("packs/fetch", {"address": "tinyclip"}, 403, "does not convert published"),
        ("packs/fetch", {"address": "x/y", "kind": "clip"}, 403, "does not convert published"),
    ):
        reply = ask(server, f"/api/v1/{path}", "POST", json=values)
        assert sentence in refused(reply, status), path
    assert server.get("packs")["offers"] == []
    answers = [server.get(path) for path in ("info", "packs", "collections")]
    assert str(tiny_pack) not in json.dumps(answers)


@pytest.mark.usefixtures("strict")
def test_requests_of_one_client_are_bounded(server: Server) -> None:
    with client(server, "127.0.0.2") as crowd:
        assert exhaust(lambda: crowd.get("/api/v1/health")) >= BURST
    with client(server, "127.0.0.3") as other:
        assert other.get("/api/v1/health").status_code == 200
        images = [other.get("/api/v1/image/0?large=false").status_code for _ in range(3 * BURST)]
        assert set(images) == {200}  # an image counts as a tenth of a request
    with client(server, "127.0.0.4") as third:
        assert exhaust(lambda: third.get("/api/v1/image/0?%6Carge=true")) <= 2 * BURST


@pytest.mark.usefixtures("strict")
def test_clients_behind_a_trusted_proxy_are_counted_separately(server: Server) -> None:
    with client(server, "127.0.0.99") as proxy, client(server, "127.0.0.98") as stranger:

        def visit(line: httpx.Client, visitor: str) -> httpx.Response:
            return line.get("/api/v1/health", headers={"X-Forwarded-For": visitor})

        exhaust(lambda: visit(proxy, "203.0.113.1"))
        assert visit(proxy, "203.0.113.2").status_code == 200
        # other senders are not trusted with the header
        visitors = itertools.count()
        exhaust(lambda: visit(stranger, f"203.0.113.{next(visitors) % 200}"))


@pytest.mark.usefixtures("strict")
def test_open_requests_of_one_client_are_bounded(server: Server) -> None:
    own = ("127.0.0.5", 0)
    head = b"GET /gradio_api/heartbeat/%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with ExitStack() as held:
        lines = []
        for number in range(access.MAX_OPEN + 1):
            line = socket.create_connection(("127.0.0.1", server.port), 60, own)
            held.enter_context(line).sendall(head % number)
            lines.append(line.recv(20)[:12])
        assert lines == [b"HTTP/1.1 200"] * access.MAX_OPEN + [b"HTTP/1.1 429"]
        with client(server, "127.0.0.6") as other:
            assert other.get("/api/v1/health").status_code == 200


@pytest.mark.usefixtures("strict")
def test_uploads_count_as_several_requests(server: Server) -> None:
    content = bytes(9_000_000)
    with client(server, "127.0.0.8") as crowd:
        made = crowd.post("/api/v1/collections/new").json()["collection"]
        address = f"/api/v1/collections/file?collection={made}&name=x.png"
        replies = [crowd.post(address, content=content) for _ in range(6)]
    assert replies[1].status_code == 200
    late = [reply for reply in replies if reply.status_code == 429]
    assert len(late) > 2
    wait = (BURST / 2 + 1) / access.RATE  # no more than the last upload cost
    assert all(int(reply.headers["retry-after"]) <= wait for reply in late)


def test_uploads_are_bounded_and_their_keys_are_secret(
    server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with client(server, "127.0.0.12") as crowd:
        replies = [crowd.post("/api/v1/collections/new") for _ in range(20)]
    keys = [reply.json()["collection"] for reply in replies if reply.status_code == 200]
    assert 0 < len({*keys}) == len(keys) < 20
    assert {reply.status_code for reply in replies} == {200, 503}
    assert "too many uploads" in refused(replies[-1], 503)
    logged = "".join([caplog.text, *capfd.readouterr(), server.http.get("collections").text])
    assert not any(key in logged for key in keys)


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that all requests for /packs wait for."""
    run, event = adapter.Endpoint.run, threading.Event()

    def wait_and_run(endpoint: adapter.Endpoint, *values: Any) -> Any:
        assert endpoint.name != "packs" or event.wait(60)
        return run(endpoint, *values)

    monkeypatch.setattr(adapter.Endpoint, "run", wait_and_run)
    return event


def test_waiting_requests_are_bounded(server: Server, go_on: threading.Event) -> None:
    def ask_from(number: int) -> httpx.Response:
        with client(server, f"127.0.3.{number + 1}") as line:
            return line.get("/api/v1/packs")

    with ThreadPoolExecutor(WAITING + 2) as pool:
        replies = as_completed([pool.submit(ask_from, number) for number in range(WAITING + 2)])
        for reply in (next(replies).result() for _ in range(2)):
            assert "requests are waiting" in refused(reply, 503)
            assert int(reply.headers["Retry-After"]) >= 1
        go_on.set()
    assert [each.result().status_code for each in replies] == [200] * WAITING


def test_one_client_cannot_take_all_slots(server: Server, go_on: threading.Event) -> None:
    with client(server, "127.0.4.1") as crowd, ThreadPoolExecutor(WAITING + 2) as pool:
        sent = [pool.submit(crowd.get, "/api/v1/packs") for _ in range(WAITING + 2)]
        assert not wait(sent, 0.5).done
        assert server.get("search", q="a red circle")["hits"]
        go_on.set()
        assert [each.result().status_code for each in sent] == [200] * len(sent)


def test_slow_uploads_refusals_and_mcp_clients_hold_no_slot(server: Server) -> None:
    head = "POST /api/v1/collections/file HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000000"
    call = {"name": "packs", "arguments": {}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    accepts = {"Accept": "application/json, text/event-stream", "X-Forwarded-For": "127.0.4.2"}
    with ExitStack() as stack:
        visitor = stack.enter_context(client(server, "127.0.4.2"))
        for _ in range(access.MAX_CONCURRENT):
            refused(visitor.post("/api/v1/search", content=b"{"), 400)
            line = socket.create_connection(("127.0.0.1", server.port), 60, ("127.0.4.2", 0))
            stack.enter_context(line).sendall(f"{head}\r\n\r\n".encode())
        assert visitor.get("/api/v1/packs").status_code == 200
        # an MCP client behind a proxy: Gradio copies its headers to an internal request
        proxy = stack.enter_context(client(server, "127.0.0.99"))
        pool = stack.enter_context(ThreadPoolExecutor(access.MAX_CONCURRENT + 1))
        sent = [
            pool.submit(proxy.post, "/gradio_api/mcp/", json=request, headers=accepts)
            for _ in range(access.MAX_CONCURRENT + 1)
        ]
        texts = [each.result().text for each in sent]
        assert not [text for text in texts if '"isError":false' not in text]


def test_unfetched_answers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound, the guard fetches and discards the oldest answer."""
    monkeypatch.setattr(gradio_queue, "MAX_UNFETCHED", 3)
    fetched: list[str] = []
    numbers = itertools.count()

    async def join(_: Request) -> Response:
        return JSONResponse({"event_id": f"e{next(numbers)}"})

    async def data(request: Request) -> Response:
        session = request.query_params["session_hash"]
        fetched.append(session)
        answer = f'data: {{"msg":"process_completed","event_id":"{session}","output":1}}'
        return Response(answer if session != "e1" else "")  # the client left without it

    routes = Route("/call/x", join, methods=["POST"]), Route("/queue/data", data)
    app = Starlette(routes=[Mount("/gradio_api", routes=routes)])
    guard = access.RequestGuard(app, Hosts(), gradio_queue.GradioQueue({"x": {}}))
    with TestClient(guard, base_url="http://127.0.0.1/gradio_api") as own:
        for sessions in (("e0", "e1"), ()):
            for _ in range(3):
                assert own.post("/call/x", json={"data": []}).status_code == 200
            for session in sessions:
                own.get(f"/queue/data?session_hash={session}")
    assert fetched == ["e0", "e1", "e1", "e2"]


@pytest.mark.usefixtures("strict")
def test_unfetched_answers_are_bounded_for_each_client(server: Server) -> None:
    body = {"data": ["a red circle"], "session_hash": "s" * 11}
    with client(server, "127.0.2.1") as line, client(server, "127.0.2.2") as other:
        sent = [line.post(ADDRESS, json=body) for _ in range(gradio_queue.MAX_UNFETCHED_PER_CLIENT)]
        assert [reply.status_code for reply in sent] == [200] * len(sent)
        assert "were not fetched" in refused(line.post(ADDRESS, json=body), 429)
        assert other.post(ADDRESS, json=body).status_code == 200
        assert "hits" in line.get(f"{ADDRESS}/{sent[0].json()['event_id']}").text
        assert line.post(ADDRESS, json=body).status_code == 200


def test_measurements_of_several_clients(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def measure(_: Retriever, method: str) -> Collapse:
        go_on.wait(60)
        return Collapse(method=method, state="ready", progress="")

    monkeypatch.setattr(collapse, "measure", measure)
    address, waits = "/gradio_api/call/collapse", "waits for other computations"

    def ask_gradio(line: httpx.Client, method: str) -> str:
        event = line.post(address, json={"data": [method]}).json()["event_id"]
        return line.get(f"{address}/{event}").text

    try:
        with client(server, "127.0.3.1") as busy, client(server, "127.0.3.2") as other:
            assert waits not in ask_gradio(busy, "vsepp")
            assert waits in ask_gradio(busy, "vse_infty")
            assert waits in busy.get("/api/v1/collapse?method=vse_infty").text
            assert waits not in ask_gradio(other, "vse_infty")
    finally:
        go_on.set()


def test_large_answers_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyview.app.explain.evidence.MAX_NUMBERS", 100)
    assert server.post("explain/hits", q="a red circle", images=[0])["scores"]
    for images, more in (([0, 1, 2] * 30, []), ([0], [1, 2, 3, 4])):
        values = {"q": "a red circle", "images": images, "more": more}
        sentence = refused(server.http.post("explain/hits", json=values), 400)
        assert "the evidence has more than 100 numbers; request fewer images" in sentence


@pytest.mark.usefixtures("strict")
def test_a_public_space(tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    space = {"SPACE_ID": "owner/space", "SPACE_HOST": "owner-space.hf.space"}
    with hosted(tmp_path, "--pack", tiny_pack, "--host", "0.0.0.0", **space) as server:

        def visit(visitor: str, host: str = "owner-space.hf.space") -> httpx.Response:
            # the chain of addresses that the Hub's proxies send
            forwarded = f"198.51.100.1, {visitor}, 10.16.3.4"
            return server.http.get("health", headers={"Host": host, "X-Forwarded-For": forwarded})

        page = visit("203.0.113.1")
        assert page.status_code == 200
        assert "https://huggingface.co" in page.headers["content-security-policy"]
        refused(visit("203.0.113.1", "evil.example"), 421)
        exhaust(lambda: visit("203.0.113.1"))
        assert visit("203.0.113.2").status_code == 200
