"""Starts a Space's folder as the Hub would: `python -m tests.export.rehearsal DIR`.

A clean virtual environment of the Python that the front matter names, in it what the folder wants
and what the Hub adds, then the app with the variables of a Space, a question, and the answer. For
ZeroGPU its device server is played, and must have been told that the app can borrow a GPU.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import metadata_load

from polyview.export.space import ZEROGPU
from tests.app.serving import Server, await_page, free_port

# What the Hub installs beside a Space's own requirements.
_ADDED = ("gradio[oauth,mcp]=={}", "uvicorn>=0.14.0", "websockets>=10.4", "spaces")
_QUESTION = "a dog"


@dataclass(frozen=True)
class Heard:
    """The answers of a started Space."""

    seconds: float  # from its start to its first page
    info: dict[str, Any]  # of /info, once all images were searchable
    hits: list[dict[str, Any]]  # of a search
    reported: bool  # whether it told ZeroGPU's device server that it can borrow a GPU


def install(folder: Path, python: str, venv: Path, index: str | None = None) -> str:
    """Makes a virtual environment with all that the Hub would install; returns its interpreter.

    Args:
        folder: a Space's.
        python: the interpreter to make it of.
        venv: where; what is there is used again.
        index: the address of an extra package index.
    """
    front = metadata_load(folder / "README.md") or {}
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.check_output([python, "-c", code], text=True).strip()
    required = front["python_version"]
    assert version == str(required), f"{python} is Python {version}, but the Space wants {required}"
    own = str((venv / "bin" / "python").absolute())
    if not Path(own).is_file():
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
    added = [name.format(front["sdk_version"]) for name in _ADDED]
    extra = ["--extra-index-url", index] if index is not None else []
    pip, needs = [own, "-m", "pip"], ["-r", str(folder / "requirements.txt"), *added]
    subprocess.run([*pip, "install", "--quiet", *extra, *needs], check=True)
    subprocess.run([*pip, "check"], check=True)
    return own


def start_and_ask(folder: Path, python: str, installed: bool = True) -> Heard:
    """Starts the app of a Space with the Hub's variables, asks it, and ends it.

    Args:
        folder: a Space's; nothing is written into it.
        python: an interpreter that has what the app needs.
        installed: whether it also has what the Hub adds, as after `install`; gradio then does all
            that it does in a Space.
    """
    front = metadata_load(folder / "README.md") or {}
    with tempfile.TemporaryDirectory() as place, _device_server() as (device_url, reports):
        variables = {"SYSTEM": "spaces"} if installed else {}
        if front["suggested_hardware"] == ZEROGPU:
            variables |= {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": device_url}
        began = time.monotonic()
        with _running([python, front["app_file"]], folder, Path(place), variables) as server:
            seconds = time.monotonic() - began
            server.await_stage("ready")
            info = server.get("info")
            hits = server.get("search", q=_QUESTION, k=3)["hits"]
        return Heard(seconds, info, hits, "/startup-report" in reports)


@contextmanager
def _running(
    command: Sequence[str], folder: Path, place: Path, variables: Mapping[str, str]
) -> Iterator[Server]:
    """The app as a process, once it has a page."""
    port, log = free_port(), place / "log.txt"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **variables,
        "SPACE_ID": "owner/rehearsal",
        "GRADIO_SERVER_NAME": "127.0.0.1",  # on the Hub 0.0.0.0, within a container
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_TEMP_DIR": str(place / "gradio"),
        "POLYVIEW_CACHE": str(place / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}"
        await_page(url, process, log, 300)
        http = httpx.Client(base_url=f"{url}/api/v1", timeout=60)
        yield Server(url, log, process.pid, http)
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def _device_server() -> Iterator[tuple[str, list[str]]]:
    """ZeroGPU's device server as far as a start needs it: its address, and what it was told."""
    reports: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reports.append(self.path.partition("?")[0])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Keeps quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", reports
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    """Runs the command line; fails where the Space does."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.export.rehearsal",
        description="Install and start a Space's folder as the Hub would, and ask it.",
    )
    parser.add_argument("folder", type=Path, help="what python -m polyview space made")
    parser.add_argument("--python", default="python3.12", help="default: python3.12")
    parser.add_argument("--venv", type=Path, help="keep the environment there, for the next time")
    parser.add_argument("--index", metavar="URL", help="an extra package index")
    arguments = parser.parse_args()
    folder, begun = arguments.folder.absolute(), time.monotonic()
    venv = arguments.venv or Path(tempfile.mkdtemp(prefix="polyview-space-"))
    try:
        python = install(folder, arguments.python, venv, arguments.index)
        print(f"installed in {time.monotonic() - begun:.0f} s", flush=True)
        heard = start_and_ask(folder, python)
    except (AssertionError, OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"the Space does not work: {error}")
    finally:
        if arguments.venv is None:
            shutil.rmtree(venv, ignore_errors=True)
    on_zerogpu = (metadata_load(folder / "README.md") or {})["suggested_hardware"] == ZEROGPU
    if on_zerogpu and not heard.reported:
        sys.exit("the Space does not work: it declared no function for ZeroGPU, which would end it")
    gallery = heard.info["gallery"]
    print(
        f"first page after {heard.seconds:.1f} s; {heard.info['pack']['title']} on "
        f"{heard.info['device']} ({', '.join(heard.info['providers'])}), "
        f'{gallery["searchable"]} images; {len(heard.hits)} hits for "{_QUESTION}"'
        + ("; ZeroGPU was told of a function" if heard.reported else "")
    )


if __name__ == "__main__":
    main()
