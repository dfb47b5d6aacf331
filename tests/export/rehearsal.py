"""Starts a Space's folder as the Hub would.

    python -m tests.export.rehearsal FOLDER PYTHON [INDEX]

Installs the requirements of the folder and of the Hub in a clean virtual environment, optionally
with an extra package index, starts the app with the variables of a Space, and searches. For
ZeroGPU, a device server must receive the report that the app can borrow a GPU.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load

from polyview.export.space import ZEROGPU
from tests.app.serving import Server, await_page, free_port

# packages that the Hub installs in addition to the requirements of a Space
_ADDED = ("gradio[oauth,mcp]=={}", "uvicorn>=0.14.0", "websockets>=10.4", "spaces")
_QUESTION = "a dog"
Json = dict[str, Any]


def install(folder: Path, python: str, venv: Path, indexes: Sequence[str]) -> str:
    """Creates a virtual environment with the packages that the Hub installs; returns its Python."""
    front = metadata_load(folder / "README.md") or {}
    version = subprocess.check_output([python, "--version"], text=True).split()[1]
    required = front["python_version"]
    assert version.startswith(f"{required}."), f"{python} is {version}, the Space wants {required}"
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    own = str(venv / "bin" / "python")
    needs = ["-r", str(folder / "requirements.txt")]
    needs += [name.format(front["sdk_version"]) for name in _ADDED]
    needs += [f"--extra-index-url={index}" for index in indexes]
    subprocess.run([own, "-m", "pip", "install", "--quiet", *needs], check=True)
    subprocess.run([own, "-m", "pip", "check"], check=True)
    return own


def start_and_ask(folder: Path, python: str, installed: bool = True) -> tuple[Json, list[Json]]:
    """Starts the app of a Space with the Hub's variables, searches, and stops the app.

    The app must not write into the folder. `installed` states that `python` has the packages that
    the Hub installs; gradio then behaves as in a Space, and the app must declare a function to
    ZeroGPU. Returns the answer of /info, once all images are searchable, and the hits of a search.
    """
    front, port = metadata_load(folder / "README.md") or {}, free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as place, _device_server() as (device_url, reports):
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            **({"SYSTEM": "spaces"} if installed else {}),
            "SPACE_ID": "owner/rehearsal",
            "GRADIO_SERVER_NAME": "127.0.0.1",  # on the Hub 0.0.0.0, within a container
            "GRADIO_SERVER_PORT": str(port),
            "GRADIO_TEMP_DIR": f"{place}/gradio",
            "POLYVIEW_CACHE": f"{place}/cache",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if front["suggested_hardware"] == ZEROGPU:
            environment |= {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": device_url}
        log = Path(place, "log.txt")
        with log.open("wb") as out:
            command = [python, front["app_file"]]
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
        try:
            await_page(url, process, log, 300)
            server = Server(url, log, process.pid)
            server.await_stage("ready")
            info, hits = server.get("info"), server.get("search", q=_QUESTION, k=3)["hits"]
        finally:
            process.terminate()
            process.wait(20)
        if front["suggested_hardware"] == ZEROGPU and installed:
            assert "/startup-report" in reports, "it declared no function for ZeroGPU"
        return info, hits


@contextmanager
def _device_server() -> Iterator[tuple[str, list[str]]]:
    """Runs a fake device server of ZeroGPU; yields its address and the paths of its requests."""
    reports: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reports.append(self.path.partition("?")[0])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", reports
        server.shutdown()


if __name__ == "__main__":
    space = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory(prefix="polyview-space-") as venv:
        about, found = start_and_ask(space, install(space, sys.argv[2], Path(venv), sys.argv[3:]))
    print(f'{about["pack"]["title"]} on {about["device"]}: {len(found)} hits for "{_QUESTION}"')
