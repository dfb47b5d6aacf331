"""The folder of a Space: its files, its requirements, and its start.

`python -m tests.export.test_space FOLDER PYTHON` starts a folder as the Hub would (`make
space-check`). PYTHON has the packages that the Hub installs.
"""

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import metadata_load
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from polyview.export.pack.reading import list_files, load_info
from polyview.export.pack.validation import PackError
from polyview.export.space import CODE, ROOT, ZEROGPU, build_space, main
from tests.app.serving import Server, await_page, free_port

pytestmark = pytest.mark.slow
MACHINE = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.12"}
HARDWARE = {  # hardware -> its requirements among onnxruntime, onnxruntime-gpu and spaces
    "cpu-basic": {"onnxruntime"},
    "t4-small": {"onnxruntime-gpu"},
    "zero-a10g": {"onnxruntime", "spaces"},
}
QUESTION = "a dog"
Json = dict[str, Any]


@pytest.fixture
def root(pack: Path, tmp_path: Path) -> Path:
    """A repository of a few files; its pack `scenes` is the pack of `conftest.py`."""
    root = tmp_path / "repository"
    for folder in CODE:
        (root / folder / "__pycache__").mkdir(parents=True)
        (root / folder / "__pycache__" / "code.pyc").write_bytes(b"cache")
        for name in ("code.py", ".secret", "half.partial"):
            (root / folder / name).write_text("")
    shutil.copytree(pack, root / "app" / "bundled" / "scenes")
    for name in ("README.md", "requirements.txt", "LICENSE"):
        shutil.copyfile(ROOT / name, root / name)
    return root


def requirements_of(folder: Path) -> dict[str, Requirement]:
    """Returns the requirements of a Space on `MACHINE`, by name."""
    lines = (folder / "requirements.txt").read_text().splitlines()
    required = [Requirement(line) for line in lines if line and not line.startswith(("#", "--"))]
    applicable = [need for need in required if need.marker is None or need.marker.evaluate(MACHINE)]
    return {canonicalize_name(need.name): need for need in applicable}


def test_the_folder_holds_all_that_its_app_needs_and_nothing_else(tmp_path: Path) -> None:
    space = build_space(tmp_path / "space")
    front = metadata_load(space / "README.md")
    assert front is not None
    assert (front["sdk"], front["suggested_hardware"]) == ("gradio", "cpu-basic")
    assert front["sdk_version"] in requirements_of(space)["gradio"].specifier
    assert (front["python_version"], front["app_file"]) == ("3.12", "app/main.py")
    assert len(front["short_description"]) <= 60
    top = {path.name for path in space.iterdir()}
    assert top == {*CODE, "README.md", "requirements.txt", "LICENSE"}
    for folder in CODE:
        ours = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
        assert {path.relative_to(space) for path in (space / folder).rglob("*.py")} == ours
    assert not [path for path in space.rglob("*") if path.name.startswith((".", "__pycache__"))]
    bundled = space / "app" / "bundled"
    assert {path.name for path in bundled.iterdir() if path.is_dir()} == {"scenes", "ablations"}
    assert (bundled / "scenes.views.safetensors").is_file()
    info = load_info(bundled / "scenes")
    files = {path.relative_to(info.folder).as_posix() for path in info.folder.rglob("*.*")}
    assert files == set(list_files(info))
    assert_imports_are_met(space)


def assert_imports_are_met(space: Path) -> None:
    """Checks that every imported package is in the standard library or a requirement."""
    # the Hub brings spaces, and gradio the next four; app/gallery/qdrant says what is missing
    # before it imports the others
    others = {"onnxruntime-gpu", "spaces", "httpx", "h11", "fastapi", "typing-extensions"}
    others |= {"grpcio", "qdrant-client", "pydantic-core"}
    required = requirements_of(space).keys() | others
    owners = importlib.metadata.packages_distributions()
    for path in space.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            tops = {name.split(".")[0] for name in names}
            for top in tops - {"polyview", *sys.stdlib_module_names}:
                known = {owner.lower().replace("_", "-") for owner in owners.get(top, [top])}
                assert known & required, f"{path}: {top}"


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
            info, hits = server.get("info"), server.get("search", q=QUESTION, k=3)["hits"]
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


def test_it_starts(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "space"
    arguments = ["--out", str(folder), "--pack", str(pack), "--hardware", "zero-gpu"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "--sdk gradio --flavor zero-a10g" in printed
    assert f"hf upload YOU/SPACE {folder} --type space" in printed
    assert main(arguments) == 1
    assert "no Space was made: " in capsys.readouterr().err
    shutil.rmtree(folder)
    build_space(folder, [str(pack)])
    before = sorted(folder.rglob("*"))
    info, hits = start_and_ask(folder, sys.executable, installed=False)
    assert info["pack"]["title"] == "Tiny"
    assert info["gallery"]["searchable"] == info["gallery"]["pictures"] == 6
    assert len(hits) == 3
    assert sorted(folder.rglob("*")) == before


def test_each_hardware_has_its_own_requirements(root: Path, tmp_path: Path) -> None:
    index = "https://wheels.example/cpu"
    for hardware, expected in HARDWARE.items():
        folder = build_space(tmp_path / hardware, ["scenes"], hardware, index, root)
        assert [path.name for path in (folder / "models").iterdir()] == ["code.py"]
        required = requirements_of(folder)
        assert required.keys() & {"onnxruntime", "onnxruntime-gpu", "spaces"} == expected
        newest = ["2.8.0", "2.11.0", "2.12.0", "2.13.0"]
        admitted = newest[:2] if hardware == "zero-a10g" else newest
        assert list(required["torch"].specifier.filter(newest)) == admitted
        lines = (folder / "requirements.txt").read_text().splitlines()
        assert lines[0] == f"--extra-index-url {index}"
        assert f"suggested_hardware: {hardware}\n" in (folder / "README.md").read_text()


def test_packs_are_refused(root: Path, copied: Path, small_pack: Path, tmp_path: Path) -> None:
    out = tmp_path / "space"
    with pytest.raises(FileNotFoundError, match=r'"../app"; name a bundled pack \(scenes\)'):
        build_space(out, ["../app"], root=root)
    with pytest.raises(ValueError, match='two packs are called "tiny"'):
        build_space(out, ["scenes", str(copied)], root=root)  # both are the tiny pack
    with pytest.raises(ValueError, match="has no images"):
        build_space(out, [str(small_pack)], root=root)
    (copied / "tokenizer.json").write_bytes(b"x" * (copied / "tokenizer.json").stat().st_size)
    with pytest.raises(PackError, match="SHA-256"):
        build_space(out, [str(copied)], root=root)
    assert not out.exists()


if __name__ == "__main__":
    space, interpreter = (Path(argument).absolute() for argument in sys.argv[1:])
    info, hits = start_and_ask(space, str(interpreter))
    print(f'{info["pack"]["title"]} on {info["device"]}: {len(hits)} hits for "{QUESTION}"')
