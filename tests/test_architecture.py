"""Folders keep their direction: models <- export <- app, models <- training; nobody imports app."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("models", "export", "training", "app")
ALLOWED = {
    "models": {"models"},
    "export": {"export", "models"},
    "training": {"training", "models"},
    "app": {"app", "models", "export"},
}
# what measures a pack as it ships
EVALUATION = {"training/evaluate.py", "training/evaluator.py"}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_keep_their_direction(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        ours = {name.split(".")[0] for name in _imports(path)} & set(FOLDERS)
        allowed = ALLOWED[folder] | (
            {"export"} if path.relative_to(ROOT).as_posix() in EVALUATION else set()
        )
        assert ours <= allowed, f"{path.relative_to(ROOT)} imports {sorted(ours - allowed)}"


def test_no_module_of_the_app_shadows_a_top_level_folder() -> None:
    names = {path.stem for path in (ROOT / "app").iterdir()}
    assert not names & (set(FOLDERS) | {"tests"})


def test_no_grab_bags_and_no_pickle() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert path.stem not in {"utils", "helpers", "misc", "common"}, path
            assert not _imports(path) & {"pickle", "dill", "joblib"}, path
