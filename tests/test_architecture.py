"""Imports follow the order of folders and rooms, without cycles."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# top folder -> other folders that it may import
FOLDERS = {
    "models": set(),
    "export": {"models"},
    "training": {"models", "export"},
    "app": {"models", "export"},
}
# The rooms and top modules of a folder, by floors from the top, separated by "/". A room imports
# only itself and rooms of lower floors.
FLOORS = {
    "export": "obtain / to_onnx clip official space check / build / encoders / hub / runtime"
    " / sessions texts / pack mistakes",
    "training": "train pretrain distill evaluate check sweep plot / loop / objectives evaluation"
    " / data / scenes / settings",
    "app": "main migrate / server / api / packs / settings / explain / search / gallery / access"
    " / gradio_queue / refusal",
}
FILES = {
    folder: [path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.py"))]
    for folder in (*FOLDERS, "benchmarks")
}
OURS = [path for folder in FOLDERS for path in FILES[folder]]
LATE = {"resource", "fcntl", "pwd", "grp", "termios", "pty", "posix", "syslog", "readline"}
LATE |= {"transformers"}


def _name(path: Path) -> str:
    """Returns the module of a file without the prefix `polyview.`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path) for path in OURS}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


@cache
def _imports(path: Path) -> frozenset[str]:
    """Returns all modules that a file imports, those of this repository by full name."""
    results: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            results |= {alias.name.removeprefix("polyview.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} uses a relative import"
            module = f"{node.module}.".removeprefix("polyview.")
            inner = {f"{module}{alias.name}" for alias in node.names}
            results |= (inner & MODULES) or {module.removesuffix(".")}
    return frozenset(results)


def _tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in _imports(path)}


def test_top_folders_import_only_what_is_below_them() -> None:
    for path in OURS:
        folder = path.parts[0]
        ours = _tops(path) & {*FOLDERS, "tests"}
        assert ours <= FOLDERS[folder] | {folder}, f"{path} imports {sorted(ours)}"


@pytest.mark.parametrize("folder", FLOORS)
def test_rooms_import_only_floors_below_their_own(folder: str) -> None:
    levels = FLOORS[folder].split("/")
    floors = {room: level for level, rooms in enumerate(levels) for room in rooms.split()}
    for path in FILES[folder]:
        if _name(path) == folder:
            continue
        room = _name(path).split(".")[1]
        assert room in floors, f"{path} is in no room of {folder}; see FLOORS"
        for name in _imports(path) & MODULES:
            other_folder, _, inner = name.partition(".")
            other = inner.split(".")[0]
            if other_folder == folder and other not in {room, ""}:
                assert floors[other] > floors[room], f"{path} imports {name}, which is above it"


def test_imports_have_no_cycle() -> None:
    graph = {_name(path): (_imports(path) & MODULES) - {_name(path)} for path in OURS}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports have a cycle: {' -> '.join(error.args[1])}")


def test_forbidden_imports_and_names() -> None:
    """Windows has no resource, fcntl and the like; importing transformers takes seconds."""
    assert not _tops(Path("polyview/core.py")) & {"app", "gradio"}
    for path in [*OURS, *FILES["benchmarks"]]:
        for node in _tree(path).body:
            names = [alias.name for alias in getattr(node, "names", ())]
            names.append(getattr(node, "module", None) or "")
            assert not LATE & {name.split(".")[0] for name in names}, path
        assert not _imports(path) & {"pickle", "dill", "joblib"}, path
        assert path.stem not in {"utils", "helpers", "misc", "common"}, path
        if path in OURS and path.as_posix() != "app/api/adapter.py":
            assert not _tops(path) & {"gradio", "gradio_client"}, path
    assert len(list((ROOT / "app").glob("*.py"))) <= 8
    assert not {path.stem for path in (ROOT / "app").iterdir()} & {*FOLDERS, "tests"}
