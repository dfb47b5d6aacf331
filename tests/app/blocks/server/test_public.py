"""Attacks on an app that others reach: half-sent requests, crowds, assistants, folders."""

from __future__ import annotations

import base64
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.blocks.server.bodies import GRACE
from app.blocks.server.limits import OPEN, UPLOADS, WAITING
from app.blocks.server.listening import HEAD_SECONDS
from tests.app.blocks.api.test_mcp import Assistant
from tests.app.blocks.server.attacks import API, ask, connect, image, post, refused
from tests.app.conftest import draw
from tests.app.serving import Serve, Server
from tests.soak.checks import SLOW, Caller

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"


def client(address: str, url: str) -> httpx.Client:
    """A client with an address of its own, one of loopback's many."""
    return httpx.Client(
        transport=httpx.HTTPTransport(local_address=address), base_url=url, timeout=60
    )


def data_uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    draw(3)[0].save(tmp_path / "mine.png")
    return tmp_path / "mine.png"


def test_it_answers_for_its_names(public_server: Server) -> None:
    for host, status in (("polyview.example", 200), ("192.0.2.7", 200), ("evil.example", 421)):
        assert ask(public_server.url, "/config", headers={"Host": host}).status_code == status
    named = {"Host": "polyview.example", "Origin": "http://evil.example"}
    reply = ask(public_server.url, "/config", headers=named)
    refused(reply, 403)
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_strangers_may_not_use_the_machine(public_server: Server, tiny_pack: Path) -> None:
    caller = Caller(public_server.url)
    for kind, address, sentence in (
        ("pack", str(tiny_pack), "may not be loaded"),
        ("clip", "openai/clip-vit-base-patch32", "converted only where no other machine"),
    ):
        said = caller.answer("load_pack", ["", kind, address, None])
        assert sentence in said.lower()
    place = {"place": str(tiny_pack / "gallery")}
    assert "ictures are chosen where the app runs" in caller.answer("choose_images", ["", place])
    assert "only where no other machine" in caller.answer("pause_reading", [""])


@pytest.mark.slow
def test_half_sent_requests_keep_nobody_out(public_server: Server) -> None:
    with ExitStack() as held:
        for _ in range(1100):
            line = held.enter_context(connect(public_server.url))
            line.sendall(HALF)
        start = time.monotonic()
        assert ask(public_server.url, "/config").status_code == 200
        assert public_server.ask("info")["gallery"]["state"] == "ready"
        assert time.monotonic() - start < SLOW


@pytest.mark.slow
def test_half_sent_heads_are_ended(public_server: Server) -> None:
    with connect(public_server.url) as line:
        line.sendall(HALF)
        start = time.monotonic()
        with suppress(ConnectionResetError):
            assert line.recv(100) == b""
        assert time.monotonic() - start < HEAD_SECONDS + SLOW


def stay(held: ExitStack, url: str, count: int, source: str, headers: bytes = b"") -> list[bytes]:
    """Opens streams that never end, and gives the first line of each answer."""
    lines = []
    for number in range(count):
        line = socket.create_connection(
            ("127.0.0.1", int(url.rpartition(":")[2])), timeout=60, source_address=(source, 0)
        )
        held.enter_context(line)
        head = b"GET %b/heartbeat/%d HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n"
        line.sendall(head % (API.encode(), number, headers))
        lines.append(line.recv(20)[:12])
    return lines


def test_open_requests_of_one_client_are_bounded(public_server: Server) -> None:
    with ExitStack() as held:
        lines = stay(held, public_server.url, OPEN + 1, "127.0.0.5")
        assert lines == [b"HTTP/1.1 200"] * OPEN + [b"HTTP/1.1 429"]
        with client("127.0.0.6", public_server.url) as other:
            assert other.get("/config").status_code == 200


def test_one_client_does_not_fill_the_queue(public_server: Server) -> None:
    body = {"data": ["a red circle " * 500, "vsepp", 3, None]}
    with client("127.0.0.7", public_server.url) as crowd:
        codes = [crowd.post(f"{API}/call/search_text", json=body).status_code for _ in range(90)]
    assert set(codes) <= {200, 429}
    assert codes[:WAITING] == [200] * WAITING
    assert public_server.ask("search_text", "a red circle", "vsepp", 3)["hits"]


def test_one_client_does_not_fill_the_plain_interface(public_server: Server) -> None:
    head = b"POST /api/v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
    address = ("127.0.0.1", int(public_server.url.rpartition(":")[2]))
    with ExitStack() as held:
        for _ in range(WAITING):
            line = socket.create_connection(address, source_address=("127.0.0.9", 0))
            held.enter_context(line).sendall(head)  # and no body, for which it waits
        with client("127.0.0.9", public_server.url) as crowd:
            deadline = time.monotonic() + SLOW
            while crowd.get("/api/v1/health").status_code != 429:
                assert time.monotonic() < deadline
        with client("127.0.0.10", public_server.url) as other:
            assert other.get("/api/v1/search", params={"q": "a red circle"}).status_code == 200


@pytest.mark.slow
def test_uploads_have_a_quota(public_server: Server) -> None:
    with client("127.0.0.8", public_server.url) as crowd:
        codes: list[int] = []
        while len(codes) < UPLOADS + 1:
            reply = crowd.post(f"{API}/upload", files={"files": ("x.png", b"x")})
            if reply.status_code == 429 and "in a second" in reply.text:
                time.sleep(0.5)
                continue
            codes.append(reply.status_code)
    assert codes == [200] * UPLOADS + [429]


