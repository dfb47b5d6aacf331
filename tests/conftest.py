"""What every test shares."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# The tests' tensors are tiny: threads that wait for one another cost more than they bring. This
# also reaches the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Half of what a start computes is the compiling of what the one before it has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

WORKERS = 3
USUAL = "not soak"  # of pyproject.toml
SHARED = Path(__file__).parents[2] / "shared"
# Files whose tests ask the same server, which takes seconds to start: they run in one process.
BUNDLED = (
    *(f"tests/app/page/test_{name}.py" for name in ("compare", "mistakes", "explore", "inspect")),
    "tests/app/api/test_mistakes.py",
)
PRIVATE = (
    "tests/app/api/test_private.py",
    "tests/app/api/test_endpoints.py",
    "tests/app/page/test_collections.py",
    "tests/benchmarks/test_serving.py",
    "tests/benchmarks/test_gpu.py",
)
# Files whose tests ask the bundled scenes without a server.
SCENES = (
    "tests/app/test_bundled.py",
    "tests/app/explain/test_evidence.py",
    *(f"tests/app/api/test_{name}.py" for name in ("search", "examples")),
    "tests/app/api/test_mistake_ranks.py",
)
TOGETHER = {
    **dict.fromkeys(BUNDLED, "bundled"),
    **dict.fromkeys(PRIVATE, "private"),
    **dict.fromkeys(SCENES, "scenes"),
}
# group -> process of its server, which Gradio's queue keeps at 7 % of a core until it is stopped
SERVERS = pytest.StashKey[dict[str, int]]()
# What takes longest, and so begins first: at the end, no process has much left to do alone.
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
    """Leaves slow tests out of the whole suite: `make slow` runs them; a named file runs whole."""
    files = {*TOGETHER, *LONG} - {*TOGETHER.values()}
    missing = [file for file in files if not (Path(__file__).parents[1] / file).is_file()]
    assert not missing, f"TOGETHER and LONG name files that do not exist: {missing}"
    if _is_whole(config) and config.option.markexpr == USUAL:
        config.option.markexpr = f"{USUAL} and not slow"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files without a slow test where only those are asked for: importing takes seconds."""
    only_slow = config.option.markexpr.startswith("slow") and collection_path.suffix == ".py"
    return True if only_slow and "mark.slow" not in collection_path.read_text("utf-8") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts what takes long first.

    Leaves out what wants the data folder beside the checkout, where it is not, and what wants a
    GPU, unless that is asked for.
    """
    import torch  # after the number of its threads was set

    items.sort(key=_place)
    missing = {"shared"} if not SHARED.is_dir() else set()
    if "gpu" not in config.option.markexpr and not torch.cuda.is_available():
        missing.add("gpu")
    extra = [item for item in items if any(item.get_closest_marker(name) for name in missing)]
    items[:] = [item for item in items if item not in extra]
    config.hook.pytest_deselected(items=extra)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three processes for the whole suite, some of which wait; one for what somebody names."""
    return WORKERS if _is_whole(config) else 0


def _is_whole(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Gives each process a file at a time, or all files that share a server."""
    return _ByServer(config, log)


class _ByServer(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(super()._split_scope(nodeid))


def _group(file: str) -> str:
    """What runs in one process: files that share a server, or a file alone."""
    return TOGETHER.get(file, file)


@pytest.hookimpl(trylast=True)  # after the fixtures of the test itself
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stops a group's server after the group's last test."""
    if nextitem is None or _group_of(nextitem) != _group_of(item):
        process = item.config.stash.get(SERVERS, {}).pop(_group_of(item), None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)


def _group_of(item: pytest.Item) -> str:
    return _group(item.nodeid.partition("::")[0])


def _place(item: pytest.Item) -> int:
    group = _group_of(item)
    return LONG.index(group) if group in LONG else len(LONG)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Gives each test the same random numbers, whatever ran before it."""
    import torch

    torch.manual_seed(1)  # shared packs and runs are drawn from 0: what a test draws is another
