"""The app behind nginx, configured as in docs/deploy.md: attacks that the proxy absorbs."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from gradio_client import Client

from polyview.app import access
from tests.app.api.conftest import ROOT
from tests.app.serving import Serve, await_page, free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "polyview.example"
ATTACK = 1000  # connections
SECONDS = 5.0  # time limit of an answer to another client during an attack
HEAD = f"GET /api/v1/health HTTP/1.1\r\nHost: {NAME}\r\n".encode()
POST = f"POST /api/v1/search HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 9000\r\n\r\nxx".encode()


@dataclass(frozen=True)
class Proxied:
    """Nginx at `port`, in front of the app."""

    port: int
    log: Path

    def line(self, address: str) -> socket.socket:
        """Connects from one of the many loopback addresses."""
        return socket.create_connection(("127.0.0.1", self.port), 60, (address, 0))

    def ask(self, path: str = "/api/v1/health", **headers: str) -> httpx.Response:
        """Sends a GET request from 127.0.0.1."""
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.get(url, headers={"Host": NAME, **headers}, timeout=60, verify=False)


def configuration(folder: Path, app_port: int, port: int) -> str:
    """The configuration of docs/deploy.md with other ports, folders and shorter timeouts."""
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    [text] = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    own = "".join(
        f"    {name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    for before, after in (
        ("127.0.0.1:7860", f"127.0.0.1:{app_port}"),
        ("listen 80", f"listen 127.0.0.1:{port}"),
        ("user www-data;\n", ""),
        ("client_header_timeout 10s", "client_header_timeout 4s"),
        ("client_body_timeout 15s", "client_body_timeout 5s"),
        ("http {\n", f"http {{\n{own}"),
        ("/var/log/nginx/access.log", f"{folder}/access.log"),
        ("/var/log/nginx/error.log", f"{folder}/error.log"),
    ):
        assert before in text
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def proxied(
    serve: Serve, tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    app = serve("--pack", tiny_pack, "--allow-host", NAME)
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert nginx, "nginx is not installed; run: make nginx"
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    file, errors = folder / "nginx.conf", folder / "errors.txt"
    file.write_text(configuration(folder, app.port, port))
    options = f"daemon off; pid {folder}/pid; error_log {errors};"
    process = subprocess.Popen([nginx, "-p", folder, "-c", file, "-g", options])
    try:
        await_page(f"http://127.0.0.1:{port}/", process, errors, headers={"Host": NAME})
        yield Proxied(port, folder / "access.log")
    finally:
        process.terminate()
        process.wait(20)


def assert_prompt(proxied: Proxied) -> None:
    """Asserts that another client is answered in time."""
    start = time.monotonic()
    assert proxied.ask("/api/v1/search?q=a+red+circle").status_code == 200
    assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize("sent", [HEAD, POST], ids=["heads", "bodies"])
def test_incomplete_requests_delay_no_other_client(proxied: Proxied, sent: bytes) -> None:
    """Nginx closes them after a timeout."""
    with ExitStack() as stack:
        lines = []
        for _ in range(ATTACK):
            lines.append(stack.enter_context(proxied.line("127.0.0.2")))
            with suppress(ConnectionError):
                lines[-1].sendall(sent)
        for _ in range(10):
            assert_prompt(proxied)
        deadline, ended = time.monotonic() + 40, 0
        for line in lines:
            line.settimeout(max(0.1, deadline - time.monotonic()))
            with suppress(ConnectionError):
                while line.recv(10_000):
                    pass
            ended += 1
        assert ended == ATTACK


def test_slow_readers_delay_no_other_client(proxied: Proxied) -> None:
    """The proxy, not the app, buffers responses that a client does not read."""
    ask = f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()
    with ExitStack() as stack:
        for number in range(ATTACK // 2):
            line = stack.enter_context(proxied.line(f"127.0.1.{number % 250 + 1}"))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            line.sendall(ask)
        assert_prompt(proxied)


def test_connections_of_one_client_are_bounded_and_no_log_has_keys(proxied: Proxied) -> None:
    assert proxied.ask("/api/v1/images?collection=secret").status_code >= 400
    refused = HEAD.replace(b"/health", b"/health?collection=secret") + b"\r\n"
    with ExitStack() as stack:  # nginx refuses a request, and could log it as an error
        for _ in range(80):
            stack.enter_context(proxied.line("127.0.0.3")).sendall(POST)

        def is_refused() -> bool:
            line = stack.enter_context(proxied.line("127.0.0.3"))
            line.sendall(refused)
            return line.recv(12) == b"HTTP/1.1 429"

        until(is_refused)  # nginx may not have read all bodies yet
        assert proxied.ask().status_code == 200
    until(lambda: '"GET /api/v1/images" 4' in proxied.log.read_text())
    for log in proxied.log.parent.iterdir():
        assert log.is_dir() or "secret" not in log.read_text(), log


def test_clients_cannot_fake_their_address_or_the_app_s_name(proxied: Proxied) -> None:
    names = {"X-Forwarded-Host": "evil.example", "Forwarded": "for=192.0.2.1"}
    assert proxied.ask(**names, **{"X-Gradio-Server": "http://evil.example"}).status_code == 200
    assert "evil" not in proxied.ask("/config", **names).text
    url = f"http://127.0.0.1:{proxied.port}/api/v1/health"
    transport = httpx.HTTPTransport(local_address="127.0.0.4")
    with (
        httpx.Client(transport=transport, headers={"Host": NAME}, timeout=60) as line,
        ThreadPoolExecutor(8) as crew,  # to exceed the rate
    ):

        def ask(n: int) -> httpx.Response:
            return line.get(url, headers={"X-Forwarded-For": f"192.0.2.{n % 250}"})

        assert ask(0).status_code == 200
        replies = list(crew.map(ask, range(int(access.BURST) * 2)))
    assert any("too many requests" in reply.text for reply in replies)


def test_malformed_requests_end_at_the_proxy(proxied: Proxied) -> None:
    host = f"Host: {NAME}\r\n".encode()
    for sent, status in (
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n" + host + b"\r\n", b"414"),
        (HEAD + b"X: " + b"x" * 40_000 + b"\r\n\r\n", b"400"),
        (b"POST /api/v1/search HTTP/1.1\r\n" + host + b"Content-Length: 90000000\r\n\r\n", b"413"),
        (HEAD.replace(NAME.encode(), b"evil.example") + b"\r\n", b""),  # closed without a response
    ):
        reply = b""
        with proxied.line("127.0.0.1") as line, suppress(ConnectionError):
            line.sendall(sent)
            reply = line.recv(1000)
        assert reply.partition(b" ")[2][:3] == status, sent[:80]
    assert proxied.ask().status_code == 200


def test_gradio_clients_work_through_the_proxy(proxied: Proxied) -> None:
    def hits(client: Client) -> int:
        return len(client.predict(query="a red circle", k=3, api_name="/search_text")["hits"])

    url = f"http://127.0.0.1:{proxied.port}"
    # a client shared by threads may lose an answer: gradio-app/gradio#13760
    clients = [Client(url, headers={"Host": NAME}, verbose=False) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(hits, clients)] == [3] * 4
