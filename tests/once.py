"""What one process of a test run makes for all of them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills in the first process that wants it; nobody may change it."""
    own = factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with FileLock(root / f"{name}.lock"):
        if not (root / name).is_dir():
            draft = factory.mktemp(name)
            make(draft)
            draft.rename(root / name)
    return root / name
