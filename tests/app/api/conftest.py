"""The server of `python -m app.server` in a process of its own."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.app.conftest import draw
from tests.app.serving import free_port

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0


@dataclass(frozen=True)
class Running:
    """A server that runs.

    Attributes:
        url: its address.
        log: what it printed.
        process: its number.
        http: asks below /api/v1.
    """

    url: str
    log: Path
    process: int
    http: httpx.Client = field(repr=False)

    @cached_property
    def gradio(self) -> Client:
        """Asks through Gradio's queue."""
        return Client(self.url, verbose=False)

    def get(self, path: str, **values: Any) -> dict[str, Any]:
        """What a route answers."""
        reply = self.http.get(path, params=values)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post(self, path: str, **values: Any) -> dict[str, Any]:
        """What a route answers to a JSON object."""
        reply = self.http.post(path, json=values)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def predict(self, endpoint: str, **values: Any) -> Any:
        """What an endpoint answers, or the sentence of its refusal."""
        try:
            return self.gradio.predict(**values, api_name=f"/{endpoint}")
        except AppError as error:
            return str(error)

    def await_stage(self, stage: str, collection: str = "", pack: str = "") -> dict[str, Any]:
        """The progress of a collection once it is at a stage."""
        deadline = time.monotonic() + PATIENCE
        while True:
            said = self.get("collections/progress", collection=collection, pack=pack)
            if said["stage"] == stage:
                return said
            assert said["stage"] != "failed", said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)


Run = Callable[..., Running]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Starts `python -m app.server` with arguments, and waits until everything is searchable."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str | Path, **variables: str) -> Running:
        folder, port = tmp_path_factory.mktemp("server"), free_port()
        log = folder / "log.txt"
        environment = {**os.environ, "POLYVIEW_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
        environment |= {"TMPDIR": str(folder), **variables}
        given = [str(part) for part in ("--port", port, "--device", "cpu", *arguments)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "app.server", *given],
                cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        running.append(process)
        url = f"http://127.0.0.1:{port}"
        http = httpx.Client(base_url=f"{url}/api/v1", timeout=60)
        server = Running(url, log, process.pid, http)
        deadline = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                http.get("health")
                break
            except httpx.TransportError:
                time.sleep(0.2)
        server.await_stage("ready")
        return server

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


def encoded(index: int) -> bytes:
    """A drawn image as a PNG."""
    file = io.BytesIO()
    draw(index)[0].save(file, "PNG")
    return file.getvalue()


def data_uri(content: bytes) -> str:
    """A file as it is sent in JSON."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
