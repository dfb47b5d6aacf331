"""`pip install PATH` and `pip install -e PATH`, next to a user's packages of the same names."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("polyview", "app", "export", "models", "training")
# imports the user's packages, then the modules of all commands
IMPORTS = """
import importlib

import app, export, models, training
from polyview.__main__ import COMMANDS

print([module.OWNER for module in (app, export, models, training)])
print([importlib.import_module(f"polyview.{name}").__file__ for name in COMMANDS.values()])
"""


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix in which a copy of the code with the pack `scenes` is installed."""
    root = tmp_path_factory.mktemp("install")
    tree, prefix = root / "tree", root / "prefix"
    ignored = shutil.ignore_patterns("bundled", "__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    shutil.copytree(ROOT / "app/bundled/scenes", tree / "app/bundled/scenes")
    shutil.copy(ROOT / "app/bundled/scenes.views.safetensors", tree / "app/bundled")
    for file in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / file, tree / file)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation")
    place = ("--editable", str(tree)) if request.param == "editable" else (str(tree),)
    command = [*pip, "--no-deps", "--prefix", str(prefix), *place]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if request.param == "wheel":
        shutil.rmtree(tree)
    return prefix


def run(prefix: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs an installed command in a folder with four packages of the user."""
    site = sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)})
    # Python reads .pth files, such as those of an editable install, only in site folders
    code = f"import site; site.addsitedir({site!r})"
    (prefix / "sitecustomize.py").write_text(code)
    home = prefix / "research"
    for folder in FOLDERS[1:]:
        (home / folder).mkdir(parents=True, exist_ok=True)
        (home / folder / "__init__.py").write_text("OWNER = 'the user'\n")
    env = {**os.environ, "PYTHONPATH": f"{prefix}{os.pathsep}{home}", "HOME": str(prefix)}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=home)


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_the_command_is_installed(installed: Path) -> None:
    command = str(installed / "bin" / "polyview")
    done = run(installed, command, "search", "a panda", "--pack", "scenes", "-k", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(".webp\n") == 3


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["wheel", "editable"], indirect=True)
def test_commands_do_not_import_packages_of_the_user(installed: Path) -> None:
    done = run(installed, sys.executable, "-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    owners, files = done.stdout.splitlines()
    assert owners == str(["the user"] * 4)
    assert str(ROOT) not in files


def test_all_packages_are_listed() -> None:
    """A wheel lacks an unlisted package, unless `package-data` matches its files."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = settings["tool"]["setuptools"]["packages"]
    code = {path.parent for folder in FOLDERS[1:] for path in (ROOT / folder).rglob("*.py")}
    expected = {f"polyview.{'.'.join(path.relative_to(ROOT).parts)}" for path in code}
    assert set(listed) == expected | {"polyview"}
