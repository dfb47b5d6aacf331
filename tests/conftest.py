"""Set-up of every test: threads, order, processes and their shared folders, random seed."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from xdist.scheduler import LoadFileScheduling

# The tensors of the tests are so small that more threads are slower. Processes that tests start
# inherit the setting.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled modules halve the CPU time of each process that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

WORKERS = 3
USUAL = "not soak and not slow"  # of pyproject.toml
SHARED = Path(__file__).parents[2] / "shared"
# Files that share a server, which takes seconds to start, run in one process.
SCREENS = ("compare", "mistakes", "explore", "inspect")
BUNDLED = tuple(f"tests/app/page/test_{name}.py" for name in SCREENS)
PRIVATE = (
    "tests/app/api/test_private.py",
    "tests/app/api/test_endpoints.py",
    "tests/app/api/test_mistakes.py",
    "tests/app/page/test_collections.py",
    "tests/benchmarks/test_serving.py",
    "tests/benchmarks/test_gpu.py",
)
# Files that share the bundled scenes without a server
SCENES = (
    "tests/app/test_bundled.py",
    "tests/app/explain/test_evidence.py",
    "tests/app/explain/test_views_of_a_method.py",
    *(f"tests/app/api/test_{name}.py" for name in ("search", "examples")),
)
TOGETHER = {
    **dict.fromkeys(BUNDLED, "bundled"),
    **dict.fromkeys(PRIVATE, "private"),
    **dict.fromkeys(SCENES, "scenes"),
}
# group -> process id of its server; an idle server uses 7 % of a core until it is stopped
SERVERS = pytest.StashKey[dict[str, int]]()
# The longest groups and files start first, so that all processes end at about the same time.
LONG = (
    "bundled",
    "private",
    "tests/test_install.py",
    "tests/app/page/test_packs.py",
    "scenes",
    "tests/training/test_sweep.py",
    "tests/app/api/test_nginx.py",
    "tests/export/test_space.py",
    "tests/app/packs/test_obtaining.py",
    "tests/training/evaluation/test_evaluate.py",
    "tests/app/api/test_public.py",
    "tests/test_four_touches.py",
    "tests/test_library.py",
    "tests/training/loop/test_backbones.py",
    "tests/app/gallery/test_video.py",
    "tests/training/loop/test_trainer.py",
    "tests/training/test_check.py",
    "tests/training/test_pages.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Includes the slow tests of files that the command line names."""
    files = {*TOGETHER, *LONG} - {*TOGETHER.values()}
    missing = [file for file in files if not (Path(__file__).parents[1] / file).is_file()]
    assert not missing, f"TOGETHER and LONG name files that do not exist: {missing}"
    is_worker = hasattr(config, "workerinput")  # it has the expression of the main process
    if config.option.markexpr == USUAL and not (is_worker or _is_whole(config)):
        config.option.markexpr = "not soak"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files without slow tests in a run of slow tests: importing them takes seconds."""
    only_slow = config.option.markexpr.startswith("slow") and collection_path.suffix == ".py"
    return True if only_slow and "mark.slow" not in collection_path.read_text("utf-8") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts long groups first; deselects tests whose data folder or GPU is missing.

    Tests for a GPU run without one if the marker expression names them.
    """
    import torch  # after OMP_NUM_THREADS is set

    items.sort(key=_position)
    missing = {"shared"} if not SHARED.is_dir() else set()
    if "gpu" not in config.option.markexpr and not torch.cuda.is_available():
        missing.add("gpu")
    extra = [item for item in items if any(item.get_closest_marker(name) for name in missing)]
    items[:] = [item for item in items if item not in extra]
    config.hook.pytest_deselected(items=extra)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Returns three processes for the whole suite, since some wait; none for named files."""
    return WORKERS if _is_whole(config) else 0


def _is_whole(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Returns a scheduler that assigns whole files, or all files that share a server."""
    return _ByServer(config, log)


class _ByServer(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def _group(nodeid: str) -> str:
    """Returns the group of a test, by default its file; a group runs in one process."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file, file)


@pytest.hookimpl(trylast=True)  # after the test's own fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stops a group's server after the group's last test."""
    group = _group(item.nodeid)
    if nextitem is None or _group(nextitem.nodeid) != group:
        process = item.config.stash.get(SERVERS, {}).pop(group, None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)


def _position(item: pytest.Item) -> int:
    group = _group(item.nodeid)
    return LONG.index(group) if group in LONG else len(LONG)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Gives each test the same random numbers, independent of earlier tests."""
    import torch

    torch.manual_seed(1)  # shared packs and runs use seed 0


def shared_root(factory: pytest.TempPathFactory) -> Path:
    """Returns the temporary folder that all processes of a run share."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a read-only folder, which `make` fills in the first process that needs it."""
    root = shared_root(factory)
    with FileLock(root / f"{name}.lock"):
        if not (root / name).is_dir():
            draft = factory.mktemp(name)
            make(draft)
            draft.rename(root / name)
    return root / name
