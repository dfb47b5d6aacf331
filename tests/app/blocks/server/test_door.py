"""Attacks on a local app, as another page or another program would make them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.blocks.server import bodies, uploads
from tests.app.blocks.server.attacks import API, ask, connect, image, post, refused, upload
from tests.app.conftest import draw
from tests.app.serving import Server
from tests.soak.checks import SLOW, Caller

EVIL = "evil.example"
UPLOADS = ("show_upload", "compare_upload", "views_upload")


def event(server: Server, name: str) -> tuple[int, int]:
    """An event's number and how many values it takes."""
    for found in httpx.get(f"{server.url}/config", timeout=SLOW).json()["dependencies"]:
        if found["api_name"] == name:
            return int(found["id"]), len(found["inputs"])
    raise AssertionError(name)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A photograph that nobody uploaded."""
    draw(3)[0].save(tmp_path / "secret.png")
    return tmp_path / "secret.png"


@pytest.mark.parametrize("name", UPLOADS)
def test_no_event_reads_a_file_that_was_not_uploaded(
    server: Server, secret: Path, name: str
) -> None:
    number, count = event(server, name)
    data_uri = f"data:image/../..{secret}"
    for file in (
        {"path": str(secret)},
        image(str(secret)),
        {"path": f"{secret}.none"},
        image(data_uri),
    ):
        data = [file] * count
        joined = {"data": data, "fn_index": number, "session_hash": "s" * 11}
        replies = {
            refused(post(server.url, f"run/{name}", {"data": data}), 403),
            refused(post(server.url, f"call/{name}", {"data": data}), 403),
            refused(post(server.url, "queue/join", joined), 403),
            refused(post(server.url, "run/predict", joined), 403),
        }
        # whether there is such a file is not told either
        assert replies == {"the picture was not uploaded; upload it first, and name that file"}


def test_an_uploaded_picture_still_is_a_question(server: Server, secret: Path) -> None:
    [path] = upload(server.url, secret.read_bytes()).json()
    values: list[Any] = [None, {"path": path}, "", "vsepp", 4, [], None, 1, [], [], [], []]
    said = Caller(server.url).answer("show_upload", values)
    assert "like mine.png" in said
    sent = ask(server.url, f"{API}/file={path}")
    assert sent.content == secret.read_bytes()


@pytest.mark.parametrize(
    "path", ["http://127.0.0.1:1/x.png", "https://example.com/x.png", "file:///etc/hostname"]
)
def test_nothing_is_fetched_from_addresses(server: Server, path: str) -> None:
    data = [image(path), "vsepp", 3, "", 1.0, None]
    assert "address" in refused(post(server.url, "call/search_image", {"data": data}), 403)
    refused(ask(server.url, f"{API}/file={path}"), 403)


def test_a_page_with_another_name_reaches_nothing(server: Server) -> None:
    """DNS rebinding: the page's own name points to this machine."""
    port = server.url.rpartition(":")[2]
    named = {"Host": f"{EVIL}:{port}", "Origin": f"http://{EVIL}:{port}"}
    for path in ("/", "/config", f"{API}/info", "/thumbnails/x.webp", f"{API}/file=/etc/hostname"):
        reply = ask(server.url, path, headers=named)
        assert EVIL in refused(reply, 421)
        assert not [name for name in reply.headers if name.startswith("access-control")]
    for path in ("queue/join", "call/load_pack", "upload", "mcp/"):
        refused(post(server.url, path, {"data": []}, **named), 421)


@pytest.mark.parametrize("origin", [f"http://{EVIL}", "null", "http://127.0.0.1:3000"])
def test_other_pages_may_not_ask(server: Server, origin: str) -> None:
    for path in ("call/info", "queue/join", "cancel"):
        refused(post(server.url, path, {"data": []}, Origin=origin), 403)
    refused(upload(server.url, b"x", Origin=origin), 403)
    wanted = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    preflight = ask(server.url, f"{API}/queue/join", "OPTIONS", headers=wanted)
    refused(preflight, 403)
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_the_own_page_may_ask_and_no_other_reads_it(server: Server) -> None:
    reply = post(server.url, "call/info", {"data": []}, Origin=server.url)
    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]
    page = ask(server.url, "/")
    assert page.headers["content-security-policy"] == "frame-ancestors 'self'"


def test_a_forwarded_request_is_none_of_this_machine(server: Server) -> None:
    for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"):
        reply = ask(server.url, "/", headers={header: "203.0.113.7"})
        assert "--allow-host" in refused(reply, 403)


@pytest.mark.parametrize(
    "path",
    [
        "/monitoring", "/monitoring/summary", f"{API}/deep_link?session_hash=x", "/pwa_icon/50000",
        f"{API}/proxy=https://x.hf.space/", f"{API}/stream/x/y/1/playlist.m3u8", f"{API}/mcp/",
        f"{API}/dev/reload", f"{API}/vibe-code", "/login_check", f"{API}/file/etc/hostname",
        "/?page=x", "/?deep_link=x",
    ],
)  # fmt: skip
def test_the_rest_of_gradio_is_not_there(server: Server, path: str) -> None:
    refused(ask(server.url, path), 404)


