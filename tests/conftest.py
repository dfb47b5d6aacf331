"""What every test shares."""

import os
import sys
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
TOGETHER = {
    "tests/app/blocks/api/test_api.py": "server",
    "tests/app/packs/test_benchmark.py": "server",
    "tests/app/blocks/server/test_door.py": "server",
    "tests/app/blocks/server/test_galleries.py": "server",
    "tests/app/blocks/tabs/test_browser.py": "server",
    "tests/app/blocks/api/test_compare_api.py": "server",
    "tests/app/blocks/tabs/test_compare_browser.py": "server",
    "tests/app/blocks/api/test_events.py": "server",
    "tests/app/search/test_unknown_words.py": "bundled",
    "tests/app/test_bundled.py": "bundled",
    "tests/app/blocks/tabs/test_start_browser.py": "bundled",
    "tests/app/blocks/tabs/test_accessible.py": "bundled",
    "tests/app/blocks/tabs/test_browser_search.py": "views_server",
    "tests/app/blocks/tabs/test_history_browser.py": "views_server",
    "tests/app/blocks/api/test_http.py": "views_server",
    "tests/app/blocks/api/test_mcp.py": "views_server",
    "tests/app/blocks/api/test_evidence_api.py": "many_server",
    "tests/app/blocks/api/test_views_api.py": "many_server",
    "tests/app/blocks/tabs/test_views_browser.py": "many_server",
}
# What takes longest, and so begins first: at the end, no process has much left to do alone.
LONG = (
    "bundled",
    "views_server",
    "server",
    "many_server",
    "tests/app/packs/test_strangers.py",
    "tests/app/packs/test_obtaining.py",
    "tests/app/blocks/server/test_public.py",
    "tests/test_four_touches.py",
    "tests/app/blocks/tabs/test_benchmark_browser.py",
    "tests/app/blocks/tabs/test_grid_browser.py",
    "tests/training/loop/test_trainer.py",
    "tests/training/evaluation/test_report.py",
    "tests/training/test_sweep.py",
    "tests/export/test_space.py",
    "tests/app/test_photos.py",
    "tests/app/packs/test_hub_trouble.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """The whole suite is without slow tests, which `make slow` runs; a file that is named is not.

    Each of several processes imports gradio: as the app does, without hints for editors.
    """
    if _is_whole(config) and config.option.markexpr == USUAL:
        config.option.markexpr = f"{USUAL} and not slow"
    if hasattr(config, "workerinput"):
        from app.blocks.server.imports import quick_imports

        with quick_imports():
            import gradio  # noqa: F401


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


def _place(item: pytest.Item) -> int:
    group = _group(item.nodeid.partition("::")[0])
    return LONG.index(group) if group in LONG else len(LONG)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Gives each test the same random numbers, whatever ran before it."""
    import torch

    torch.manual_seed(1)  # shared packs and runs are drawn from 0: what a test draws is another
