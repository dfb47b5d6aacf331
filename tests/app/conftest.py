"""Tiny packs with random weights, galleries of drawn images, and running apps."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, sync_playwright

from polyview.app.explain.evidence import to_maps
from polyview.app.gallery.indexing import Index, Progress
from polyview.app.gallery.scan import from_pack
from polyview.app.search.hits import Hit
from polyview.app.search.retriever import Retriever, Term
from polyview.app.settings import BUNDLED
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import Labels
from polyview.export.runtime import Runtime
from polyview.export.to_onnx import export_runs
from tests.app.many import write_many
from tests.app.serving import Serve, Server, servers
from tests.conftest import SERVERS, made_once, shared_root
from tests.export.conftest import edited, write_backbone, write_run

RED, GREEN, BLUE, PINK = (214, 48, 49), (39, 174, 96), (41, 98, 255), (255, 105, 180)
COLOURS = {"red": RED, "green": GREEN, "blue": BLUE, "pink": PINK}
SHAPES = ("circle", "square", "bar")
IMAGES = 24
# markup and templates: a page that shows this caption unescaped runs or changes it
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> {{1+1}} ${1+1} <b>bold</b>"
LABELS = Labels("shapes", "Shapes <b>", "Apache-2.0", "drawn here", "Random weights, for tests.")


def draw(index: int) -> tuple[Image.Image, list[str]]:
    """Draws image number `index`; also returns the names of its two shapes."""
    image = Image.new("RGB", (96, 72), [(225, 236, 244), (244, 238, 220), (30, 39, 60)][index % 3])
    pen = ImageDraw.Draw(image)
    names = []
    for place in range(2):
        colour = list(COLOURS)[(index + place) % len(COLOURS)]
        shape = SHAPES[(index // 4 + place) % len(SHAPES)]
        left, top = 8 + 44 * place, 12 + index % 5 * 4
        box = (left, top, left + 34, top + (12 if shape == "bar" else 34))
        (pen.ellipse if shape == "circle" else pen.rectangle)(box, fill=COLOURS[colour])
        names.append(f"{colour} {shape}")
    return image, names


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The file of an image in a format of Pillow."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write_gallery(folder: Path) -> Path:
    """Writes a gallery of drawn images with two captions each; the first has a hostile third."""
    (folder / "images").mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    for i in range(IMAGES):
        image, (first, second) = draw(i)
        image.save(folder / f"images/test-{i:06}.webp", lossless=True)
        texts = [f"a {first} beside a {second}", f"a picture of a {second}"]
        objects = [{"name": name, "box": [0.1, 0.1, 0.9, 0.9]} for name in (first, second)]
        entry = {"file": f"images/test-{i:06}.webp", "objects": objects}
        entries.append({**entry, "captions": [{"text": text} for text in texts]})
    entries[0]["captions"].append({"text": HOSTILE})
    content = {"split": "test", "world": "shapes", "images": entries}
    (folder / "gallery.json").write_text(json.dumps(content))
    return folder


@cache
def bundled_runtime(name: str) -> Runtime:
    """Loads a bundled pack without checking its SHA-256s; nobody may change it."""
    return Runtime(load_info(BUNDLED / name, verify=False), "cpu")


def filled(runtime: Runtime, pack: Path, cache: Path) -> Retriever:
    """A retriever over the pack's own gallery, which has been read."""
    retriever = Retriever(runtime, from_pack(pack), cache)
    finish(retriever.index)
    assert str(retriever.index.progress) == f"{IMAGES} images ready"
    return retriever


@pytest.fixture(scope="session")
def tiny_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of two methods with random weights, the same in every run; nobody may change it."""

    def make(work: Path) -> None:
        torch.manual_seed(0)
        backbone = write_backbone(work / "backbone")
        captions = [f"a {name} beside a picture of" for i in range(IMAGES) for name in draw(i)[1]]
        names = ("vsepp", "vse_infty")
        runs = [write_run(work / name, name, backbone, captions) for name in names]
        export_runs(work / "pack", backbone, runs, LABELS, write_gallery(work / "gallery"))

    return made_once(tmp_path_factory, "tiny", make) / "pack"


@pytest.fixture(scope="session")
def many_pack(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of six methods, and images with masks, boxes and facts; nobody may change it."""

    def make(work: Path) -> None:
        write_many(tiny_pack, work / "pack")

    return made_once(tmp_path_factory, "many", make) / "pack"


