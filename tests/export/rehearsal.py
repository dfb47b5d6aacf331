"""Starts a Space's folder as the Hub would: `python -m tests.export.rehearsal FOLDER PYTHON`.

PYTHON has the packages that the Hub installs (`make space-check`). The app starts with the
variables of a Space, and searches. For ZeroGPU, a device server must receive the report that the
app can borrow a GPU.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load

from polyview.export.space import ZEROGPU
from tests.app.serving import Server, await_page, free_port

_QUESTION = "a dog"
Json = dict[str, Any]


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
    space, interpreter = (Path(argument).absolute() for argument in sys.argv[1:])
    info, hits = start_and_ask(space, str(interpreter))
    print(f'{info["pack"]["title"]} on {info["device"]}: {len(hits)} hits for "{_QUESTION}"')
