"""A tiny pack with random weights and drawn pictures, and the app served over it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client, handle_file
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, sync_playwright

from app.collection import from_pack
from app.retriever import Retriever
from export.runtime import Runtime
from export.to_onnx import Labels, build_pack
from tests.app.many import many_pack, many_retriever, many_server  # noqa: F401
from tests.export.conftest import write_backbone, write_run

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "app" / "main.py"
COLOURS = {
    "red": (214, 48, 49),
    "green": (39, 174, 96),
    "blue": (41, 98, 255),
    "pink": (255, 105, 180),
}
SHAPES = ("circle", "square", "bar")
PICTURES = 24
SETTINGS = ("sky", "sand", "dusk")  # of the pictures' backgrounds, in turn
# A caption that would run, or be changed, wherever it is not shown as plain text.
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> {{1+1}} ${1+1} <b>bold</b>"
LABELS = Labels("shapes", "Shapes <b>", "Apache-2.0", "drawn here", "Random weights, for tests.")


@dataclass(frozen=True)
class Server:
    """The app, running as `python app/main.py`.

    Attributes:
        url: its address.
        log: what it printed.
        effort: seconds that it computed before its first page came; on an idle machine the page
            takes no longer, and on a busy one this does not grow.
    """

    url: str
    log: Path
    effort: float

    @cached_property
    def _client(self) -> Client:
        return Client(self.url, verbose=False)

    def ask(self, endpoint: str, *values: Any) -> dict[str, Any]:
        """What a named endpoint answers."""
        return self._client.predict(*values, api_name=f"/{endpoint}")

    def ask_picture(self, path: Path, method: str = "vsepp", k: int = 3) -> dict[str, Any]:
        """What /search_image answers about a file of ours."""
        return self.ask("search_image", handle_file(path), method, k)

    def ready(self) -> dict[str, Any]:
        """What /info says once everything is searchable."""
        deadline = time.monotonic() + 120
        while (info := self.ask("info"))["gallery"]["state"] not in ("ready", "failed"):
            assert time.monotonic() < deadline, info["gallery"]
            time.sleep(0.3)
        return info


def draw(index: int) -> tuple[Image.Image, list[str]]:
    """Picture number `index` and the names of the two things in it."""
    picture = Image.new(
        "RGB", (96, 72), [(225, 236, 244), (244, 238, 220), (30, 39, 60)][index % 3]
    )
    pen = ImageDraw.Draw(picture)
    names = []
    for place in range(2):
        colour = list(COLOURS)[(index + place) % len(COLOURS)]
        shape = SHAPES[(index // 4 + place) % len(SHAPES)]
        left, top = 8 + 44 * place, 12 + index % 5 * 4
        box = (left, top, left + 34, top + (12 if shape == "bar" else 34))
        (pen.ellipse if shape == "circle" else pen.rectangle)(box, fill=COLOURS[colour])
        names.append(f"{colour} {shape}")
    return picture, names


def write_gallery(folder: Path) -> Path:
    """A pack's gallery of drawn pictures, two captions each; the last caption is hostile."""
    (folder / "images").mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    for i in range(PICTURES):
        picture, (first, second) = draw(i)
        picture.save(folder / f"images/test-{i:06}.webp", lossless=True)
        texts = [f"a {first} beside a {second}", f"a picture of a {second}"]
        objects = [{"name": name, "box": [0.1, 0.1, 0.9, 0.9]} for name in (first, second)]
        captions = [{"text": text} for text in texts]
        entries.append(
            {"file": f"images/test-{i:06}.webp", "captions": captions, "objects": objects}
        )
    entries[0]["captions"].append({"text": HOSTILE})
    content = {"split": "test", "world": "shapes", "images": entries}
    (folder / "gallery.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def tiny_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of two methods; nobody may change it."""
    work = tmp_path_factory.mktemp("tiny")
    backbone = write_backbone(work / "backbone")
    captions = [f"a {name} beside a picture of" for i in range(PICTURES) for name in draw(i)[1]]
    runs = [write_run(work / name, name, backbone, captions) for name in ("vsepp", "vse_infty")]
    build_pack(work / "pack", backbone, runs, LABELS, write_gallery(work / "gallery"))
    return work / "pack"


@pytest.fixture(scope="session")
def views_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with a method of several views, and pictures with facts; nobody may change it."""
    work = tmp_path_factory.mktemp("views")
    backbone = write_backbone(work / "backbone")
    captions = [f"a {name} beside a picture of" for i in range(PICTURES) for name in draw(i)[1]]
    runs = [write_run(work / name, name, backbone, captions) for name in ("vse_infty", "mv_vse")]
    gallery = write_gallery(work / "gallery")
    content = json.loads((gallery / "gallery.json").read_text())
    written = [[c["text"] for c in image["captions"]] for image in content["images"]]
    for i, image in enumerate(content["images"]):
        image |= {"setting": SETTINGS[i % 3], "time": "night" if i % 4 == 0 else None}
        for caption in image["captions"]:
            caption["relevant"] = [j for j, own in enumerate(written) if caption["text"] in own]
    (gallery / "gallery.json").write_text(json.dumps(content))
    build_pack(work / "pack", backbone, runs, LABELS, gallery)
    return work / "pack"


@pytest.fixture(scope="session")
def views_retriever(views_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """A filled retriever over the pack with several views; nobody may change it."""
    runtime, cache = Runtime.load(views_pack, "cpu"), tmp_path_factory.mktemp("cache")
    retriever = Retriever(runtime, from_pack(views_pack), cache)
    retriever.index.start()
    assert retriever.index.wait(60)
    return retriever


@pytest.fixture(scope="session")
def views_server(serve: Serve, views_pack: Path) -> Server:
    """The app over the pack with several views, ready to search."""
    server = serve("--pack", views_pack)
    server.ready()
    return server


@pytest.fixture(scope="session")
def runtime(tiny_pack: Path) -> Runtime:
    return Runtime.load(tiny_pack, "cpu")


@pytest.fixture(scope="session")
def retriever(
    runtime: Runtime, tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory
) -> Retriever:
    """A filled retriever over the tiny pack's own gallery; nobody may change it."""
    retriever = Retriever(runtime, from_pack(tiny_pack), tmp_path_factory.mktemp("cache"))
    retriever.index.start()
    assert retriever.index.wait(60)
    assert str(retriever.index.progress) == f"{PICTURES} pictures ready"
    return retriever


Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts `python app/main.py` with arguments and waits for its first page."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str | Path) -> Server:
        folder = tmp_path_factory.mktemp("server")
        port = _free_port()
        command = [sys.executable, MAIN, "--port", port, "--device", "cpu", *arguments]
        environment = {
            **os.environ,
            "POLYVIEW_CACHE": str(folder / "cache"),
            "GRADIO_TEMP_DIR": str(folder / "gradio"),
            "HF_HUB_OFFLINE": "1",
        }
        log = folder / "log.txt"
        started = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        running.append(process)
        url = f"http://127.0.0.1:{port}"
        _await_page(url, process, log)
        return Server(url, log, _effort(process.pid, started))

    yield start
    for process in running:
        process.terminate()
    for process in running:
        process.wait(20)


@pytest.fixture(scope="session")
def server(serve: Serve, tiny_pack: Path) -> Server:
    """The app over the tiny pack, ready to search."""
    server = serve("--pack", tiny_pack)
    server.ready()
    return server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield browser
        browser.close()


def ignore_progress(done: int, total: int) -> None:
    """For `Index.add` where nobody watches."""
    assert 0 <= done <= total


def chromium() -> str:
    """The browser's file: from CHROMIUM, or found on the PATH."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(
            "the browser tests need Chromium: install it (apt-get install chromium) or point "
            "CHROMIUM at it; to leave them out, run pytest -m 'not browser'"
        )
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_page(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the app ended:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                assert page.status == 200
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    pytest.fail(f"no page within 90 s:\n{log.read_text()}")


def _effort(process: int, started: float) -> float:
    """Seconds that a process has computed so far, in all its threads together."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.is_file():  # not Linux: what passed on the clock is the most it can have computed
        return time.monotonic() - started
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