@pytest.fixture(scope="session")
def runtime(tiny_pack: Path) -> Runtime:
    return Runtime.load(tiny_pack, "cpu")


@pytest.fixture(scope="session")
def retriever(
    runtime: Runtime, tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory
) -> Retriever:
    """A filled retriever over the tiny pack's own gallery; nobody may change it."""
    return filled(runtime, tiny_pack, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def unread(runtime: Runtime, tiny_pack: Path, tmp_path: Path) -> Retriever:
    """A retriever over the tiny pack's own gallery, before reading."""
    return Retriever(runtime, from_pack(tiny_pack), tmp_path)


@pytest.fixture(scope="session")
def many_retriever(many_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """A filled retriever over the pack of six methods; nobody may change it."""
    return filled(Runtime.load(many_pack, "cpu"), many_pack, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def bundled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of the bundled packs, which all processes of a test run share."""
    return shared_root(tmp_path_factory) / "bundled"


@pytest.fixture(scope="session")
def group_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, bundled_cache: Path
) -> Iterator[Serve]:
    """Starts the server of a test group, which runs until the group's last test has ended."""
    with servers(lambda: tmp_path_factory.mktemp("server")) as start:

        def start_for(group: str, *arguments: str | Path) -> Server:
            server = start(*arguments, POLYVIEW_CACHE=str(bundled_cache))
            pytestconfig.stash.setdefault(SERVERS, {})[group] = server.process
            return server

        yield start_for


@pytest.fixture(scope="session")
def bundled(group_server: Serve) -> Server:
    """`python app/main.py` without arguments."""
    return group_server("bundled")


@pytest.fixture(scope="session")
def private(group_server: Serve, many_pack: Path) -> Server:
    """The private app over the pack of six methods, with MCP."""
    return group_server("private", "--pack", many_pack, "--mcp")


@pytest.fixture(scope="session")
def scenes(bundled_cache: Path) -> Retriever:
    """A retriever over the bundled scenes, with the first captions; nobody may change it."""
    retriever = Retriever(bundled_runtime("scenes"), from_pack(BUNDLED / "scenes"), bundled_cache)

    def stop(progress: Progress) -> None:
        if progress.stage == "captions":  # encoding all of them takes 20 s
            retriever.index.stop()

    retriever.index.start(stop)
    assert retriever.index.wait(200)
    assert retriever.index.complete
    return retriever


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts `python app/main.py` with arguments and waits until all images are searchable."""
    with servers(lambda: tmp_path_factory.mktemp("server")) as start:
        yield start


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium: the file in CHROMIUM, or one on the PATH."""
    # the shell loads a page with half the work: it draws no window around it
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    file = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if file is None:
        pytest.fail(
            "the browser tests need Chromium: install it (apt-get install chromium-headless-shell) "
            "or set CHROMIUM to its file; to leave them out, run pytest -m 'not browser'"
        )
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=file, args=flags)
        yield browser
        browser.close()


def variant(pack: Path, folder: Path, max_length: int, title: str = "Variant") -> Path:
    """A copy of a pack with another checksum and title."""
    shutil.copytree(pack, folder)
    with edited(folder / "pack.json") as manifest:
        manifest["tokenizer"]["max_length"] = max_length
        manifest["title"] = title
    return folder


def find(retriever: Retriever, text: str, method: str, k: int) -> list[Hit]:
    """The best images for a sentence."""
    return retriever.search([Term(text)], method, k).hits


def maps_of(retriever: Retriever, image: int, name: str) -> np.ndarray:
    """The attention maps (V, rows, columns) of an image."""
    attention = retriever.views([image], name, attention=True).attention
    assert attention is not None
    adds_up = retriever.methods[name].attention_sums_to_one
    return to_maps(retriever, attention, [image], adds_up)[0].cpu().numpy()


def finish(index: Index, watch: Callable[[Progress], None] | None = None) -> Index:
    """Starts an index and waits until all images and captions are read."""
    index.start(watch)
    assert index.wait(60)
    return index
