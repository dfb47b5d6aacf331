"""A running app with its clients, and functions that wait for the app."""

import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx
from gradio_client import Client
from gradio_client.exceptions import AppError

PATIENCE = 120.0  # seconds
T = TypeVar("T")


def until(condition: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Calls a function until its result is true; returns the result."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"still {result!r} after {seconds:g} s"
        time.sleep(0.05)
    return result


@dataclass(frozen=True)
class Server:
    """A running app."""

    url: str
    log: Path  # the file of its output
    process: int  # the process id

    @property
    def port(self) -> int:
        """The port of `url`."""
        return int(self.url.rpartition(":")[2])

    @cached_property
    def http(self) -> httpx.Client:
        """A client below /api/v1; drops idle connections before the server does, after 5 s."""
        limits = httpx.Limits(keepalive_expiry=2)
        return httpx.Client(base_url=f"{self.url}/api/v1", timeout=60, limits=limits)

    @cached_property
    def gradio(self) -> Client:
        """A client of Gradio's queue."""
        return Client(self.url, verbose=False)

    def get(self, path: str, **values: Any) -> dict[str, Any]:
        """Sends a GET request with parameters; returns the JSON answer."""
        reply = self.http.get(path, params=values)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post(self, path: str, **values: Any) -> dict[str, Any]:
        """Sends a POST request with a JSON object; returns the JSON answer."""
        reply = self.http.post(path, json=values)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def predict(self, endpoint: str, **values: Any) -> Any:
        """Calls an endpoint of Gradio; returns the answer, or the error message."""
        try:
            with suppress(CancelledError):  # a race of the client: gradio-app/gradio#13760
                return self.gradio.predict(**values, api_name=f"/{endpoint}")
            return self.gradio.predict(**values, api_name=f"/{endpoint}")
        except AppError as error:
            return str(error)

    def await_stage(self, stage: str, collection: str = "", pack: str = "") -> dict[str, Any]:
        """Waits until reading a collection has reached a stage; returns the progress."""

        def reached() -> dict[str, Any] | None:
            with suppress(httpx.TransportError):  # the process got no CPU time for seconds
                progress = self.get("collections/progress", collection=collection, pack=pack)
                assert progress["stage"] != "failed", progress
                return progress if progress["stage"] == stage else None
            return None

        return until(reached)


Serve = Callable[..., Server]  # the type of the fixture `serve`


def free_port() -> int:
    """A port that no program listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_page(
    url: str,
    process: subprocess.Popen[bytes],
    log: Path,
    patience: float = PATIENCE,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Waits until a server, whose output goes to `log`, answers with status 200."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended:\n{log.read_text()}"
        try:
            assert httpx.get(url, headers=headers, timeout=5).status_code == 200
            return
        except httpx.TransportError:  # refused, or no answer yet
            time.sleep(0.2)
    raise AssertionError(f"no page within {patience} s:\n{log.read_text()}")
