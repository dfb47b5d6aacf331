"""Talking to a Space that was started here, in the app's own protocol over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PATIENCE = 300  # seconds until a first page


class SpaceError(ValueError):
    """A Space does not install, start or answer; the message says why."""


def ask(url: str, endpoint: str, *values: Any) -> list[Any]:
    """What a named endpoint answers.

    Raises:
        SpaceError: it answers with an error, or not at all.
    """
    address = f"{url}/gradio_api/call/{endpoint}"
    body = json.dumps({"data": values}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            event = json.load(reply)["event_id"]
        with urllib.request.urlopen(f"{address}/{event}", timeout=60) as stream:
            lines = stream.read().decode().splitlines()
    except (OSError, ValueError, KeyError) as error:
        raise SpaceError(f"/{endpoint} does not answer: {error}") from error
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if not kinds or kinds[-1] != "complete":
        raise SpaceError(f"/{endpoint} answers {data[-1][:300] if data else 'nothing'}")
    found: list[Any] = json.loads(data[-1])
    return found


def await_page(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for the first page of an app whose output goes to `log`.

    Raises:
        SpaceError: it did not come; the message ends with the log.
    """
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SpaceError(f"no page came:\n{log.read_text('utf-8', 'replace')[-2000:]}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def device_server() -> Iterator[tuple[str, list[str]]]:
    """ZeroGPU's device server as far as a start needs it: its address, and what it was told."""
    told: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.path.partition("?")[0])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Keeps quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
