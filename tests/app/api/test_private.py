"""Attacks on a private server by foreign pages and by programs on the same machine."""

import json
import logging
import os
import re
import signal
import socket
import time
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from benchmarks.serving import resident_mb
from polyview.app.api.parameters import Table
from polyview.app.main import OneLineFormatter
from tests.app.api.conftest import ask, data_uri, encoded, refused
from tests.app.conftest import draw
from tests.app.serving import Serve, Server, until

EVIL = "evil.example"
PATHS = (
    "/", "/config", "/gradio_api/info", "/gradio_api/queue/join", "/gradio_api/call/info",
    "/gradio_api/mcp/", "/api/v1/info", "/api/v1/search", "/api/v1/image/3", "/page/x.js",
)  # fmt: skip
SECONDS = 20.0  # time limit of an answer on a busy machine


@pytest.mark.parametrize("path", PATHS)
def test_foreign_pages_and_proxies_are_refused(private: Server, path: str) -> None:
    """tests/app/test_access.py lists the refused names, origins and headers."""
    rebound = {"Host": f"{EVIL}:{private.port}", "Origin": f"http://{EVIL}:{private.port}"}
    preflight = {"Origin": f"http://{EVIL}", "Access-Control-Request-Method": "POST"}
    for headers, status, words in (
        (rebound, 421, EVIL),  # DNS rebinding: the page's own name points to this machine
        (preflight, 403, "other sites"),
        ({"Origin": "http://127.0.0.1:3000"}, 403, "other sites"),
        ({"X-Forwarded-For": "203.0.113.7"}, 403, "--allow-host"),
    ):
        for method in ("GET", "POST", "OPTIONS"):
            assert words in refused(ask(private, path, method, headers=headers), status)


def test_the_own_page_is_answered_and_x_gradio_server_is_ignored(private: Server) -> None:
    reply = ask(private, "/api/v1/info", headers={"Origin": private.url})
    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert "frame-ancestors 'self'" in reply.headers["content-security-policy"]
    for path in ("/gradio_api/info", "/config", "/"):
        reply = ask(private, path, headers={"X-Gradio-Server": f"http://{EVIL}"})
        assert reply.status_code == 200
        assert EVIL not in reply.text


def test_other_routes_of_gradio_are_closed(private: Server) -> None:
    for path in (
        "/monitoring", "/monitoring/summary", "/login", "/docs", "/openapi.json", "/static/x",
        "/svelte/x", "/assets/x", "/theme.css", "/manifest.json", "/pwa_icon/50000",
        "/gradio_api/deep_link", "/gradio_api/upload", "/gradio_api/upload_progress",
        "/gradio_api/file=/etc/hostname", "/gradio_api/file/etc/hostname", "/gradio_api/token",
        "/gradio_api/proxy=https://x.hf.space/", "/gradio_api/dev/reload", "/gradio_api/user",
        "/gradio_api/stream/x/y/1/playlist.m3u8", "/gradio_api/vibe-code", "/gradio_api/runs",
        "/gradio_api/run/search_text", "/gradio_api/api/search_text", "/gradio_api/openapi.json",
        "/gradio_api/component_server", "/gradio_api/process_recording",
    ):  # fmt: skip
        for method in ("GET", "POST"):
            assert "/api/v1" in refused(ask(private, path, method), 404), path
        assert ask(private, path, "HEAD").status_code == 404, path


def call_tool(server: Server, name: str, **arguments: Any) -> str:
    """Calls a tool over MCP's streamable HTTP; returns the response body."""
    params = {"name": name, "arguments": arguments}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": "application/json, text/event-stream"}
    reply = ask(server, "/gradio_api/mcp/", "POST", json=request, headers=headers)
    assert reply.status_code == 200
    return reply.text


