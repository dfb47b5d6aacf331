"""The app as visitors get it: `python app/main.py` in a process of its own."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gradio_client import Client, handle_file

from tests.app.copied_app import Copy

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"


@dataclass(frozen=True)
class Server:
    """The app, running as `python app/main.py`.

    Attributes:
        url: its address.
        log: what it printed.
        process: its number.
    """

    url: str
    log: Path
    process: int

    @cached_property
    def _client(self) -> Client:
        return Client(self.url, verbose=False)

    def ask(self, endpoint: str, *values: Any) -> dict[str, Any]:
        """What a named endpoint answers."""
        return self._client.predict(*values, api_name=f"/{endpoint}")

    def ask_image(self, path: Path, method: str = "vsepp", k: int = 3) -> dict[str, Any]:
        """What /search_image answers about a file of ours."""
        return self.ask("search_image", handle_file(path), method, k)

    def ready(self) -> dict[str, Any]:
        """What /info says once everything is searchable."""
        deadline = time.monotonic() + 120
        while (info := self.ask("info"))["gallery"]["state"] not in ("ready", "failed"):
            assert time.monotonic() < deadline, info["gallery"]
            time.sleep(0.3)
        return info


Serve = Callable[..., Server]


@contextmanager
def servers(new_folder: Callable[[], Path], main: Path = MAIN) -> Iterator[Serve]:
    """Gives a function that starts the app with arguments and waits until all is searchable.

    Without arguments, or with variables that may matter to what is imported, it is a new Python.
    """
    running: list[subprocess.Popen[bytes] | Copy] = []

    def start(*arguments: str | Path, descriptors: int = 0, **variables: str) -> Server:
        folder = new_folder()
        port, log = free_port(), folder / "log.txt"
        given = [str(part) for part in ("--port", port, "--device", "cpu", *arguments)]
        environment = {
            **os.environ,
            "POLYVIEW_CACHE": str(folder / "cache"),
            "GRADIO_TEMP_DIR": str(folder / "gradio"),
            "HF_HUB_OFFLINE": "1",
            **variables,
        }
        process: subprocess.Popen[bytes] | Copy
        if arguments and variables.keys() <= {"POLYVIEW_CACHE"} and main == MAIN:
            process = Copy(given, folder, environment, log, descriptors)
        else:
            command = [sys.executable, str(main), *given]
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT
                )
        running.append(process)
        url = f"http://127.0.0.1:{port}"
        await_page(url, process, log)
        server = Server(url, log, process.pid or 0)
        server.ready()
        return server

    try:
        yield start
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_page(
    url: str, process: subprocess.Popen[bytes] | Copy, log: Path, patience: int = 90
) -> None:
    """Waits for the first page of an app whose output goes to `log`."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the app ended:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                assert page.status == 200
                return
        except OSError:  # refused, or no answer yet
            time.sleep(0.2)
    raise AssertionError(f"no page within {patience} s:\n{log.read_text()}")
