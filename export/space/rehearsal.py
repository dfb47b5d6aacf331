"""Starts a Space's folder as the Hub would: `python -m export.space.rehearsal DIR`.

A clean virtual environment of the Python that the front matter names, in it what the folder wants
and what the Hub adds, then the app with the variables of a Space, a question, and the answer. For
ZeroGPU its device server is played, and must have been told that the app can borrow a GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load

from export.space.conversation import SpaceError, ask, await_page, device_server, free_port
from export.space.requirements import ZEROGPU

# What the Hub installs beside a Space's own requirements.
_ADDED = ("gradio[oauth,mcp]=={}", "uvicorn>=0.14.0", "websockets>=10.4", "spaces")
_QUESTION = "a dog"


@dataclass(frozen=True)
class Heard:
    """What a started Space answered.

    Attributes:
        seconds: from its start to its first page.
        info: of /info, once all pictures were searchable.
        hits: of a search.
        reported: whether it told ZeroGPU's device server that it can borrow a GPU.
    """

    seconds: float
    info: dict[str, Any]
    hits: list[dict[str, Any]]
    reported: bool


def install(folder: Path, python: str, venv: Path, index: str | None = None) -> str:
    """Makes a virtual environment with all that the Hub would install.

    Args:
        folder: a Space's.
        python: the interpreter to make it of.
        venv: where; what is there is used again.
        index: the address of an extra package index.

    Returns:
        Its interpreter.

    Raises:
        SpaceError: the interpreter has another version, or pip failed.
    """
    front = _read_front(folder)
    found = _run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    if found != str(front["python_version"]):
        raise SpaceError(
            f"{python} is Python {found}, but the Space wants {front['python_version']}; "
            "name another with --python"
        )
    if not (venv / "bin" / "python").is_file():
        _run([python, "-m", "venv", str(venv)])
    own = str((venv / "bin" / "python").absolute())
    added = [name.format(front["sdk_version"]) for name in _ADDED]
    extra = ["--extra-index-url", index] if index is not None else []
    wanted = ["-r", str(folder / "requirements.txt"), *added]
    _run([own, "-m", "pip", "install", "--quiet", *extra, *wanted])
    _run([own, "-m", "pip", "check"])
    return own


def start_and_ask(folder: Path, python: str, installed: bool = True) -> Heard:
    """Starts the app of a Space with the Hub's variables, asks it, and ends it.

    Args:
        folder: a Space's; nothing is written into it.
        python: an interpreter that has what the app needs.
        installed: whether it also has what the Hub adds, as after `install`; gradio then does all
            that it does in a Space.

    Raises:
        SpaceError: it does not start, or does not answer as it should.
    """
    front = _read_front(folder)
    with tempfile.TemporaryDirectory() as place, device_server() as (device_url, told):
        variables = {"SYSTEM": "spaces"} if installed else {}
        if front["suggested_hardware"] == ZEROGPU:
            variables |= {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": device_url}
        command, began = [python, str(front["app_file"])], time.monotonic()
        with _running(command, folder, Path(place), variables) as url:
            seconds = time.monotonic() - began
            info = ask(url, "info")[0]
            deadline = time.monotonic() + 300
            while info["gallery"]["state"] != "ready":
                if info["gallery"]["state"] == "failed" or time.monotonic() > deadline:
                    raise SpaceError(f"its pictures cannot be searched: {info['gallery']}")
                time.sleep(0.3)
                info = ask(url, "info")[0]
            method = next(iter(info["methods"]))
            found = ask(url, "search_text", _QUESTION, method, 3, None)[0]
            if "hits" not in found:
                raise SpaceError(f'it does not search for "{_QUESTION}": {found}')
        return Heard(seconds, info, found["hits"], "/startup-report" in told)


@contextmanager
def _running(
    command: Sequence[str], folder: Path, place: Path, variables: Mapping[str, str]
) -> Iterator[str]:
    """The app as a process; gives its address once it has a page."""
    port = free_port()
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
    url, said = f"http://127.0.0.1:{port}", place / "log.txt"
    with said.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        await_page(url, process, said)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_front(folder: Path) -> dict[str, Any]:
    readme = folder / "README.md"
    front = metadata_load(readme) if readme.is_file() else None
    wanted = ("python_version", "sdk_version", "app_file", "suggested_hardware")
    if front is None or any(key not in front for key in wanted):
        raise SpaceError(f"{folder} is no Space made by python -m export.space; make it first")
    return front


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SpaceError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise SpaceError(f"{' '.join(command)} failed:\n{said}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m export.space.rehearsal",
        description="Install and start a Space's folder as the Hub would, and ask it.",
    )
    parser.add_argument("folder", type=Path, help="what python -m export.space made")
    parser.add_argument("--python", default="python3.12", help="default: python3.12")
    parser.add_argument("--venv", type=Path, help="keep the environment there, for the next time")
    parser.add_argument("--index", metavar="URL", help="an extra package index")
    given = parser.parse_args(argv)
    folder, begun = given.folder.absolute(), time.monotonic()
    venv = given.venv or Path(tempfile.mkdtemp(prefix="polyview-space-"))
    try:
        python = install(folder, given.python, venv, given.index)
        print(f"installed in {time.monotonic() - begun:.0f} s", flush=True)
        heard = start_and_ask(folder, python)
        on_zerogpu = _read_front(folder)["suggested_hardware"] == ZEROGPU
        if on_zerogpu and not heard.reported:
            raise SpaceError("it declared no function for ZeroGPU, which would end it")
    except SpaceError as error:
        print(f"the Space does not work: {error}", file=sys.stderr)
        return 1
    finally:
        if given.venv is None:
            shutil.rmtree(venv, ignore_errors=True)
    gallery = heard.info["gallery"]
    print(
        f"first page after {heard.seconds:.1f} s; {heard.info['pack']['title']} on "
        f"{heard.info['device']} ({', '.join(heard.info['providers'])}), "
        f'{gallery["searchable"]} pictures; {len(heard.hits)} hits for "{_QUESTION}"'
        + ("; ZeroGPU was told of a function" if heard.reported else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
