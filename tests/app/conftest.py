"""Tiny packs with random weights, galleries of drawn images, and running apps."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import describe_file, load_info, summarize_gallery, write_info
from polyview.export.pack.schema import Labels
from polyview.export.runtime import Runtime
from polyview.export.to_onnx import export_runs
from polyview.models import build
from polyview.models.checkpoint import save_tensors
from tests.app.serving import PATIENCE, Serve, Server, await_page, free_port
from tests.conftest import SERVERS, made_once, shared_root
from tests.export.conftest import edited, settle, write_backbone, write_run

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
RED, GREEN, BLUE, PINK = (214, 48, 49), (39, 174, 96), (41, 98, 255), (255, 105, 180)
COLOURS = {"red": RED, "green": GREEN, "blue": BLUE, "pink": PINK}
SHAPES = ("circle", "square", "bar")
IMAGES = 24
WIDTH, HEIGHT = 96, 72  # of drawn images
# markup and templates: a page that shows this caption unescaped runs or changes it
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> {{1+1}} ${1+1} <b>bold</b>"
# arguments of the methods that `many_pack` adds, each with several views
ADDED: dict[str, dict[str, Any]] = {
    "mv_vse": {"embed_dim": 16, "views": 3},
    "pvse": {"embed_dim": 16, "views": 2},
    "avse": {"embed_dim": 16, "views": 2, "block_dim": 4, "temperature": 0.2},
    "mvam": {"embed_dim": 8, "views": 16, "code_space": "view"},
}
SETTINGS = ("sky", "sand", "dusk")  # of the backgrounds, in turn
LABELS = Labels("shapes", "Shapes <b>", "Apache-2.0", "drawn here", "Random weights, for tests.")


def draw(index: int) -> tuple[Image.Image, list[str]]:
    """Draws image number `index`; also returns the names of its two shapes."""
    background = [(225, 236, 244), (244, 238, 220), (30, 39, 60)][index % 3]
    image = Image.new("RGB", (WIDTH, HEIGHT), background)
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


def write_truth(gallery: Path) -> None:
    """Adds masks, boxes, mentions, facts and right images to a gallery of drawn images."""
    (gallery / "masks").mkdir()
    with edited(gallery / "gallery.json") as content:
        texts = [[c["text"] for c in image["captions"]] for image in content["images"]]
        for index, image in enumerate(content["images"]):
            image |= {"setting": SETTINGS[index % 3], "time": "night" if index % 4 == 0 else None}
            for caption in image["captions"]:
                relevant = [row for row, own in enumerate(texts) if caption["text"] in own]
                caption["relevant"] = relevant
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            for place, entry in enumerate(image["objects"]):
                left, top = 8 + 44 * place, 12 + index % 5 * 4  # as in `draw`
                mask[top : top + 35, left : left + 35] = place + 1
                right, bottom = (left + 35) / WIDTH, (top + 35) / HEIGHT
                entry["box"] = [left / WIDTH, top / HEIGHT, right, bottom]
            image["mask"] = f"masks/test-{index:06}.png"
            Image.fromarray(mask).save(gallery / image["mask"])
            for caption, mentions in zip(image["captions"], ([0, 1], [1]), strict=False):
                caption["mentions"] = mentions


def write_many(tiny_pack: Path, folder: Path) -> None:
    """Writes a copy of the tiny pack with more heads, which share its text encoder."""
    shutil.copytree(tiny_pack, folder)
    write_truth(folder / "gallery")
    info = load_info(tiny_pack)
    like = info.methods["vse_infty"]
    methods, files = dict(info.methods), dict(info.files)
    for seed, (name, arguments) in enumerate(ADDED.items()):
        torch.manual_seed(seed)
        method = settle(build(name, like.image_dim, like.text_dim, arguments))
        with torch.no_grad():
            for weight in method.parameters():
                weight.mul_(3)  # otherwise attention is nearly uniform
        head = f"{name}/head.safetensors"
        (folder / name).mkdir()
        save_tensors(folder / head, method.state_dict(), {"kind": "head", "method": name})
        methods[name] = replace(like, arguments=arguments, head=head)
        files[head] = describe_file(folder / head)
    files["gallery/gallery.json"] = describe_file(folder / "gallery/gallery.json")
    info = replace(info, folder=folder, methods=methods, files=files)
    write_info(replace(info, gallery=summarize_gallery(load_gallery(folder))))


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
    root = made_once(tmp_path_factory, "many", lambda root: write_many(tiny_pack, root / "pack"))
    return root / "pack"


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


@contextmanager
def servers(new_folder: Callable[[], Path]) -> Iterator[Serve]:
    """Yields a function that starts the app and, by default, waits until images are searchable."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str | Path, wait: bool = True, **variables: str) -> Server:
        folder, port = new_folder(), free_port()
        log = folder / "log.txt"
        environment = {**os.environ, "POLYVIEW_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
        environment |= {"TMPDIR": str(folder), **variables}
        command = [sys.executable, str(MAIN), "--port", str(port), "--device", "cpu"]
        command += map(str, arguments)
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
        running.append(process)
        url = f"http://127.0.0.1:{port}"
        server = Server(url, log, process.pid)
        await_page(url, process, log)
        if wait:
            server.await_stage("ready")
        return server

    try:
        yield start
    finally:
        for process in running:
            process.terminate()
        codes = {process.wait(PATIENCE) for process in running}
        assert codes <= {0, -signal.SIGKILL}, f"an app ended with {codes}"


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