def test_questions_do_not_pass_the_queue(server: Server) -> None:
    number, count = event(server, "show_words")
    for body in ({"data": [None] * count}, {"data": [None] * count, "fn_index": number}):
        for name in ("show_words", "search_text", "header_tick"):
            if name == "header_tick" and "fn_index" not in body:
                continue
            assert post(server.url, f"run/{name}", body).status_code == 404


def test_large_bodies_are_refused_at_once(server: Server) -> None:
    for count, sentence in ((3_300_000, "at most 1 MB"), (300_000, "too many values")):
        body = b'{"data":[' + b"[]," * count + b"0]}"
        start = time.monotonic()
        reply = ask(
            server.url,
            f"{API}/call/search_text",
            "POST",
            content=body,
            headers={"Content-Type": "application/json"},
        )
        assert sentence in refused(reply, 413)
        assert time.monotonic() - start < SLOW


@pytest.mark.parametrize("path", ["call/info", "upload", "nothing"])
def test_bodies_in_chunks_are_not_read(server: Server, path: str) -> None:
    """Each chunk of a byte takes as long to parse as one of any size."""
    head = f"POST {API}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n"
    with connect(server.url) as line:
        line.sendall(f"{head}Transfer-Encoding: Chunked\r\n\r\n1\r\nx\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 411")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no JSON", 400),
        (b"[" * 100_000, 413),
        (b"[" * 10_000, 400),
        (b"[" * 100 + b"]" * 100, 413),
        (b'{"data": ["\xff"]}', 400),
        (json.dumps({"data": ["x" * (bodies.TEXT + 1)]}).encode(), 413),
    ],
)
def test_odd_bodies_are_refused(server: Server, body: bytes, status: int) -> None:
    refused(ask(server.url, f"{API}/call/search_text", "POST", content=body), status)


def test_what_was_sent_is_neither_echoed_nor_logged_whole(server: Server) -> None:
    method, before = "m" * (bodies.TEXT - 10), server.log.stat().st_size
    answers = [
        Caller(server.url).answer("search_text", ["a dog", method, 3, None]),
        Caller(server.url).answer("compare", ["a dog", [method, method], 3]),
        Caller(server.url).answer("lens", ["a dog", method, [1], 3]),
        Caller(server.url).answer("views", [0, method, ""]),
        Caller(server.url).answer("show_words", [None, "a dog", method, 3]),
    ]
    assert max(map(len, answers)) < 4000
    assert server.log.stat().st_size - before < 20_000


def test_uploads_are_bounded(server: Server) -> None:
    large = upload(server.url, bytes(uploads.MOST_BYTES + 100_000))
    assert "50 MB" in refused(large, 413)
    many = [("files", (f"{i}.png", b"x")) for i in range(uploads.MOST_FILES + 1)]
    reply = ask(server.url, f"{API}/upload", "POST", files=many)
    assert "too many files" in refused(reply, 413)
    assert upload(server.url, b"x").status_code == 200


@pytest.mark.parametrize("name", ["filename*=utf-8''x.png", "filename*0=x", "name*=x", "x"])
def test_odd_uploads_are_refused_in_a_sentence(server: Server, name: str) -> None:
    before = server.log.stat().st_size
    body = f'--b\r\nContent-Disposition: form-data; name="files"; {name}\r\n\r\nx\r\n--b--\r\n'
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    reply = ask(server.url, f"{API}/upload", "POST", content=body.encode(), headers=form)
    assert "filename" in refused(reply, 400)
    assert server.log.stat().st_size == before


def test_no_upload_is_remembered_by_name(server: Server) -> None:
    name = "?upload_id=" + "x" * 1000
    path = f"{API}/upload{name}"
    assert ask(server.url, path, "POST", files={"files": ("x.png", b"x")}).status_code == 200
    assert '"done"' in ask(server.url, f"{API}/upload_progress{name}").text


def test_what_gradio_fails_at_is_a_sentence(server: Server) -> None:
    [path] = upload(server.url, b"abc").json()
    before = server.log.stat().st_size
    unknown = {"data": [], "fn_index": 99999, "session_hash": "s" * 11}
    for reply in (
        ask(server.url, f"{API}/file={path}", headers={"Range": "bytes=0-1,1-2"}),
        post(server.url, "queue/join", unknown),
        post(server.url, "call/nothing", {"data": []}),
    ):
        refused(reply, 500)
    with suppress(httpx.RemoteProtocolError):  # its answer breaks off
        ask(server.url, f"{API}/queue/data?session_hash=nobody")
    assert server.log.stat().st_size - before < 1500
    assert "Traceback" not in server.log.read_text()[before:]


def test_no_header_names_the_app_for_others(server: Server) -> None:
    for headers in ({"X-Gradio-Server": f"http://{EVIL}"}, {}):
        for path in (f"{API}/info", f"{API}/openapi.json", "/config", "/"):
            assert EVIL not in ask(server.url, path, headers=headers).text


def test_nonsense_is_no_request(server: Server) -> None:
    for sent in (b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"x" * 70_000 + b"\r\n"):
        with connect(server.url) as line:
            line.sendall(sent)
            assert line.recv(100).startswith(b"HTTP/1.1 400")
    assert ask(server.url, "/").status_code == 200
