"""Documents: links, files, examples, walks through the code, and limits."""

import doctest
import importlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from polyview.app import access, gradio_queue
from polyview.app.api import adapter
from polyview.app.gallery import scan
from polyview.app.packs.state import MAX_FOLDERS, MAX_RETRIEVERS, AppState
from polyview.app.server import build
from polyview.app.settings import Settings
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.trainer import Trainer
from tests.app.conftest import finish
from tests.training.conftest import make_features

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
CODE = ("polyview", "app", "models", "export", "training", "benchmarks")
ROOMS = (*CODE, "tests", "docs")
SOURCES = [path for folder in CODE[:5] for path in sorted((ROOT / folder).rglob("*.py"))]
EXAMPLES = [path.relative_to(ROOT) for path in SOURCES if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_linked_and_named_files_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    links = [item for item in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in item]
    places = [document.parent / item for item in links]
    if document.name != "CHANGELOG.md":  # which names former files
        places += [ROOT / f for f in re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./]+)`", text)]
    assert not [place for place in places if not place.exists()]


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_examples_in_docstrings(path: Path) -> None:
    name = ".".join(path.with_suffix("").parts).removeprefix("polyview.")
    result = doctest.testmod(importlib.import_module(f"polyview.{name}".removesuffix(".__init__")))
    assert result.attempted
    assert not result.failed


def test_the_readme_s_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 150
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    folder = tmp_path / "Pictures"
    folder.mkdir()
    for image in sorted((ROOT / "app/bundled/scenes/gallery/images").iterdir())[:6]:
        shutil.copyfile(image, folder / image.name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "kept"))
    exec(code, {})
    scores = [float(line.split(" ", 1)[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)


def test_the_walks_name_all_files_on_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "gallery"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (40 + i, 40), (80 * i, 20, 200)).save(folder / f"{i}.bmp")
    state = AppState(Settings(device="cpu", gallery=folder), tmp_path / "cache")
    app = TestClient(build(Settings(device="cpu"), state), client=("127.0.0.1", 1))
    url = "http://127.0.0.1/api/v1/search?method=mv_vse&k=2&q="
    check_walk("An image", lambda: finish(state.first.index))
    assert app.get(f"{url}cat").status_code == 200  # the first query also loads models
    check_walk("A text query", lambda: app.get(f"{url}dog"))
    config = TrainConfig(method="mv_vse", batch_size=8, arguments={"embed_dim": 8})
    trainer = Trainer(config, make_features(12, 0), make_features(4, 1), tmp_path / "run")
    check_walk("A training batch", lambda: trainer.step(next(iter(trainer.batches(0))), 0))


def check_walk(walk: str, act: Callable[[], Any]) -> None:
    """Compares a table of docs/architecture.md with the files whose functions `act` calls."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = (os.path.relpath(file, ROOT) for file in files if file.startswith(f"{ROOT}{os.sep}"))
    # without a virtual environment in the checkout
    passed = {file for file in ours if Path(file).parts[0] in CODE}
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = re.split(r"^## ", text.partition(f"\n## {walk}\n")[2], flags=re.MULTILINE)[0]
    named = set(re.findall(r"^\| `([\w/]+\.py)`", section, re.MULTILINE))
    assert named <= passed, f"not called: {sorted(named - passed)}"
    # all methods of a pack encode an image; the table names the file of one
    others = {file for file in passed - named if not file.startswith("models/")}
    assert not others, f"not named: {sorted(others)}"


def test_the_page_on_deployment_states_the_limits() -> None:
    page = " ".join((ROOT / "docs/deploy.md").read_text("utf-8").split())
    age, each = gradio_queue.UNFETCHED_SECONDS, gradio_queue.MAX_UNFETCHED_PER_CLIENT
    for limit in (
        f"| {access.RATE:g} per second, with bursts of up to {access.BURST:g} after idling |",
        f"| open requests per client | {access.MAX_OPEN} |",
        f"| waiting and running requests | {adapter.MAX_WAITING} |",
        f"| unfetched answers in Gradio's queue | {gradio_queue.MAX_UNFETCHED} |",
        f"| unfetched answers per client, younger than {age:g} s | {each} |",
        f"| collections in memory, without uploads | {MAX_RETRIEVERS} |",
        f"| folders and archives that the owner opened | {MAX_FOLDERS} |",
        f"over {scan.MAX_ENTRIES:,} entries",
    ):
        assert limit in page, limit
