"""`pip install -e .`: four packages, two commands, and the code found from anywhere."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a copy of the code, without what it bundles, is installed as people work on it."""
    root = tmp_path_factory.mktemp("install")
    tree, prefix = root / "tree", root / "prefix"
    ignored = shutil.ignore_patterns("bundled", "__pycache__")
    for folder in ("app", "export", "models", "training"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for file in ("pyproject.toml", "requirements.txt", "README.md"):
        shutil.copyfile(ROOT / file, tree / file)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation")
    command = [*pip, "--no-deps", "--prefix", str(prefix), "--editable", str(tree)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return prefix


def run(prefix: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command, with what was installed and without the folder of this checkout."""
    paths = {"base": str(prefix), "platbase": str(prefix)}
    site = sysconfig.get_path("purelib", vars=paths)
    # an editable install is a .pth file, which only a site folder has read
    code = f"import site; site.addsitedir({site!r})"
    (prefix / "sitecustomize.py").write_text(code)
    env = {**os.environ, "PYTHONPATH": str(prefix)}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=prefix)


@pytest.mark.parametrize(
    ("name", "arguments", "status", "said"),
    [
        ("polyview", ("--help",), 0, "--gallery"),
        ("polyview", ("--pack", "nowhere"), 1, "nowhere"),
        ("polyview-search", ("--help",), 0, "--paths0"),
        ("polyview-search", ("a dog",), 2, "there is no folder"),
    ],
)
def test_commands_are_installed(
    installed: Path, name: str, arguments: tuple[str, ...], status: int, said: str
) -> None:
    done = run(installed, str(installed / "bin" / name), *arguments)
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr


def test_the_packages_are_found(installed: Path) -> None:
    code = "import app, export, models, training.train; print(models.__file__)"
    done = run(installed, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parts[-3:] == ("tree", "models", "__init__.py")
