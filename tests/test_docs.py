"""The documents are true: links, named files, examples and limits."""

import doctest
import importlib
import re
import shutil
from pathlib import Path

import pytest

from polyview.app import access, gradio_queue
from polyview.app.api import adapter
from polyview.app.gallery import scan
from polyview.app.packs.state import MAX_FOLDERS, MAX_RETRIEVERS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
CODE = ("polyview", "app", "models", "export", "training", "benchmarks")
ROOMS = (*CODE, "tests", "docs")
SOURCES = [path for folder in CODE[:5] for path in sorted((ROOT / folder).rglob("*.py"))]
EXAMPLES = [path.relative_to(ROOT) for path in SOURCES if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    links = [item for item in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in item]
    places = [document.parent / item for item in links]
    if document.name != "CHANGELOG.md":  # which names what was
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


def test_the_limits_are_those_that_the_page_states() -> None:
    page = " ".join((ROOT / "docs/deploy.md").read_text("utf-8").split())
    each = f"{gradio_queue.MAX_UNFETCHED_EACH} per client that are younger than"
    for limit in (
        f"{access.RATE:g} a second, burst {access.BURST:g}, {access.MAX_OPEN} open",
        f"| {adapter.MAX_WAITING}; at most one per core",
        f"| {gradio_queue.MAX_UNFETCHED}; {each} {gradio_queue.UNFETCHED_SECONDS:g} s",
        f"| {MAX_RETRIEVERS}; {MAX_FOLDERS} |",
        f"over {scan.MAX_ENTRIES:,} entries",
    ):
        assert limit in page, limit
