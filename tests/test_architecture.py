"""Imports go down only: between the top folders, between their rooms, and never in a circle."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What each top folder may import, besides itself.
FOLDERS = {
    "models": set(),
    "export": {"models"},
    "training": {"models", "export"},
    "app": {"models", "export"},
}
# The rooms of a folder, and its top modules, from the top floor down: a room imports itself and
# what lies on floors below its own, never a neighbour.
FLOORS: dict[str, list[set[str]]] = {
    "models": [{"encoders", "clip", "avse", "mv_vse", "mvam", "pvse", "vse_infty"}],
    "export": [
        {"obtain"},
        {"to_onnx", "clip", "official", "space", "check"},
        {"build"},
        {"encoders"},
        {"hub"},
        {"runtime"},
        {"sessions", "texts", "methods"},
        {"pack", "mistakes"},
    ],
    "training": [
        {"train", "pretrain", "distill", "evaluate", "check", "sweep", "plot"},
        {"loop"},
        {"objectives", "evaluation"},
        {"data"},
        {"scenes"},
        {"settings"},
    ],
    "app": [
        {"main", "migrate"},
        {"server"},
        {"api"},
        {"packs"},
        {"settings"},
        {"explain"},
        {"search"},
        {"gallery"},
        {"limits"},
        {"access"},
    ],
}
# The adapter registers the endpoints; no other module imports gradio.
GRADIO = {"app/api/adapter.py"}


def _files(folder: str) -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.py"))]


def _name(path: Path) -> str:
    """A file's module, without the package `polyview`, under which all are imported."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def _modules() -> frozenset[str]:
    return frozenset(_name(path) for folder in FOLDERS for path in _files(folder))


@cache
def _imports(path: Path) -> frozenset[str]:
    """What a file imports, anywhere in it; of our own modules their full names."""
    results: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            results |= {alias.name.removeprefix("polyview.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} uses a relative import"
            module = f"{node.module}.".removeprefix("polyview.")
            inner = {f"{module}{alias.name}" for alias in node.names}
            results |= (inner & _modules()) or {module.removesuffix(".")}
    return frozenset(results)


def _room(module: str) -> tuple[str, str]:
    """A module's top folder and its room there; for a module at the top, itself."""
    folder, *inner = module.split(".")
    return folder, ".".join(inner[:1])


@pytest.mark.parametrize("folder", FOLDERS)
def test_top_folders_import_only_what_is_below_them(folder: str) -> None:
    for path in _files(folder):
        ours = {name.split(".")[0] for name in _imports(path)} & (set(FOLDERS) | {"tests"})
        assert ours <= FOLDERS[folder] | {folder}, f"{path} imports {sorted(ours)}"


@pytest.mark.parametrize("folder", ["export", "training", "app"])
def test_rooms_import_only_floors_below_their_own(folder: str) -> None:
    floors = {room: i for i, rooms in enumerate(FLOORS[folder]) for room in rooms}
    for path in _files(folder):
        _, room = _room(_name(path))
        if room == "":
            continue
        assert room in floors, f"{path} is in no room of {folder}; see FLOORS"
        for name in _imports(path) & _modules():
            other_folder, other = _room(name)
            if other_folder == folder and other not in {room, ""}:
                assert floors[other] > floors[room], f"{path} imports {name}, which is above it"


def test_the_library_s_models_need_nothing_of_the_app() -> None:
    core = _imports(Path("polyview/core.py"))
    assert not [name for name in core if name.startswith(("app", "gradio"))]


def test_no_circle_of_modules() -> None:
    graph = {
        _name(path): (_imports(path) & _modules()) - {_name(path)}
        for folder in FOLDERS
        for path in _files(folder)
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports go in a circle: {' -> '.join(error.args[1])}")


def test_only_the_adapter_knows_gradio() -> None:
    for folder in FOLDERS:
        for path in _files(folder):
            if {name.split(".")[0] for name in _imports(path)} & {"gradio", "gradio_client"}:
                assert any(path.is_relative_to(place) for place in GRADIO), path


def test_modules_of_posix_alone_are_imported_where_they_are_used() -> None:
    """Every module of ours imports where Windows has no resource, fcntl and the like."""
    posix = {"resource", "fcntl", "pwd", "grp", "termios", "pty", "posix", "syslog", "readline"}
    for path in [path for folder in (*FOLDERS, "benchmarks") for path in _files(folder)]:
        for node in ast.parse((ROOT / path).read_text("utf-8")).body:
            names = [alias.name for alias in getattr(node, "names", ())]
            names.append(getattr(node, "module", None) or "")
            assert not posix & set(names), path


def test_the_top_of_the_app_is_small_and_shadows_no_folder() -> None:
    assert len(list((ROOT / "app").glob("*.py"))) <= 7
    names = {path.stem for path in (ROOT / "app").iterdir()}
    assert not names & (set(FOLDERS) | {"tests"})


def test_no_grab_bags_and_no_pickle() -> None:
    for folder in FOLDERS:
        for path in _files(folder):
            assert path.stem not in {"utils", "helpers", "misc", "common"}, path
            assert not _imports(path) & {"pickle", "dill", "joblib"}, path
