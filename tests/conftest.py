"""What every test shares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# The tests' tensors are tiny: threads that wait for one another cost more than they bring. This
# also reaches the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

WORKERS = 3
SHARED = Path(__file__).parents[2] / "shared"
# Files whose tests ask the same server, which takes seconds to start: they run in one process.
TOGETHER = {
    "tests/app/test_api.py": "server",
    "tests/app/test_benchmark.py": "server",
    "tests/app/test_browser.py": "server",
    "tests/app/test_compare_api.py": "server",
    "tests/app/test_compare_browser.py": "server",
    "tests/app/test_events.py": "server",
    "tests/app/test_browser_search.py": "views_server",
    "tests/app/test_views_link.py": "views_server",
    "tests/app/test_views_api.py": "many_server",
    "tests/app/test_views_browser.py": "many_server",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the extra tests that want the data folder beside the checkout, where it is not."""
    if SHARED.is_dir():
        return
    extra = [item for item in items if item.get_closest_marker("shared")]
    items[:] = [item for item in items if item not in extra]
    config.hook.pytest_deselected(items=extra)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three processes for the whole suite, some of which wait; one for what somebody names."""
    return WORKERS if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Gives each process a file at a time, or all files that share a server."""
    return _ByServer(config, log)


class _ByServer(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return TOGETHER.get(file, file)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Gives each test the same random numbers, whatever ran before it."""
    import torch

    torch.manual_seed(1)  # shared packs and runs are drawn from 0: what a test draws is another