def test_no_file_is_read_and_no_url_is_fetched(private: Server, tmp_path: Path) -> None:
    other = socket.create_server(("127.0.0.1", 0))  # no connection may arrive here
    other.setblocking(False)
    secret = tmp_path / "secret.png"
    draw(3)[0].save(secret)
    kinds = {"meta": {"_type": "gradio.FileData"}}
    assert "hits" in call_tool(private, "search_text", query="a red circle")
    files = str(secret), "file:///etc/hostname", f"data:image/../{secret}"
    for named in (*files, f"http://127.0.0.1:{other.getsockname()[1]}/x.png"):
        nested: Any = [[[[{"path": named}]]]]
        for value in (nested, [{"path": named, **kinds}], {"url": named, **kinds}):
            body = {"data": [value, "vsepp", 3], "session_hash": "s" * 11, "fn_index": 1}
            for path in ("queue/join", "call/search_image", "call/v2/search_image"):
                sentence = refused(ask(private, f"/gradio_api/{path}", "POST", json=body), 403)
                assert "data URI" in sentence
        assert "data URI" in private.predict("search_image", image=named)
        reply = private.http.post("search", json={"image": named})
        assert (reply.status_code, "data URI" in reply.json()["error"]) == (400, True)
        for sent in (named, {"path": named, **kinds}):
            assert "hits" not in call_tool(private, "search_image", image=sent)
    with closing(other), pytest.raises(BlockingIOError):
        other.accept()


def test_odd_bodies_are_refused(private: Server) -> None:
    for path, body, status in (
        ("/gradio_api/call/search_text", b"no JSON", 400),
        ("/gradio_api/call/search_text", b"[" * 100_000, 413),
        ("/gradio_api/call/search_text", b"[" * 10_000, 400),
        ("/gradio_api/call/v2/search_text", b'{"color": 1}', 400),
        ("/gradio_api/queue/join", b'{"data":[' + b"[]," * 300_000 + b"0]}", 413),
        ("/api/v1/search", b'{"methods":[' + b"[]," * 300_000 + b"0]}", 413),
        ("/gradio_api/queue/join", json.dumps({"session_hash": "/" * 99}).encode(), 400),
        ("/gradio_api/call/search_text", json.dumps({"data": ["x" * 1_100_000]}).encode(), 413),
        ("/api/v1/collections/open", json.dumps({"place": "x" * 1_100_000}).encode(), 413),
        ("/api/v1/collections/open", b"[]", 400),
        ("/api/v1/collections/open", b'{"place": ' + b"[" * 3000 + b"]" * 3000 + b"}", 400),
        ("/api/v1/collections/open", b'{"place": ' + b"[" * 300_000 + b"]" * 300_000 + b"}", 413),
        ("/api/v1/explain", b'{"q":"\\ud800","image":1}', 400),
        ("/gradio_api/call/search_text", b'{"data":["\\uD800"]}', 400),
        ("/api/v1/search", b"\0" * 100, 400),
    ):
        start = time.monotonic()
        for headers in ({"Content-Type": "application/json"}, {}):
            if headers or path.endswith("open"):
                reply = ask(private, path, "POST", content=body, headers=headers)
                refused(reply, status)
        assert time.monotonic() - start < SECONDS


def test_many_parameters_take_linear_time(private: Server) -> None:
    names, start = "&".join(f"{number:x}" for number in range(12_000)), time.monotonic()
    assert "unknown parameter" in refused(ask(private, f"/api/v1/search?{names}"), 400)
    assert time.monotonic() - start < SECONDS


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_requests_leave_nothing_in_memory(private: Server) -> None:
    """Runs before the tests with large images, which leave the process larger."""
    image, calls = data_uri(encoded(3)), 5000

    def ask_all(number: int) -> None:
        text = f"a {('red', 'green', 'blue', 'pink')[number % 4]} circle beside a bar"
        private.get("search", q=text, k=5)
        private.get("explain/hits", q=text, images="1,2,3")
        assert isinstance(private.predict("search_text", query=text, k=5), dict)
        if number % 10 == 0:
            assert isinstance(private.predict("search_image", image=image), dict)

    for number in range(20):  # the first requests load models and fill caches
        ask_all(number)
    before = resident_mb(private.process)
    for number in range(calls):
        ask_all(number)
    after = resident_mb(private.process)
    print(f"{before:.0f} MB, after {calls} calls {after:.0f} MB")
    assert after < before * 1.05


def test_large_images_are_bounded(private: Server) -> None:
    for path in ("search", "collections/file?collection=upload-x&name=x.png"):
        reply = ask(private, f"/api/v1/{path}", "POST", content=bytes(50_000_001))
        assert "50,000,001 bytes" in refused(reply, 400)
    reply = ask(private, "/api/v1/search", "POST", content=bytes(70_000_001))
    assert "up to 70 MB" in refused(reply, 413)
    uri = "data:image/png;base64," + "A" * 68_000_000
    error = private.http.post("search", json={"image": uri}).json()["error"]
    assert re.search(r"51,000,000 bytes.* at most 50000000 bytes", error)
    table = "data:text/csv;base64," + "A" * 68_000_000  # Gradio's queue accepts bodies up to 70 MB
    with pytest.raises(ValidationError, match="at most 1000000 bytes"):
        TypeAdapter(Table).validate_python(table)


