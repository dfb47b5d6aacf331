"""What many questions leave in memory: nearly nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.api.conftest import ROOT, data_uri, encoded
from tests.app.serving import Serve, Server

TEXTS = [f"a {colour} circle beside a bar" for colour in ("red", "green", "blue", "pink")]
OURS = ("app", "models", "export", "training", "benchmarks")


@pytest.fixture(scope="module")
def server(serve: Serve, tiny_pack: Path) -> Server:
    return serve("--pack", tiny_pack)


def megabytes(process: int) -> float:
    """The resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("way", ["http", "gradio"])
@pytest.mark.parametrize("calls", [120, pytest.param(5000, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_questions_leave_nothing_in_memory(server: Server, way: str, calls: int) -> None:
    image = data_uri(encoded(3))

    def ask(number: int) -> None:
        text = TEXTS[number % len(TEXTS)]
        if way == "http":
            server.get("search", q=text, k=5)
            server.get("explain/hits", q=text, images="1,2,3")
            return
        assert isinstance(server.predict("search_text", query=text, k=5), dict)
        if number % 10 == 0:
            assert isinstance(server.predict("search_image", image=image), dict)

    for number in range(120):  # what the first ones load and keep
        ask(number)
    before = megabytes(server.process)
    for number in range(calls):
        ask(number)
    after = megabytes(server.process)
    print(f"{way}: {before:.0f} MB, after {calls} calls {after:.0f} MB")
    assert after < before * 1.05


def test_nothing_needs_a_module_of_posix_alone() -> None:
    """Every module of ours imports where Windows has no resource, fcntl and the like."""
    paths = [path for folder in OURS for path in sorted((ROOT / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    names = [name for name in names if not name.endswith(("__main__", "__init__"))]
    code = f"""
import builtins, importlib
real, ours = builtins.__import__, {OURS!r}
hidden = {{"resource", "fcntl", "pwd", "grp", "termios", "pty", "posix", "syslog", "readline"}}

def guarded(name, globals=None, *rest, **more):
    importer = ((globals or {{}}).get("__name__") or "").partition(".")[0]
    if name.partition(".")[0] in hidden and importer in ours:
        raise ImportError(f"{{name}} is hidden from {{globals['__name__']}}")
    return real(name, globals, *rest, **more)

builtins.__import__ = guarded
for name in {names!r}:
    importlib.import_module(name)
print("all imported")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert "all imported" in done.stdout, done.stderr[-2000:]