def test_assistants_send_pictures_and_no_paths(public_server: Server, picture: Path) -> None:
    assistant = Assistant(public_server)
    sent = assistant.call("search_image", image=data_uri(picture), method="vsepp", k=3)
    expected = public_server.ask_image(picture)
    assert [hit["file"] for hit in sent["images"]] == [hit["file"] for hit in expected["images"]]
    for named in (image(str(picture)), {"path": str(picture)}):
        assert "not uploaded" in call(public_server, "search_image", named)
    for file in (str(picture), "/etc/hostname", "http://127.0.0.1:1/x.png"):
        answer = call(public_server, "search_image", file)
        assert "not uploaded" in answer
        assert str(picture.parent) not in answer
        assert "/gradio/" not in answer


def call(server: Server, tool: str, file: Any) -> str:
    """All that an assistant is told about a picture."""
    params = {"name": tool, "arguments": {"image": file, "method": "vsepp", "k": 1}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": "application/json, text/event-stream"}
    return ask(server.url, f"{API}/mcp/", "POST", json=body, headers=headers).text


def test_assistants_are_told_apart_from_other_pages(public_server: Server) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    both = "application/json, text/event-stream"
    for headers, status in (
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
    ):
        refused(post(public_server.url, "mcp/", body, Accept=both, **headers), status)
    assert post(public_server.url, "mcp/", body, Accept=both).status_code == 200
    assert json.loads(ask(public_server.url, f"{API}/mcp/schema").text)


@pytest.mark.slow
def test_a_space_answers_for_its_name_and_counts_visitors_apart(
    serve: Serve, tiny_pack: Path
) -> None:
    space = {"SPACE_ID": "owner/space", "SPACE_HOST": "owner-space.hf.space"}
    server = serve("--pack", tiny_pack, "--host", "0.0.0.0", **space)

    def visit(visitor: str, host: str = "owner-space.hf.space") -> dict[str, str]:
        # as the Hub's proxies forward it, the last of which is near
        return {"Host": host, "X-Forwarded-For": f"198.51.100.1, {visitor}, 10.16.3.4"}

    page = ask(server.url, "/config", headers=visit("203.0.113.1"))
    assert page.status_code == 200
    assert "https://huggingface.co" in page.headers["content-security-policy"]
    refused(ask(server.url, "/config", headers=visit("203.0.113.1", "evil.example")), 421)
    with ExitStack() as held:
        forwarded = b"X-Forwarded-For: 203.0.113.1, 10.16.3.4\r\n"
        stay(held, server.url, OPEN, "127.0.0.1", forwarded)
        refused(ask(server.url, "/config", headers=visit("203.0.113.1")), 429)
        assert ask(server.url, "/config", headers=visit("203.0.113.2")).status_code == 200


def test_answers_that_nobody_fetches_are_bounded(public_server: Server) -> None:
    body = {"data": ["a red circle", "vsepp", 3, None]}
    with client("127.0.0.9", public_server.url) as greedy:
        join = partial(greedy.post, f"{API}/call/search_text", json=body)
        names = [join().json()["event_id"] for _ in range(WAITING)]
        assert public_server.ask("search_text", "a red circle", "vsepp", 3)["hits"]  # all done
        assert "fetch" in refused(join(), 429)
        assert "complete" in greedy.get(f"{API}/call/search_text/{names[0]}").text
        assert join().status_code == 200


@pytest.mark.slow
def test_refused_requests_are_counted(public_server: Server) -> None:
    """Whoever sends none of the bodies that were announced holds few connections."""
    with ExitStack() as held:
        lines = []
        for _ in range(2 * OPEN):
            line = held.enter_context(connect(public_server.url, "127.0.0.12"))
            line.sendall(
                b"POST /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
            )
            lines.append(line)
        assert ask(public_server.url, "/config").status_code == 200
        codes = [line.recv(20)[9:12] for line in lines]
    assert set(codes) == {b"404", b"429"}
    assert codes.count(b"429") >= OPEN


def test_assistants_wait_for_their_turn(public_server: Server) -> None:
    words = {"query": "a red circle " * 500, "method": "vsepp", "k": 1}
    params = {"name": "search_text", "arguments": words}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": "application/json, text/event-stream"}
    with client("127.0.0.11", public_server.url) as crowd, ThreadPoolExecutor(60) as pool:
        asked = [
            pool.submit(crowd.post, f"{API}/mcp/", json=body, headers=headers) for _ in range(60)
        ]
        replies = [future.result() for future in asked]
    codes = [reply.status_code for reply in replies]
    assert set(codes) == {200, 429}
    assert codes.count(200) >= WAITING
    assert all("'hits'" in reply.text for reply in replies if reply.status_code == 200)


def test_assistants_whose_questions_do_not_come_take_no_turn(public_server: Server) -> None:
    head = f"POST {API}/mcp/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream"}
    with ExitStack() as lines:
        for _ in range(WAITING):
            line = lines.enter_context(connect(public_server.url, "127.0.0.14"))
            line.sendall(head.encode())
        time.sleep(0.5)
        with client("127.0.0.15", public_server.url) as other:
            began = time.monotonic()
            reply = other.post(f"{API}/mcp/", json=body, headers=headers)
            took = time.monotonic() - began
    assert reply.status_code == 200
    assert took < GRACE / 2
