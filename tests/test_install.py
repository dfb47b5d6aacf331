"""`pip install PATH`, and `-e PATH`, beside packages of a user's own with the same folder names."""

import json
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
# runs commands one after the other, so that torch is imported once
COMMANDS = """
import json
import sys

import app, export, models, training
from polyview.__main__ import main

print([module.OWNER for module in (app, export, models, training)])
for arguments in json.loads(sys.argv[1]):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    print("ended with", status)
print(sys.modules["polyview.training.train"].__file__)
"""
TRAIN = ("train", "--help")
# the status of each, and what it prints
EXPECTED: dict[tuple[str, ...], tuple[int | str, str]] = {
    TRAIN: (0, "--recipe"),
    ("search", "--help"): (0, "--paths0"),
    ("evaluate", "--pack", "nowhere"): ("there is no folder nowhere", ""),
    ("--pack", "nowhere"): (1, "polyview: there is no folder nowhere"),
}


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix where a copy of the code, with the scenes and no other pack, is installed."""
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
    """Runs a command with what was installed, in a folder with four packages of a user's own."""
    site = sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)})
    # an editable install is a .pth file, which only a site folder has read
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
    wrong = run(installed, command, "serach")
    assert (wrong.returncode, "search" in wrong.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["wheel", "editable"], indirect=True)
def test_packages_of_the_same_names_stay_the_user_s(installed: Path) -> None:
    editable = (installed.parent / "tree").is_dir()  # and needs no other command
    commands = {TRAIN: EXPECTED[TRAIN]} if editable else EXPECTED
    done = run(installed, sys.executable, "-c", COMMANDS, json.dumps([*commands]))
    assert done.returncode == 0, done.stderr
    owners, *_, file = done.stdout.splitlines()
    assert owners == str(["the user"] * 4)
    assert str(ROOT) not in file
    for status, output in commands.values():
        assert f"ended with {status}" in done.stdout
        assert output in done.stdout + done.stderr


def test_all_packages_are_listed() -> None:
    """A folder that pyproject.toml does not name would be missing in a wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = settings["tool"]["setuptools"]["packages"]
    code = {path.parent for folder in FOLDERS[1:] for path in (ROOT / folder).rglob("*.py")}
    expected = {f"polyview.{'.'.join(path.relative_to(ROOT).parts)}" for path in code}
    assert set(listed) == expected | {"polyview"}