def test_sigterm_stops_reading(serve: Serve, tiny_pack: Path, tmp_path: Path) -> None:
    (photos := tmp_path / "photos").mkdir()
    draw(0)[0].convert("RGB").resize((1200, 900)).save(photos / "0.jpg")
    content = (photos / "0.jpg").read_bytes()
    for i in range(600):  # bytes after the image give each file its own content
        (photos / f"{i}.jpg").write_bytes(content + bytes([0, i % 256, i // 256]))
    server = serve("--pack", tiny_pack, "--gallery", photos, wait=False, TMPDIR=str(tmp_path))
    key = server.post("collections/new")["collection"]
    params = {"collection": key, "name": "a.png"}
    assert server.http.post("collections/file", params=params, content=encoded(1)).is_success
    assert list(tmp_path.glob("polyview-upload-*"))
    server.await_stage("pictures")
    until(lambda: server.get("collections/progress")["done"])
    for _ in range(20):  # repeated signals, as `make` sends them, leave no traceback
        os.kill(server.process, signal.SIGTERM)
        time.sleep(0.002)
    until(lambda: re.search(r"stopped after .* images\n", server.log.read_text()))
    until(lambda: not list(tmp_path.glob("polyview-upload-*")))
    log = server.log.read_text()
    assert "could not be read" not in log  # `serve` checks the exit status
    assert "Traceback" not in log


def test_log_messages_are_one_short_line() -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": ("x\nforged\x1b[2J" * 999,)})
    line = OneLineFormatter("polyview: %(message)s").format(record)
    assert len(line) <= 1000
    assert line.isprintable()


def test_requests_are_not_logged(private: Server) -> None:
    before = private.log.stat().st_size
    method = "m" * 400_000
    assert len(private.predict("search_text", query="a dog", method=method)) < 300
    assert len(private.http.get("search", params={"q": "a dog", "method": "m" * 9000}).text) < 300
    assert len(private.http.post("explain", json={"q": "x", "image": "i" * 500_000}).text) < 300
    short = {"data": ["x" * 400_000], "fn_index": 0, "session_hash": "s" * 11}
    assert ask(private, "/gradio_api/queue/join", "POST", json=short).status_code == 200
    assert "query cannot be" in ask(private, f"/gradio_api/queue/data?session_hash={'s' * 11}").text
    address = "/gradio_api/call/v2/explain"  # a body without the parameter query
    event = ask(private, address, "POST", json={"image": "i" * 2000}).json()["event_id"]
    assert "query cannot be" in ask(private, f"{address}/{event}").text
    no_list = {"data": "x" * 400_000}
    refused(ask(private, "/gradio_api/call/info", "POST", json=no_list), 400)
    unknown = {"data": [], "fn_index": 99999, "session_hash": "s" * 11}
    for path, body in (("queue/join", unknown), ("call/nothing", {"data": []})):
        refused(ask(private, f"/gradio_api/{path}", "POST", json=body), 404)
    assert private.log.stat().st_size - before < 2000
    assert "Traceback" not in private.log.read_text()[before:]


def test_page_paths_do_not_leave_the_folder(private: Server) -> None:
    for path in (
        "..%2fmain.py", "../main.py", "%2e%2e/main.py", "..\\main.py", "/etc/passwd",
        "%2fetc%2fpasswd", "", ".", "a%00b", "%c0%ae%c0%ae/main.py", "a/" * 5000,
    ):  # fmt: skip
        with closing(socket.create_connection(("127.0.0.1", private.port), 30)) as line:
            line.sendall(f"GET /page/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert line.recv(100).startswith(b"HTTP/1.1 404"), path


def test_the_opening_of_a_huge_archive_can_be_stopped(private: Server, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "huge.zip", "w") as archive:  # which takes many seconds
        for number in range(49_999):
            archive.writestr(f"{number}.png", b"x")
    answer = private.post("collections/open", place=str(tmp_path / "huge.zip"))
    assert answer["stage"] == "opening"
    key = {"collection": answer["collection"]}
    private.post("collections/stop", **key)
    until(lambda: private.http.get("collections/progress", params=key).status_code == 410, SECONDS)
